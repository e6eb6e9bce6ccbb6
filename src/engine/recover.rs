//! The take-over of the keys and sessions of the previous process, in a store that only one process uses. Every older replica is
//! gone (H3).
//!
//! Sessions are read before the first call, and each has a whole TTL from then on. A key is taken over by its first call, so the
//! time of a start does not grow with the number of keys. A task takes over the keys without calls, so that the entries of gone
//! holders end.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;

use super::api::EngineError;
use super::limits::STORE_OPS_AT_ONCE;
use super::sessions::Sessions;
use super::shell::KeyShell;
use crate::key::machine::Call;
use crate::lock::{KeyId, ReplicaId, TableName};
use crate::log_throttle::LogThrottle;
use crate::store::{KeyStore, StoreError};

const PAGE: usize = 1_000;
/// The shortest pause after a pass that left keys; twenty times the length of the pass if that is longer.
const AGAIN_AFTER: Duration = Duration::from_secs(60);
/// The first pause before another look at closed sessions with entries; each pause doubles.
const FORGET_AGAIN_MIN: Duration = Duration::from_millis(100);

fn failed(error: StoreError) -> EngineError {
    EngineError::Unavailable(error.to_string())
}

/// Keeps all open sessions, and returns their number.
///
/// Their rows are not written: they name a process that is gone, and only this one can be their keeper
/// ([`super::sessions::OwnRows`]). The epoch guards every later change of a row.
pub(super) async fn keep_sessions(sessions: &Sessions) -> Result<usize, EngineError> {
    let mut open = Vec::new();
    let mut after = None;
    loop {
        let rows = sessions.rows.list_sessions(after, PAGE).await;
        let rows = rows.map_err(failed)?;
        after = rows.last().map(|row| row.id);
        let last_page = rows.len() < PAGE;
        open.extend(rows.into_iter().filter(|row| row.open));
        if last_page {
            break;
        }
    }
    // After the reads, however long they took: each session has its whole TTL from here on.
    let (table, now) = (&sessions.table, sessions.time.now());
    for row in &open {
        // A lowered limit ends no session.
        table.keep(row, now, table.reserve_own(&row.identity));
        table.note_inherited(row.id);
    }
    Ok(open.len())
}

/// The keys of the last process that may get no call.
pub(super) struct LeftKeys {
    pub shell: Arc<KeyShell>,
    pub sessions: Arc<Sessions>,
    pub keys: Arc<dyn KeyStore>,
    pub tables: BTreeSet<TableName>,
}

/// The outcome of one pass.
#[derive(Default)]
struct Pass {
    taken: usize,
    /// The keys without room, and the unreadable ones.
    left: usize,
    /// The first of them, and the reason.
    first_left: Option<(String, String)>,
}

impl Pass {
    fn left(&mut self, what: impl FnOnce() -> String, why: &dyn fmt::Display) {
        self.left += 1;
        if self.first_left.is_none() {
            self.first_left = Some((what(), why.to_string()));
        }
    }
}

impl LeftKeys {
    /// Takes all keys over, however long that takes, or until this replica stops. Then closed sessions can be forgotten: before,
    /// a key that is not taken over yet may have entries of one.
    pub async fn run(self) {
        let local = &self.shell.local;
        let mut stopping = local.stopping();
        let work = async {
            let mut taken = 0;
            let begun = local.clock.boot();
            loop {
                let pass_begun = local.clock.boot();
                let pass = self.pass().await;
                taken += pass.taken;
                let Some((first, why)) = pass.first_left else {
                    break;
                };
                tracing::warn!(
                    keys = pass.left,
                    first,
                    why,
                    "could not take over all keys of the last process; the next call to each does"
                );
                let took = local.clock.boot().saturating_sub(pass_begun);
                local.clock.sleep(AGAIN_AFTER.max(took * 20)).await;
            }
            let took = local.clock.boot().saturating_sub(begun);
            if taken > 0 {
                tracing::info!(keys = taken, ?took, "took over the remaining keys");
            }
            local.recovered.send_replace(true);
            self.forget_closed().await;
        };
        tokio::select! {
            biased;
            _ = stopping.wait_for(|stopping| *stopping) => {}
            () = work => {}
        }
    }

