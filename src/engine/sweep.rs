//! The sweep: now and then a replica looks for keys and sessions of replicas that are down (H3), and takes over those for which
//! it ranks first. It also takes over keys and sessions whose rows name this replica, but which its memory lacks. Two sweeps at
//! once do no harm.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use parking_lot::Mutex;

use super::limits::STORE_OPS_AT_ONCE;
use super::local::Local;
use super::peers::{Presence, Ranked};
use super::sessions::{self, Sessions};
use super::shell::KeyShell;
use crate::key::machine::Call;
use crate::lock::{Key, KeyId, ReplicaId, TableName};
use crate::log_throttle::LogThrottle;
use crate::store::{KeyStore, SessionRow, StoreError};

/// The shortest pause between sweeps; twenty times the length of the last one if that is longer.
const EVERY: Duration = Duration::from_secs(10);
/// Keys that one sweep works on, and sessions likewise; the next one finds the others.
const FOUND_MAX: usize = 10_000;

/// The subjects of a sweep.
pub(super) struct Sweep {
    pub shell: Arc<KeyShell>,
    pub sessions: Arc<Sessions>,
    pub keys: Arc<dyn KeyStore>,
    pub tables: BTreeSet<TableName>,
}

impl Sweep {
    /// Sweeps until this replica stops, which would have to hand everything over again.
    pub async fn run(self) {
        let local = &self.shell.local;
        let mut stopping = local.stopping();
        let mut took = Duration::ZERO;
        let log_throttle = LogThrottle::default();
        loop {
            let jitter = Duration::from_millis(local.ids.below(2_000));
            let pause = EVERY.max(took * 20) + jitter;
            tokio::select! {
                biased;
                _ = stopping.wait_for(|stopping| *stopping) => return,
                () = local.clock.sleep(pause) => {}
            }
            let begun = local.clock.boot();
            let swept = tokio::select! {
                biased;
                _ = stopping.wait_for(|stopping| *stopping) => return,
                swept = self.sweep() => swept,
            };
            if let Err(error) = swept
                && let Some(times) = log_throttle.met(local.clock.boot(), &error.to_string())
            {
                tracing::warn!(%error, times, "a sweep could not read some rows; the next one retries");
            }
            took = local.clock.boot().saturating_sub(begun);
        }
    }

    async fn sweep(&self) -> Result<(), StoreError> {
        let keys = self.all_keys().await;
        all_sessions(&self.sessions).await.and(keys)
    }

    /// All tables, even if some cannot be read.
    async fn all_keys(&self) -> Result<(), StoreError> {
        let mut swept = Ok(());
        let shell = &self.shell;
        let found: Mutex<Vec<(KeyId, ReplicaId)>> = Mutex::default();
        for table in &self.tables {
            let visit = |key: Key, home: Option<ReplicaId>| {
                let Some(home) = home else {
                    return;
                };
                let id = KeyId {
                    table: table.clone(),
                    key,
                };
                let is_mine = match shell.local.presence(home) {
                    // A lost machine, or a hand-over to this replica that it missed.
                    Presence::Local => {
                        let cell = shell.keys.find(&id);
                        cell.is_none_or(|cell| cell.is_lost())
                    }
                    Presence::Down => shell.local.is_ranked(&id),
                    Presence::Live(_) | Presence::Suspected | Presence::Unsure => false,
                };
                if is_mine {
                    note(&found, (id, home));
                }
            };
            swept = self.keys.each_live(table, &visit).await.and(swept);
        }
        let found = found.into_inner();
        futures_util::stream::iter(found)
            .for_each_concurrent(STORE_OPS_AT_ONCE, |(id, from)| async move {
                let id = Arc::new(id);
                if let Err(error) = shell.asked(&id, Call::TakeOver { from }).await {
                    tracing::debug!(key = %id, %error, "could not take a key over");
                }
            })
            .await;
        swept
    }
}

async fn all_sessions(sessions: &Arc<Sessions>) -> Result<(), StoreError> {
    let local = &sessions.local;
    let rows = &sessions.rows;
    let found: Mutex<Vec<SessionRow>> = Mutex::default();
    let swept = rows
        .each_session(&|row| {
            let table = &sessions.table;
            if row.replica != local.id && table.is_kept(row.id) {
                // The row names the keeper, whatever happened since.
                table.moved(&row, local.clock.boot());
            }
            let is_mine = match local.presence(row.replica) {
                Presence::Local => row.open && !table.is_kept(row.id),
                Presence::Down => {
                    let is_kept = !row.open && sessions.closed_rows.has(row.id);
                    falls_here(local, &row) && !is_kept
                }
                Presence::Live(_) | Presence::Suspected | Presence::Unsure => false,
            };
            if is_mine {
                note(&found, row);
            }
        })
        .await;
    let found = found.into_inner();
    futures_util::stream::iter(found)
        .for_each_concurrent(STORE_OPS_AT_ONCE, |row| async move {
            let session = row.id;
            let done = match (row.open, row.replica == local.id) {
                (true, true) => sessions::adopt_row(sessions, row).await,
                (true, false) => sessions::take_over(sessions, session, row.replica).await,
                (false, _) => {
                    sessions.keep_closed(session, row.ttl());
                    Ok(())
                }
            };
            if let Err(error) = done {
                tracing::debug!(%session, %error, "could not take over a session of a down replica; retrying later");
            }
        })
        .await;
    swept
}

fn falls_here(local: &Local, row: &SessionRow) -> bool {
    local.ranked(row.id.name_hash()) == Ranked::Local
}

/// Notes one more if there is room.
fn note<T>(noted: &Mutex<Vec<T>>, one: T) {
    let mut noted = noted.lock();
    if noted.len() < FOUND_MAX {
        noted.push(one);
    }
}
