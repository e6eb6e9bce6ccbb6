//! The data that all replicas share: the rows of replicas, hand-over requests, and a clock.

use async_trait::async_trait;
use fermata_cassandra::{Value, present};

use super::CassandraStore;
use super::codec::bigint;
use super::hand_over_requests::{self, values};
use super::replicas::{FoundRow, PART, StateAnswer, answered, encode};
use super::statements::Cql;
use crate::lock::ReplicaId;
use crate::store::{
    ClusterStore, ENDED_REPLICAS_MAX, HandOverRequest, REPLICAS_MAX, ReplicaRow, ReplicaState,
    StateSwap, StoreError,
};

#[async_trait]
impl ClusterStore for CassandraStore {
    async fn announce_replica(&self, row: &ReplicaRow) -> Result<(), StoreError> {
        let values = [
            Value::text(&row.name),
            Value::text(&row.zone),
            Value::text(&row.address),
            Value::text(&row.peer_address),
            Value::text(&row.version),
            Value::Timestamp(row.started_at_ms),
            Value::Int(row.ttl_ms.cast_signed()),
            Value::Int(encode(row.state)?),
            Value::text(PART),
            Value::Uuid(row.id.0),
        ];
        let answer = answered(self.ask(Cql::Announce, &values).await?)?;
        if let StateAnswer::Met(met) = answer
            && met != Some(row.state)
        {
            let id = row.id;
            return Err(StoreError::Unavailable(format!(
                "the replica {id} was announced before, and its state is now {met:?}"
            )));
        }
        self.heartbeat(row.id, row.heartbeat).await?;
        if let Err(error) = self.forget_unlisted().await {
            tracing::debug!(%error, "cannot delete rows of replicas that are not listed");
        }
        Ok(())
    }

    async fn list_replicas(&self) -> Result<Vec<ReplicaRow>, StoreError> {
        let mut replicas = Vec::new();
        let (mut up, mut ended) = (0, 0);
        self.each_found(|found| {
            let FoundRow::Row(row) = found else {
                return;
            };
            let (count, max) = match row.state {
                ReplicaState::Up(_) => (&mut up, REPLICAS_MAX),
                ReplicaState::Down | ReplicaState::Stopped => (&mut ended, ENDED_REPLICAS_MAX),
            };
            *count += 1;
            if *count <= max {
                replicas.push(row);
            }
        })
        .await?;
        if up > REPLICAS_MAX {
            return Err(StoreError::Damaged(format!(
                "more than {REPLICAS_MAX} replicas are listed as up; stop all replicas, then TRUNCATE the table membership"
            )));
        }
        // Cassandra orders ids of some versions by the time in them.
        replicas.sort_unstable_by_key(|replica: &ReplicaRow| replica.id);
        Ok(replicas)
    }

    async fn heartbeat(&self, id: ReplicaId, heartbeat: u64) -> Result<(), StoreError> {
        let heartbeat = bigint(heartbeat)?;
        let values = [
            Value::BigInt(heartbeat),
            Value::BigInt(heartbeat),
            Value::text(PART),
            Value::Uuid(id.0),
        ];
        self.ask(Cql::Heartbeat, &values).await?;
        Ok(())
    }

    async fn swap_state(
        &self,
        id: ReplicaId,
        expected: ReplicaState,
        next: ReplicaState,
    ) -> StateSwap {
        let (expected, next) = match (encode(expected), encode(next)) {
            (Ok(expected), Ok(next)) => (expected, next),
            (Err(error), _) | (_, Err(error)) => return StateSwap::NotStarted(error),
        };
        let values = [
            Value::Int(next),
            Value::text(PART),
            Value::Uuid(id.0),
            Value::Int(expected),
        ];
        match self.ask(Cql::SwapState, &values).await.and_then(answered) {
            Ok(StateAnswer::Applied) => StateSwap::Applied,
            Ok(StateAnswer::Met(state)) => StateSwap::Conflict(state),
            Err(fault) => fault.into(),
        }
    }

    async fn forget_replica(&self, id: ReplicaId) -> Result<(), StoreError> {
        // One that is up has a number above 0.
        let values = [Value::text(PART), Value::Uuid(id.0), Value::Int(0)];
        self.ask_if(Cql::ForgetReplica, &values).await?;
        Ok(())
    }

    async fn request_hand_over(&self, request: &HandOverRequest) -> Result<(), StoreError> {
        self.ask(Cql::RequestHandOver, &values(request)?).await?;
        Ok(())
    }

    /// One page: who answers and forgets these comes to the others.
    async fn hand_over_requests(
        &self,
        home: ReplicaId,
    ) -> Result<Vec<HandOverRequest>, StoreError> {
        let statement = self.statement(Cql::HandOverRequests).await?;
        let (values, page_rows) = ([Value::Uuid(home.0)], i32::from(self.page_rows));
        let page = self.cluster.page(&statement, &values, page_rows, None);
        let (rows, _) = page.await?;
        let requests = rows.into_iter();
        requests
            .filter_map(|row| hand_over_requests::decode(home, row).transpose())
            .collect()
    }

    async fn forget_hand_over_request(&self, request: &HandOverRequest) -> Result<(), StoreError> {
        self.ask(Cql::ForgetHandOverRequest, &values(request)?)
            .await?;
        Ok(())
    }

    /// By the clock of one node: each time another one is asked.
    async fn clock_us(&self) -> Result<u64, StoreError> {
        let rows = self.ask(Cql::Clock, &[]).await?;
        let row = rows.into_iter().next();
        let now = row.map(|mut row| row.uuid("now")).transpose()?.flatten();
        let time = present(now, "now")?.get_timestamp();
        let unreadable = || StoreError::Damaged("the store's clock cannot be read".to_owned());
        let (seconds, nanoseconds) = time.ok_or_else(unreadable)?.to_unix();
        let whole = seconds.checked_mul(1_000_000).ok_or_else(unreadable)?;
        Ok(whole + u64::from(nanoseconds) / 1_000)
    }
}
