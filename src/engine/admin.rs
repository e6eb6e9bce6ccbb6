//! What operators see and do.

use std::sync::Arc;
use std::time::Duration;

use super::activity::ReplicaActivity;
use super::api::{Described, DescribedSession, EngineError, ForceReleased, LeaseLeft, Page};
use super::calls::{Engine, unexpected};
use super::peers::Peer;
use super::replica::Replica;
use crate::key::KeyState;
use crate::key::machine::{Answer, Call, EntryRef};
use crate::lock::{Key, KeyId, Liveness, LockRef, ReplicaId, SessionId, TableName};
use crate::store::{ReplicaRow, StoreError};

/// How many keys one call looks at, at most, to fill its page.
const READ_AT_MAX: usize = 10_000;

fn failed(error: StoreError) -> EngineError {
    EngineError::Unavailable(error.to_string())
}

impl Engine {
    /// Lists keys with live entries, `limit` at most, from the first above `after`. A page may be short,
    /// or empty, before the last one.
    pub async fn list_locks(
        &self,
        table: &TableName,
        after: Option<&Key>,
        key_prefix: &str,
        contended: bool,
        limit: usize,
    ) -> Result<Page<Described, Key>, EngineError> {
        let replica = self.current()?;
        if !self.shared.tables.contains(table) {
            return Err(EngineError::UnknownTable(table.to_string()));
        }
        let limit = limit.clamp(1, replica.limits.page_size_max);
        let mut after = after.cloned();
        let mut items = Vec::new();
        let mut read_at = 0;
        loop {
            let listed = replica
                .store
                .keys
                .list_live(table, after.as_ref(), limit)
                .await
                .map_err(failed)?;
            let last_page = listed.len() < limit;
            read_at += listed.len();
            for one in listed {
                if items.len() == limit {
                    return Ok(Page { items, next: after });
                }
                after = Some(one.key.clone());
                let fits = one.key.as_str().starts_with(key_prefix)
                    && (!contended || one.state.entries.len() > 1);
                if fits {
                    let id = KeyId {
                        table: table.clone(),
                        key: one.key,
                    };
                    items.push(described(&replica, id, one.state));
                }
            }
            if last_page {
                return Ok(Page { items, next: None });
            }
            if items.len() == limit || read_at >= READ_AT_MAX {
                return Ok(Page { items, next: after });
            }
        }
    }

    /// Shows one key, also one that was never locked.
    pub async fn describe(&self, id: &KeyId) -> Result<Described, EngineError> {
        let replica = self.current()?;
        let id = self.id_of(id.clone())?;
        let state = replica.store.keys.load(&id).await.map_err(failed)?;
        Ok(described(
            &replica,
            KeyId::clone(&id),
            state.unwrap_or_default(),
        ))
    }

    /// Ends an entry whatever its holder thinks.
    pub async fn force_release(
        &self,
        lock_ref: &LockRef,
        by: &str,
        why: &str,
    ) -> Result<ForceReleased, EngineError> {
        let replica = self.current()?;
        let id = self.id_of_ref(lock_ref)?;
        let call = Call::Force {
            entry: EntryRef::from(lock_ref),
            by: by.into(),
            why: why.into(),
        };
        match replica.asked(&id, call).await? {
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

    /// Lists open sessions, `limit` at most, from the first above `after`.
    pub async fn list_sessions(
        &self,
        after: Option<SessionId>,
        limit: usize,
    ) -> Result<Page<DescribedSession, SessionId>, EngineError> {
        let replica = self.current()?;
        let limit = limit.clamp(1, replica.limits.page_size_max);
        let rows = replica
            .store
            .sessions
            .list_sessions(after, limit)
            .await
            .map_err(failed)?;
        let next = (rows.len() == limit)
            .then(|| rows.last().map(|row| row.id))
            .flatten();
        let items = rows
            .into_iter()
            .filter(|row| row.open)
            .map(|row| {
                let left = replica.sessions.table.left(row.id, replica.time.now());
                DescribedSession {
                    left: left.map(|(_, left)| left),
                    lock_refs: replica.sessions.table.entries_of(row.id),
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
        let limit = limit.clamp(1, replica.limits.page_size_max);
        let all = match &replica.store.cluster {
            Some(cluster) => cluster.list_replicas().await.map_err(failed)?,
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

    /// What this replica did, with so many of its busiest keys at most.
    pub fn activity(&self, keys_max: usize) -> Result<ReplicaActivity, EngineError> {
        let replica = self.current()?;
        let now = replica.clock.boot();
        let (grants, last_minute) = replica.activity.grants(now);
        Ok(ReplicaActivity {
            row: replica.row.clone(),
            counts: self.counts(),
            grants,
            last_minute,
            store: replica.store.health.counts(),
            busiest: replica.activity.busiest(now, keys_max),
        })
    }

    /// The other replicas that are live, as far as this one knows.
    pub fn live_peers(&self) -> Result<Vec<Arc<Peer>>, EngineError> {
        Ok(self.current()?.membership.peers())
    }

    /// For how long this process was not running, as far as its leases noticed, or might answer nobody: that much longer they
    /// lived.
    pub fn time_missed(&self) -> Duration {
        self.current()
            .map_or(Duration::ZERO, |replica| replica.time.missed())
    }
}

fn described(replica: &Replica, id: KeyId, state: KeyState) -> Described {
    let now = replica.time.now();
    let cell = replica.keys.find(&id);
    let slot = cell.as_ref().map(|cell| cell.slot());
    let leases = state
        .entries
        .iter()
        .map(|entry| {
            let left = match entry.liveness {
                Liveness::Own { .. } => slot.as_ref()?.machine.lease_left(entry.seq, now),
                Liveness::Session(session) => replica.sessions.table.left(session, now),
            };
            left.map(|(ttl, left)| LeaseLeft { ttl, left })
        })
        .collect();
    drop(slot);
    Described { id, state, leases }
}
