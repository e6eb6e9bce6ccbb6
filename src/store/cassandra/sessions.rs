//! Sessions, changed by lightweight transactions on their epoch.

use async_trait::async_trait;
use fermata_cassandra::{Row, Value, present};

use super::CassandraStore;
use super::scan::{ALL, Smallest};
use super::statements::Cql;
use crate::lock::{ReplicaId, SessionId};
use crate::store::{SessionRow, SessionStore, SessionSwap, StoreError};

#[async_trait]
impl SessionStore for CassandraStore {
    /// Read at SERIAL, so that a change of unknown outcome is settled by it.
    async fn load_session(&self, id: SessionId) -> Result<Option<SessionRow>, StoreError> {
        let rows = self.ask(Cql::LoadSession, &[Value::Uuid(id.0)]).await?;
        rows.into_iter().next().map(decode_session).transpose()
    }

    async fn swap_session(&self, expected: u32, row: &SessionRow) -> SessionSwap {
        let mut values = vec![
            Value::Int(row.ttl_ms.cast_signed()),
            Value::Int(row.disconnect_grace_ms.cast_signed()),
            Value::Uuid(row.replica.0),
            Value::Int(row.epoch.cast_signed()),
            Value::Boolean(row.open),
            Value::text(&row.identity),
            Value::text(&row.owner),
            Value::Timestamp(row.created_at_ms),
            Value::Uuid(row.id.0),
        ];
        let ask = match expected {
            0 => Cql::OpenSession,
            epoch => {
                values.push(Value::Int(epoch.cast_signed()));
                Cql::SwapSession
            }
        };
        match self.ask_if(ask, &values).await {
            Ok(true) => SessionSwap::Applied,
            Ok(false) => match self.load_session(row.id).await {
                Ok(session) => SessionSwap::Conflict(session),
                Err(error) => SessionSwap::NotStarted(error),
            },
            Err(fault) => fault.into(),
        }
    }

    async fn forget_session(&self, id: SessionId) -> Result<(), StoreError> {
        let values = [Value::Uuid(id.0), Value::Boolean(false)];
        self.ask_if(Cql::ForgetSession, &values).await?;
        Ok(())
    }

    async fn list_sessions(
        &self,
        after: Option<SessionId>,
        limit: usize,
    ) -> Result<Vec<SessionRow>, StoreError> {
        let mut page = Smallest::new(limit);
        self.each_readable(Cql::Sessions, ALL, listed, |session| {
            if after.is_none_or(|after| session.id > after) {
                page.offer(session.id, session);
            }
        })
        .await?;
        Ok(page.kept.into_values().collect())
    }

    async fn each_session(&self, visit: &(dyn Fn(SessionRow) + Sync)) -> Result<(), StoreError> {
        self.each_range(|range| self.each_readable(Cql::Sessions, range, listed, visit))
            .await
    }
}

fn listed(row: Row) -> Result<Option<SessionRow>, StoreError> {
    decode_session(row).map(Some)
}

pub(super) fn decode_session(mut row: Row) -> Result<SessionRow, StoreError> {
    Ok(SessionRow {
        id: SessionId(present(row.uuid("id")?, "id")?),
        ttl_ms: present(row.int("ttl")?, "ttl")?.cast_unsigned(),
        disconnect_grace_ms: present(row.int("disconnect_grace")?, "disconnect_grace")?
            .cast_unsigned(),
        replica: ReplicaId(present(row.uuid("replica")?, "replica")?),
        epoch: present(row.int("epoch")?, "epoch")?.cast_unsigned(),
        open: present(row.boolean("open")?, "open")?,
        identity: present(row.text("identity")?, "identity")?,
        owner: present(row.text("owner")?, "owner")?,
        created_at_ms: present(row.timestamp("created_at")?, "created_at")?,
    })
}
