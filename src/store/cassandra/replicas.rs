//! Replicas and their heartbeats, and the clock of the cluster.
//!
//! All rows are in one partition, which is read by its key: what every replica must read in order to go on then
//! needs a majority of the nodes of that partition, and not of every range of tokens.
//!
//! A row has one writer at a time, and every write of it carries its timestamp: none is the time of a clock,
//! so that no coordinator's clock can put an earlier heartbeat over a later one.

use super::CassandraStore;
use super::codec::{bigint, number};
use super::statements::Ask;
use super::value::{Row, Value, present};
use crate::lock::ReplicaId;
use crate::store::{REPLICAS_MAX, ReplicaRow, StoreError, too_many_replicas};

/// The partition of all replicas.
const PART: &str = "replicas";
/// The timestamp of what forgets one: above that of a heartbeat a millisecond for 30,000 years. (ScyllaDB refuses
/// timestamps that are days ahead of its clock.)
const FORGOTTEN_AT: i64 = 1 << 50;

impl CassandraStore {
    pub(super) async fn announce(&self, row: &ReplicaRow) -> Result<(), StoreError> {
        let heartbeat = bigint(row.heartbeat)?;
        let values = [
            Value::text(PART),
            Value::Uuid(row.id.0),
            Value::text(&row.address),
            Value::text(&row.peer_address),
            Value::text(&row.version),
            Value::Timestamp(row.started_at_ms),
            Value::Int(row.ttl_ms.cast_signed()),
            Value::BigInt(heartbeat),
            Value::Boolean(row.stopped),
            Value::BigInt(heartbeat),
        ];
        self.ask(Ask::Announce, &values).await?;
        Ok(())
    }

    pub(super) async fn write_heartbeat(
        &self,
        id: ReplicaId,
        heartbeat: u64,
        stopped: bool,
    ) -> Result<(), StoreError> {
        let heartbeat = bigint(heartbeat)?;
        let values = [
            Value::BigInt(heartbeat),
            Value::BigInt(heartbeat),
            Value::Boolean(stopped),
            Value::text(PART),
            Value::Uuid(id.0),
        ];
        self.ask(Ask::Heartbeat, &values).await?;
        Ok(())
    }

    pub(super) async fn delete_replica(&self, id: ReplicaId) -> Result<(), StoreError> {
        let values = [
            Value::BigInt(FORGOTTEN_AT),
            Value::text(PART),
            Value::Uuid(id.0),
        ];
        self.ask(Ask::ForgetReplica, &values).await?;
        Ok(())
    }

    pub(super) async fn replicas(&self) -> Result<Vec<ReplicaRow>, StoreError> {
        let statement = self.statement(Ask::Replicas).await?;
        let values = [Value::text(PART)];
        let page_rows = i32::from(self.page_rows);
        let mut replicas = Vec::new();
        let mut next = None;
        loop {
            let page = self.driver.page(&statement, &values, page_rows, next);
            let (rows, more) = page.await?;
            for row in rows {
                replicas.extend(decode(row)?);
            }
            if replicas.len() > REPLICAS_MAX {
                return Err(too_many_replicas());
            }
            match more {
                Some(more) => next = Some(more),
                None => break,
            }
        }
        // Cassandra orders ids of some versions by the time in them.
        replicas.sort_unstable_by_key(|replica: &ReplicaRow| replica.id);
        Ok(replicas)
    }

    /// The time by the clock of one node: each time another one is asked.
    pub(super) async fn clock(&self) -> Result<u64, StoreError> {
        let rows = self.ask(Ask::Clock, &[]).await?;
        let row = rows.into_iter().next();
        let now = row.map(|mut row| row.uuid("now")).transpose()?.flatten();
        let time = present(now, "now")?.get_timestamp();
        let unreadable = || StoreError::Damaged("the store's clock cannot be read".to_owned());
        let (seconds, nanoseconds) = time.ok_or_else(unreadable)?.to_unix();
        let whole = seconds.checked_mul(1_000_000).ok_or_else(unreadable)?;
        Ok(whole + u64::from(nanoseconds) / 1_000)
    }
}

/// `None` for a row that is not whole: one that was never announced, or not by this version.
pub(super) fn decode(mut row: Row) -> Result<Option<ReplicaRow>, StoreError> {
    let id = ReplicaId(present(row.uuid("id")?, "id")?);
    let ttl = row.int("ttl")?;
    let (
        Some(address),
        Some(peer_address),
        Some(version),
        Some(started_at_ms),
        Some(heartbeat),
        Some(stopped),
    ) = (
        row.text("address")?,
        row.text("peer_address")?,
        row.text("version")?,
        row.timestamp("started_at")?,
        row.bigint("heartbeat")?,
        row.boolean("stopped")?,
    )
    else {
        return Ok(None);
    };
    Ok(Some(ReplicaRow {
        id,
        address,
        peer_address,
        version,
        started_at_ms,
        // A replica of before there was such a column says none: the observer's own counts.
        ttl_ms: ttl.unwrap_or(0).cast_unsigned(),
        heartbeat: number(heartbeat)?,
        stopped,
    }))
}
