//! Keys and sessions that nobody asks about, with places of replicas that are down: looked for now and then,
//! each by the replica that it falls to; two that do it at once do no harm.

use std::sync::Arc;
use std::time::Duration;

use super::actor::Msg;
use super::ceded;
use super::inner::Inner;
use super::peers::Presence;
use super::remote::silence_max;
use crate::lock::{Entry, Key, KeyId, TableName};
use crate::store::StoreError;

/// After this, or twenty times what the last one took, all is looked over again.
const EVERY: Duration = Duration::from_secs(10);
const PAGE: usize = 500;

/// Sweeps until this replica is over.
pub(super) async fn run(inner: Arc<Inner>) {
    let mut over = inner.dead.subscribe();
    let mut took = Duration::ZERO;
    loop {
        let jitter = Duration::from_millis(inner.ids.below(2_000));
        let pause = EVERY.max(took * 20) + jitter;
        tokio::select! {
            biased;
            _ = over.wait_for(|over| *over) => return,
            () = inner.clock.sleep(pause) => {}
        }
        let begun = inner.clock.boot();
        if let Err(error) = sweep(&inner).await {
            tracing::debug!(%error, "a sweep was not finished");
        }
        took = inner.clock.boot().saturating_sub(begun);
    }
}

async fn sweep(inner: &Arc<Inner>) -> Result<(), StoreError> {
    for table in &inner.tables {
        let mut after: Option<Key> = None;
        loop {
            let listed = inner.store.list_live(table, after.as_ref(), PAGE).await?;
            let last_page = listed.len() < PAGE;
            after = listed.last().map(|one| one.key.clone());
            for one in listed {
                let orphaned = one
                    .state
                    .entries
                    .iter()
                    .any(|entry| inner.members.presence(entry.home) == Presence::Down);
                let id = KeyId {
                    table: table.clone(),
                    key: one.key,
                };
                let mine = |entry: &Arc<Entry>| entry.home == inner.replica;
                if one.state.entries.iter().any(mine) && !inner.keys.has(&id) {
                    // Of a task that died. The next one reads the state, and sees to what is there.
                    let version = one.state.version;
                    let id = Arc::new(id.clone());
                    let _ = inner.keys.send(inner, &id, Msg::Hint { version });
                }
                if orphaned && falls_here(inner, &id) {
                    // One that has its hands full is found again by the next sweep.
                    let _ = inner.keys.send(inner, &Arc::new(id), Msg::Sweep);
                }
            }
            if last_page {
                break;
            }
        }
    }
    sweep_sessions(inner).await
}

async fn sweep_sessions(inner: &Arc<Inner>) -> Result<(), StoreError> {
    let mut after = None;
    loop {
        let rows = inner.store.list_sessions(after, PAGE).await?;
        let last_page = rows.len() < PAGE;
        after = rows.last().map(|row| row.id);
        for row in rows {
            if row.replica == inner.replica {
                ceded::adopt(inner, row).await;
                continue;
            }
            let is_down = inner.members.presence(row.replica) == Presence::Down;
            let Ok(key) = Key::parse(&row.id.to_string(), usize::MAX) else {
                continue;
            };
            let id = KeyId {
                table: TableName::default_table(),
                key,
            };
            if !is_down || !falls_here(inner, &id) {
                continue;
            }
            if row.open {
                // Closed once nothing was heard of it for its TTL, and so observed for longer.
                let ttl = Duration::from_millis(u64::from(row.ttl_ms));
                let span = silence_max(ttl).saturating_add(EVERY);
                inner.remote.observe_for(row.id, inner.clock.boot(), span);
            } else {
                inner.store.forget_session(row.id).await?;
            }
        }
        if last_page {
            return Ok(());
        }
    }
}

fn falls_here(inner: &Inner, id: &KeyId) -> bool {
    inner.members.affinity(id) == Presence::Here
}
