//! Keys and sessions that nobody asks about, of replicas that are down (H3), or that name this replica, which does not
//! know them: looked for now and then, each by the replica that it falls to; two that do it at once do no harm.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::StreamExt;

use super::api::EngineError;
use super::peers::Presence;
use super::replica::Replica;
use super::sessions;
use crate::key::machine::Call;
use crate::lock::{Key, KeyId, ReplicaId, TableName};
use crate::log_throttle::LogThrottle;
use crate::store::{SessionRow, StoreError};

/// After this, or twenty times what the last one took, all is looked over again.
const EVERY: Duration = Duration::from_secs(10);
/// How many keys, sessions, and closed sessions one sweep works at; the others are for the next.
const FOUND_MAX: usize = 10_000;
/// How many are worked at, at once.
const AT_ONCE: usize = 32;

/// Sweeps until this replica has ended.
pub(super) async fn run(replica: Arc<Replica>) {
    let mut ended = replica.ended.subscribe();
    let mut took = Duration::ZERO;
    let log_throttle = LogThrottle::default();
    loop {
        let jitter = Duration::from_millis(replica.ids.below(2_000));
        let pause = EVERY.max(took * 20) + jitter;
        tokio::select! {
            biased;
            _ = ended.wait_for(|ended| *ended) => return,
            () = replica.clock.sleep(pause) => {}
        }
        let begun = replica.clock.boot();
        let swept = tokio::select! {
            biased;
            _ = ended.wait_for(|ended| *ended) => return,
            swept = sweep(&replica) => swept,
        };
        if let Err(error) = swept
            && let Some(times) = log_throttle.met(replica.clock.boot(), &error.to_string())
        {
            tracing::warn!(%error, times, "a sweep skipped what it could not read");
        }
        took = replica.clock.boot().saturating_sub(begun);
    }
}

async fn sweep(replica: &Arc<Replica>) -> Result<(), StoreError> {
    let keys = keys(replica).await;
    all_sessions(replica).await.and(keys)
}

/// All tables, also where some cannot be read.
async fn keys(replica: &Arc<Replica>) -> Result<(), StoreError> {
    let mut swept = Ok(());
    let found: Mutex<Vec<(KeyId, ReplicaId)>> = Mutex::default();
    for table in &replica.tables {
        let visit = |key: Key, home: Option<ReplicaId>| {
            let Some(home) = home else {
                return;
            };
            let id = KeyId {
                table: table.clone(),
                key,
            };
            let is_mine = match replica.membership.presence(home) {
                // Of a machine that was lost, or a hand-over that this replica did not hear of.
                Presence::Local => {
                    let cell = replica.keys.find(&id);
                    cell.is_none_or(|cell| cell.is_lost())
                }
                Presence::Down => replica.is_ranked(&id),
                Presence::Live(_) | Presence::Suspected | Presence::Unsure => false,
            };
            if is_mine {
                note(&found, (id, home));
            }
        };
        swept = replica.store.keys.each_live(table, &visit).await.and(swept);
    }
    let found = found.into_inner().unwrap_or_else(PoisonError::into_inner);
    futures_util::stream::iter(found)
        .for_each_concurrent(AT_ONCE, |(id, from)| async move {
            let id = Arc::new(id);
            if let Err(error) = replica.asked(&id, Call::TakeOver { from }).await {
                tracing::debug!(key = %id, %error, "a key could not be taken over");
            }
        })
        .await;
    swept
}

async fn all_sessions(replica: &Arc<Replica>) -> Result<(), StoreError> {
    let store = &replica.store.sessions;
    let found: Mutex<Vec<SessionRow>> = Mutex::default();
    let swept = store
        .each_session(&|row| {
            let table = &replica.sessions.table;
            if row.replica != replica.id && table.is_kept(row.id) {
                // Whatever came between: its row says who keeps it.
                table.moved(&row, replica.clock.boot());
            }
            let is_mine = match replica.membership.presence(row.replica) {
                Presence::Local => row.open && !table.is_kept(row.id),
                Presence::Down => falls_here(replica, &row),
                Presence::Live(_) | Presence::Suspected | Presence::Unsure => false,
            };
            if is_mine {
                note(&found, row);
            }
        })
        .await;
    let found = found.into_inner().unwrap_or_else(PoisonError::into_inner);
    futures_util::stream::iter(found)
        .for_each_concurrent(AT_ONCE, |row| async move {
            let session = row.id;
            let done = match (row.open, row.replica == replica.id) {
                (true, true) => sessions::adopt_row(replica, row).await,
                (true, false) => sessions::take_over(replica, session, row.replica).await,
                (false, _) => {
                    let forgotten = store.forget_session(session).await;
                    forgotten.map_err(EngineError::of_store)
                }
            };
            if let Err(error) = done {
                tracing::debug!(%session, %error, "a session of a replica that is down is left for later");
            }
        })
        .await;
    swept
}

fn falls_here(replica: &Replica, row: &SessionRow) -> bool {
    let Ok(key) = Key::parse(&row.id.to_string(), usize::MAX) else {
        return false;
    };
    let id = KeyId {
        table: TableName::default_table(),
        key,
    };
    replica.is_ranked(&id)
}

/// Notes one more, if there is room.
fn note<T>(noted: &Mutex<Vec<T>>, one: T) {
    let mut noted = noted.lock().unwrap_or_else(PoisonError::into_inner);
    if noted.len() < FOUND_MAX {
        noted.push(one);
    }
}
