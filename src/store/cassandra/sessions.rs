//! Sessions, changed by lightweight transactions on their epoch.

use async_trait::async_trait;
use fermata_cassandra::{Fault, Row, Value, present};

use super::CassandraStore;
use super::scan::{ALL, Smallest};
use super::statements::Cql;
use crate::lock::{ReplicaId, SessionId};
use crate::store::{SessionRow, SessionStore, SessionSwap, StoreError};

#[async_trait]
impl SessionStore for CassandraStore {
    async fn load_session(&self, id: SessionId) -> Result<Option<SessionRow>, StoreError> {
        self.session(id).await
    }

    async fn swap_session(&self, expected: u32, row: &SessionRow) -> SessionSwap {
        match self.change_session(expected, row).await {
            Ok(true) => SessionSwap::Applied,
            Ok(false) => match self.session(row.id).await {
                Ok(session) => SessionSwap::Conflict(session),
                Err(error) => SessionSwap::NotStarted(error),
            },
            Err(fault) if fault.is_unknown() => SessionSwap::Unknown(fault.into()),
            Err(fault) => SessionSwap::NotStarted(fault.into()),
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
        self.sessions(after, limit).await
    }

    async fn each_session(&self, visit: &(dyn Fn(SessionRow) + Sync)) -> Result<(), StoreError> {
        self.all_sessions(visit).await
    }
}

impl CassandraStore {
    /// A session. Read at SERIAL, so that a change of unknown outcome is settled by it.
    async fn session(&self, id: SessionId) -> Result<Option<SessionRow>, StoreError> {
        let rows = self.ask(Cql::LoadSession, &[Value::Uuid(id.0)]).await?;
        rows.into_iter().next().map(decode_session).transpose()
    }

    async fn change_session(&self, expected: u32, row: &SessionRow) -> Result<bool, Fault> {
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
        if expected == 0 {
            return self.ask_if(Cql::OpenSession, &values).await;
        }
        values.push(Value::Int(expected.cast_signed()));
        self.ask_if(Cql::SwapSession, &values).await
    }

    async fn sessions(
        &self,
        after: Option<SessionId>,
        limit: usize,
    ) -> Result<Vec<SessionRow>, StoreError> {
        let mut page = Smallest::new(limit);
        let decode = |row| decode_session(row).map(Some);
        self.scan_readable(Cql::Sessions, ALL, decode, |session| {
            if after.is_none_or(|after| session.id > after) {
                page.offer(session.id, session);
            }
        })
        .await?;
        Ok(page.into_items().into_iter().map(|(_, row)| row).collect())
    }

    async fn all_sessions(&self, visit: &(dyn Fn(SessionRow) + Sync)) -> Result<(), StoreError> {
        let decode = |row| decode_session(row).map(Some);
        self.each_range(|range| self.scan_readable(Cql::Sessions, range, decode, visit))
            .await
    }
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
