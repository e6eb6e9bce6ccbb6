//! Keys and sessions that nobody asks about, with entries of replicas that are down: looked for now and then,
//! each by the replica that it falls to; two that do it at once do no harm.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::actor::Msg;
use super::handed_over;
use super::inner::Inner;
use super::log_throttle::LogThrottle;
use super::peers::Presence;
use super::remote::silence_max;
use crate::lock::{Entry, Key, KeyId, TableName};
use crate::store::{Listed, StoreError};

/// After this, or twenty times what the last one took, all is looked over again.
const EVERY: Duration = Duration::from_secs(10);
/// How many closed sessions one sweep forgets; the others are for the next.
const FORGOTTEN_MAX: usize = 10_000;
/// How many sessions that name this replica without its knowing of them one sweep takes in.
const TAKEN_IN_MAX: usize = 1_000;

/// Sweeps until this replica is fenced.
pub(super) async fn run(inner: Arc<Inner>) {
    let mut ended = inner.fenced.subscribe();
    let mut took = Duration::ZERO;
    let log_throttle = LogThrottle::default();
    loop {
        let jitter = Duration::from_millis(inner.ids.below(2_000));
        let pause = EVERY.max(took * 20) + jitter;
        tokio::select! {
            biased;
            _ = ended.wait_for(|ended| *ended) => return,
            () = inner.clock.sleep(pause) => {}
        }
        let begun = inner.clock.boot();
        let swept = tokio::select! {
            biased;
            _ = ended.wait_for(|ended| *ended) => return,
            swept = sweep(&inner) => swept,
        };
        if let Err(error) = swept
            && let Some(times) = log_throttle.met(inner.clock.boot(), &error.to_string())
        {
            tracing::warn!(%error, times, "a sweep skipped what it could not read");
        }
        took = inner.clock.boot().saturating_sub(begun);
    }
}

async fn sweep(inner: &Arc<Inner>) -> Result<(), StoreError> {
    let keys = sweep_keys(inner).await;
    sweep_sessions(inner).await.and(keys)
}

/// All tables, also where some cannot be read.
async fn sweep_keys(inner: &Arc<Inner>) -> Result<(), StoreError> {
    let mut swept = Ok(());
    for table in &inner.tables {
        let look = |one: Listed| {
            let mut homes = one.state.entries.iter().map(|entry| entry.home);
            let orphaned = homes.any(|home| inner.members.presence(home) == Presence::Down);
            let id = KeyId {
                table: table.clone(),
                key: one.key,
            };
            let mine = |entry: &Arc<Entry>| entry.home == inner.replica;
            if one.state.entries.iter().any(mine) && !inner.keys.has(&id) {
                // Of a task that crashed. The next one reads the state, and sees to what is there.
                let version = one.state.version;
                let id = Arc::new(id.clone());
                let _ = inner.keys.send(inner, &id, Msg::Hint { version });
            }
            if orphaned && falls_here(inner, &id) {
                // One that has its hands full is found again by the next sweep.
                let _ = inner.keys.send(inner, &Arc::new(id), Msg::Sweep);
            }
        };
        swept = inner.store.each_live(table, &look).await.and(swept);
    }
    swept
}

async fn sweep_sessions(inner: &Arc<Inner>) -> Result<(), StoreError> {
    let closed = Mutex::new(Vec::new());
    let unknown = Mutex::new(Vec::new());
    let swept = inner
        .store
        .each_session(&|row| {
            if row.replica == inner.replica {
                if handed_over::is_unknown(inner, &row) {
                    note(&unknown, TAKEN_IN_MAX, row);
                }
                return;
            }
            let is_down = inner.members.presence(row.replica) == Presence::Down;
            let Ok(key) = Key::parse(&row.id.to_string(), usize::MAX) else {
                return;
            };
            let id = KeyId {
                table: TableName::default_table(),
                key,
            };
            if !is_down || !falls_here(inner, &id) {
                return;
            }
            if row.open {
                // Closed once nothing was learned of it for its TTL, and so observed for longer.
                let span = silence_max(row.ttl()).saturating_add(EVERY);
                inner.remote.observe_for(row.id, inner.clock.boot(), span);
                return;
            }
            note(&closed, FORGOTTEN_MAX, row.id);
        })
        .await;
    for row in unknown.into_inner().unwrap_or_else(PoisonError::into_inner) {
        handed_over::adopt(inner, row).await;
    }
    for id in closed.into_inner().unwrap_or_else(PoisonError::into_inner) {
        inner.store.forget_session(id).await?;
    }
    swept
}

/// Notes one more, if there is room.
fn note<T>(noted: &Mutex<Vec<T>>, max: usize, one: T) {
    let mut noted = noted.lock().unwrap_or_else(PoisonError::into_inner);
    if noted.len() < max {
        noted.push(one);
    }
}

fn falls_here(inner: &Inner, id: &KeyId) -> bool {
    inner.members.affinity(id) == Presence::Local
}
