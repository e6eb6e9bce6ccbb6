//! What operators see and do.

use std::sync::Arc;
use std::time::Duration;

use super::Engine;
use super::activity::ReplicaActivity;
use super::actor::{EntryRef, Msg};
use super::api::{Described, DescribedSession, EngineError, ForceReleased, LeaseLeft, Page};
use super::inner::Inner;
use super::leases::{EntryId, LeaseKey};
use super::peers::Peer;
use crate::lock::{Key, KeyId, Liveness, LockRef, ReplicaId, SessionId, State, TableName};
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
        let inner = self.inner()?;
        if !self.shared.tables.contains(table) {
            return Err(EngineError::UnknownTable(table.to_string()));
        }
        let limit = limit.clamp(1, inner.limits.page_size_max);
        let mut after = after.cloned();
        let mut items = Vec::new();
        let mut read_at = 0;
        loop {
            let listed = inner
                .store
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
                    items.push(described(&inner, id, one.state));
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
        let inner = self.inner()?;
        let id = self.id_of(id.clone())?;
        let state = inner.store.load(&id).await.map_err(failed)?;
        Ok(described(
            &inner,
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
        let inner = self.inner()?;
        let id = self.id_of_ref(lock_ref)?;
        let entry_ref = EntryRef::from(lock_ref);
        Self::ask(&inner, &id, |reply| Msg::Force {
            entry_ref,
            by: by.into(),
            why: why.into(),
            reply,
        })
        .await
    }

    /// Lists open sessions, `limit` at most, from the first above `after`.
    pub async fn list_sessions(
        &self,
        after: Option<SessionId>,
        limit: usize,
    ) -> Result<Page<DescribedSession, SessionId>, EngineError> {
        let inner = self.inner()?;
        let limit = limit.clamp(1, inner.limits.page_size_max);
        let rows = inner
            .store
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
                let left = inner.leases.left(&LeaseKey::Session(row.id));
                DescribedSession {
                    left: left.map(|l| l.left),
                    lock_refs: inner.leases.entries_of(row.id),
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
        let inner = self.inner()?;
        let limit = limit.clamp(1, inner.limits.page_size_max);
        let all = inner.store.list_replicas().await.map_err(failed)?;
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
        let inner = self.inner()?;
        let now = inner.clock.boot();
        let (grants, last_minute) = inner.activity.grants(now);
        Ok(ReplicaActivity {
            row: inner.row.clone(),
            counts: self.counts(),
            grants,
            last_minute,
            store: inner.store.counts(),
            busiest: inner.activity.busiest(now, keys_max),
        })
    }

    /// The other replicas that are live, as far as this one knows.
    pub fn live_peers(&self) -> Result<Vec<Peer>, EngineError> {
        Ok(self.inner()?.members.peers())
    }

    /// How much time this process was not running, as far as its leases noticed: that much longer they
    /// lived.
    pub fn time_missed(&self) -> Duration {
        self.inner()
            .map_or(Duration::ZERO, |inner| inner.leases.missed())
    }
}

fn described(inner: &Inner, id: KeyId, state: State) -> Described {
    let shared = Arc::new(id.clone());
    let left = |key: &LeaseKey| -> Option<LeaseLeft> { inner.leases.left(key) };
    let leases = state
        .entries
        .iter()
        .map(|entry| match entry.liveness {
            Liveness::Own { .. } => left(&LeaseKey::Entry(EntryId {
                id: Arc::clone(&shared),
                seq: entry.seq,
            })),
            Liveness::Session(session) => left(&LeaseKey::Session(session)),
        })
        .collect();
    Described { id, state, leases }
}
