//! The session rows of a store with one process.

use std::sync::Arc;

use async_trait::async_trait;

use crate::lock::{ReplicaId, SessionId};
use crate::store::{SessionRow, SessionStore, SessionSwap, StoreError};

/// Shows each row as this replica's, because the named one was an earlier process. So a start need not write the rows.
pub(in super::super) struct OwnRows {
    pub rows: Arc<dyn SessionStore>,
    pub replica: ReplicaId,
}

impl OwnRows {
    fn own(&self, row: SessionRow) -> SessionRow {
        let replica = self.replica;
        SessionRow { replica, ..row }
    }
}

#[async_trait]
impl SessionStore for OwnRows {
    async fn load_session(&self, id: SessionId) -> Result<Option<SessionRow>, StoreError> {
        let row = self.rows.load_session(id).await?;
        Ok(row.map(|row| self.own(row)))
    }

    async fn swap_session(&self, expected: u32, row: &SessionRow) -> SessionSwap {
        match self.rows.swap_session(expected, row).await {
            SessionSwap::Conflict(found) => {
                SessionSwap::Conflict(found.map(|found| self.own(found)))
            }
            other => other,
        }
    }

    async fn forget_session(&self, id: SessionId) -> Result<(), StoreError> {
        self.rows.forget_session(id).await
    }

    async fn list_sessions(
        &self,
        after: Option<SessionId>,
        limit: usize,
    ) -> Result<Vec<SessionRow>, StoreError> {
        let rows = self.rows.list_sessions(after, limit).await?;
        Ok(rows.into_iter().map(|row| self.own(row)).collect())
    }

    async fn each_session(&self, visit: &(dyn Fn(SessionRow) + Sync)) -> Result<(), StoreError> {
        self.rows.each_session(&|row| visit(self.own(row))).await
    }
}
