//! The view of operators on sessions and replicas, and their actions. Their view on keys is in `shown`.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::mpsc;

use super::activity::ReplicaActivity;
use super::api::{DescribedSession, EngineError, ForceReleased, Page};
use super::calls::{Engine, unexpected};
use super::peers::Peer;
use crate::key::machine::{Answer, Call};
use crate::lock::{EntryName, ReplicaId, SessionId};
use crate::store::{ReplicaRow, StoreError};

/// A backup, part by part.
pub struct BackupParts(mpsc::Receiver<Result<Bytes, StoreError>>);

impl BackupParts {
    /// The next part; `None` after the last.
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, EngineError>>> {
        let part = self.0.poll_recv(cx);
        part.map(|part| part.map(|part| part.map_err(EngineError::of_store)))
    }
}

impl Engine {
    /// Ends an entry by force.
    pub async fn force_release(
        &self,
        name: &EntryName,
        by: &str,
        why: &str,
    ) -> Result<ForceReleased, EngineError> {
        let replica = self.current()?;
        let id = self.id_of(name.key_id())?;
        let call = Call::Force {
            seq: name.seq,
            by: by.into(),
            why: why.into(),
        };
        match replica.shell.asked(&id, call).await? {
            Answer::Forced {
                already,
                was_holder,
            } => Ok(ForceReleased {
                already_released: already,
                was_holder,
            }),
            other => Err(unexpected(&other)),
        }
    }

    /// A backup of the whole store as it is now; `None` if the store makes none.
    pub async fn back_up(&self) -> Result<Option<BackupParts>, EngineError> {
        let replica = self.current()?;
        let Some(backups) = &replica.store.backups else {
            return Ok(None);
        };
        let parts = backups.back_up().await;
        Ok(Some(BackupParts(parts.map_err(EngineError::of_store)?)))
    }

    /// Lists open sessions, `limit` at most, from the first above `after`.
    pub async fn list_sessions(
        &self,
        after: Option<SessionId>,
        limit: usize,
    ) -> Result<Page<DescribedSession, SessionId>, EngineError> {
        let replica = self.current()?;
        let limit = limit.clamp(1, self.shared.limits.page_size_max);
        let rows = replica
            .store
            .sessions
            .list_sessions(after, limit)
            .await
            .map_err(EngineError::of_store)?;
        let next = (rows.len() == limit)
            .then(|| rows.last().map(|row| row.id))
            .flatten();
        let (table, now) = (&replica.sessions.table, replica.sessions.time.now());
        let items = rows
            .into_iter()
            .filter(|row| row.open)
            .map(|row| {
                let left = table.left(row.id, now);
                DescribedSession {
                    left: left.map(|(_, left)| left),
                    lock_refs: table.entries_of(row.id),
                    row,
                }
            })
            .collect();
        Ok(Page { items, next })
    }

    /// Lists replicas, `limit` at most, from the first above `after`.
    pub async fn list_replicas(
        &self,
        after: Option<ReplicaId>,
        limit: usize,
    ) -> Result<Page<ReplicaRow, ReplicaId>, EngineError> {
        let replica = self.current()?;
        let limit = limit.clamp(1, self.shared.limits.page_size_max);
        let all = match &replica.store.cluster {
            Some(cluster) => cluster
                .list_replicas()
                .await
                .map_err(EngineError::of_store)?,
            None => vec![replica.row.clone()],
        };
        let above = all
            .into_iter()
            .filter(|row| after.is_none_or(|after| row.id > after));
        let items: Vec<ReplicaRow> = above.take(limit).collect();
        let next = (items.len() == limit)
            .then(|| items.last().map(|row| row.id))
            .flatten();
        Ok(Page { items, next })
    }

    /// The activity of this replica, with at most `keys_max` of its busiest keys.
    pub fn activity(&self, keys_max: usize) -> Result<ReplicaActivity, EngineError> {
        let replica = self.current()?;
        let now = replica.local.clock.boot();
        Ok(ReplicaActivity {
            row: replica.row.clone(),
            counts: self.counts(),
            grants: self.shared.metrics.grants(),
            last_minute: self.shared.activity.last_minute(now),
            store: replica.store.health.counts(),
            busiest: self.shared.activity.busiest(now, keys_max),
        })
    }

    /// The other live replicas, as far as this one knows.
    pub fn live_peers(&self) -> Result<Vec<Arc<Peer>>, EngineError> {
        Ok(self.current()?.local.membership.peers())
    }

    /// The time that the leases did not count, because this process did not run, or was silent.
    pub fn time_missed(&self) -> Duration {
        self.current()
            .map_or(Duration::ZERO, |replica| replica.shell.time.missed())
    }
}