    async fn pass(&self) -> Pass {
        let mut pass = Pass::default();
        for table in &self.tables {
            let mut tries = 0;
            let mut after = None;
            let log_throttle = LogThrottle::default();
            loop {
                let clock = &self.shell.local.clock;
                let begun = clock.boot();
                let listed = self.keys.list_live(table, "", after.as_ref(), PAGE).await;
                let listed = match listed {
                    Ok(listed) => listed,
                    // The other keys of that table are taken over by their next calls.
                    Err(error @ StoreError::Damaged(_)) => {
                        pass.left(|| format!("table {table}"), &error);
                        break;
                    }
                    Err(error) => {
                        if let Some(times) = log_throttle.met(clock.boot(), &error.to_string()) {
                            tracing::warn!(%table, %error, times, "keys could not be listed; retrying");
                        }
                        self.shell.local.back_off(tries).await;
                        tries += 1;
                        continue;
                    }
                };
                let last_page = listed.len() < PAGE;
                after = listed.last().map(|one| one.key.clone()).or(after);
                let keys = listed.into_iter().map(|one| {
                    let home = one.state.home;
                    let from = home.map_or(self.shell.local.id, |home| home.replica);
                    let (table, key) = (table.clone(), one.key);
                    (Arc::new(KeyId { table, key }), from)
                });
                // A key that was called meanwhile is here already, unless its first call failed.
                let is_here = |id: &KeyId| {
                    self.shell
                        .keys
                        .find(id)
                        .is_some_and(|cell| cell.is_served())
                };
                let unknown = keys.filter(|(id, _)| !is_here(id));
                let mut taken = futures_util::stream::iter(unknown)
                    .map(|(id, from)| self.take(id, from))
                    .buffer_unordered(STORE_OPS_AT_ONCE);
                while let Some(took) = taken.next().await {
                    match took {
                        Ok(()) => pass.taken += 1,
                        Err((id, error)) => pass.left(|| id.to_string(), &error),
                    }
                }
                if last_page {
                    break;
                }
                // Calls come first: this takes half of the time at most.
                clock.sleep(clock.boot().saturating_sub(begun)).await;
            }
        }
        pass
    }

    async fn take(&self, id: Arc<KeyId>, from: ReplicaId) -> Result<(), (Arc<KeyId>, EngineError)> {
        match self.shell.asked(&id, Call::TakeOver { from }).await {
            Ok(_) => Ok(()),
            Err(error) => Err((id, error)),
        }
    }

    /// Forgets the rows of closed sessions once they have no entries.
    async fn forget_closed(&self) {
        let mut pause = FORGET_AGAIN_MIN;
        while !self.forget_some().await {
            self.shell.local.clock.sleep(pause).await;
            pause = (pause * 2).min(AGAIN_AFTER);
        }
    }

    /// Forgets those without entries now. True if these were all.
    async fn forget_some(&self) -> bool {
        let sessions = &self.sessions;
        let (mut after, mut all) = (None, true);
        loop {
            let rows = match sessions.rows.list_sessions(after, PAGE).await {
                Ok(rows) => rows,
                Err(error) => {
                    tracing::debug!(%error, "could not forget closed sessions; retrying later");
                    return false;
                }
            };
            after = rows.last().map(|row| row.id);
            let last_page = rows.len() < PAGE;
            for row in rows.into_iter().filter(|row| !row.open) {
                sessions.forget_if_done(row.id);
                match sessions.table.knows(row.id) {
                    true => all = false,
                    false => sessions.keep_closed(row.id, row.ttl()),
                }
            }
            if last_page {
                return all;
            }
        }
    }
}
