//! Sessions, changed by lightweight transactions on their epoch; and replicas, each written once.

use super::CassandraStore;
use super::fault::Fault;
use super::scan::Smallest;
use super::statements::Ask;
use super::value::{Row, Value, present};
use crate::lock::{ReplicaId, SessionId};
use crate::store::{ReplicaRow, SessionRow, StoreError};

impl CassandraStore {
    /// A session. Read at SERIAL, so that a change of unknown outcome is settled by it.
    pub(super) async fn session(&self, id: SessionId) -> Result<Option<SessionRow>, StoreError> {
        let rows = self.ask(Ask::LoadSession, &[Value::Uuid(id.0)]).await?;
        rows.into_iter().next().map(decode_session).transpose()
    }

    pub(super) async fn change_session(
        &self,
        expected: u32,
        row: &SessionRow,
    ) -> Result<bool, Fault> {
        let mut values = vec![
            Value::Int(row.ttl_ms.cast_signed()),
            Value::Uuid(row.replica.0),
            Value::Int(row.epoch.cast_signed()),
            Value::Boolean(row.open),
            Value::text(&row.identity),
            Value::text(&row.owner),
            Value::Timestamp(row.created_at_ms),
            Value::Uuid(row.id.0),
        ];
        if expected == 0 {
            return self.ask_if(Ask::OpenSession, &values).await;
        }
        values.push(Value::Int(expected.cast_signed()));
        self.ask_if(Ask::SwapSession, &values).await
    }

    pub(super) async fn sessions(
        &self,
        after: Option<SessionId>,
        limit: usize,
    ) -> Result<Vec<SessionRow>, StoreError> {
        let mut page = Smallest::new(limit);
        self.scan(Ask::Sessions, |row| {
            let session = decode_session(row)?;
            if after.is_none_or(|after| session.id > after) {
                page.offer(session.id, session);
            }
            Ok(())
        })
        .await?;
        Ok(page.into_items().into_iter().map(|(_, row)| row).collect())
    }

    pub(super) async fn announce(&self, row: &ReplicaRow) -> Result<(), StoreError> {
        let values = [
            Value::Uuid(row.id.0),
            Value::text(&row.address),
            Value::text(&row.version),
            Value::Timestamp(row.started_at_ms),
        ];
        self.ask(Ask::Announce, &values).await?;
        Ok(())
    }

    pub(super) async fn replicas(
        &self,
        after: Option<ReplicaId>,
        limit: usize,
    ) -> Result<Vec<ReplicaRow>, StoreError> {
        let mut page = Smallest::new(limit);
        self.scan(Ask::Replicas, |row| {
            let replica = decode_replica(row)?;
            if after.is_none_or(|after| replica.id > after) {
                page.offer(replica.id, replica);
            }
            Ok(())
        })
        .await?;
        Ok(page.into_items().into_iter().map(|(_, row)| row).collect())
    }
}

fn decode_session(mut row: Row) -> Result<SessionRow, StoreError> {
    Ok(SessionRow {
        id: SessionId(present(row.uuid("id")?, "id")?),
        ttl_ms: present(row.int("ttl")?, "ttl")?.cast_unsigned(),
        replica: ReplicaId(present(row.uuid("replica")?, "replica")?),
        epoch: present(row.int("epoch")?, "epoch")?.cast_unsigned(),
        open: present(row.boolean("open")?, "open")?,
        identity: present(row.text("identity")?, "identity")?,
        owner: present(row.text("owner")?, "owner")?,
        created_at_ms: present(row.timestamp("created_at")?, "created_at")?,
    })
}

fn decode_replica(mut row: Row) -> Result<ReplicaRow, StoreError> {
    Ok(ReplicaRow {
        id: ReplicaId(present(row.uuid("id")?, "id")?),
        address: present(row.text("address")?, "address")?,
        peer_address: String::new(),
        version: present(row.text("version")?, "version")?,
        started_at_ms: present(row.timestamp("started_at")?, "started_at")?,
        beat: 0,
        stopped: false,
    })
}
