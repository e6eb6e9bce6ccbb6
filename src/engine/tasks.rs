//! The tasks of a replica beside its keys: alarms, and the requests of replicas that cannot call this one.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use tokio::sync::mpsc;

use super::local::Local;
use super::packing::Packing;
use super::request_answered;
use super::sessions::{self, Sessions};
use super::shell::KeyShell;
use super::time::TICK;
use crate::clock::Clock;
use crate::membership::{NotSure, OpenHandOver};

/// Alarms taken at one tick, at most.
const FIRED_MAX: usize = 10_000;

/// The last look at the alarms: a hanging process sends no heartbeat. Cheap to clone.
#[derive(Clone)]
pub(super) struct LastTick {
    /// In milliseconds of CLOCK_BOOTTIME.
    at_ms: Arc<AtomicU64>,
    clock: Arc<dyn Clock>,
}

impl LastTick {
    /// No tick yet; until the first one the process counts as running.
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        LastTick {
            at_ms: Arc::new(AtomicU64::new(u64::MAX)),
            clock,
        }
    }

    fn note(&self) {
        let now = u64::try_from(self.clock.boot().as_millis()).unwrap_or(u64::MAX);
        self.at_ms.store(now, Ordering::Relaxed);
    }

    /// Whether it is less than `span` ago.
    pub fn is_within(&self, span: Duration) -> bool {
        let at = Duration::from_millis(self.at_ms.load(Ordering::Relaxed));
        self.clock.boot().saturating_sub(at) < span
    }
}

/// Gives keys and sessions their due alarms, and forgets done sessions and their rows, until this replica stops.
pub(super) async fn alarms(shell: Arc<KeyShell>, sessions: Arc<Sessions>, last_tick: LastTick) {
    let local = &shell.local;
    let mut stopping = local.stopping();
    loop {
        tokio::select! {
            biased;
            _ = stopping.wait_for(|stopping| *stopping) => break,
            () = local.clock.sleep(TICK) => {}
        }
        last_tick.note();
        let is_silent = local.membership.is_sure() == Err(NotSure::Silent);
        shell.time.set_silent(is_silent);
        let now = shell.time.now();
        for id in shell.time.due(now, FIRED_MAX) {
            shell.alarm_fired(&id);
        }
        for (session, was_open) in sessions.table.expire(now, FIRED_MAX) {
            sessions::expired(&sessions, session, was_open);
        }
        for session in sessions.table.take_done() {
            sessions.forget_if_done(session);
        }
        sessions.delete_closed();
    }
    if !local.is_alone() {
        keep_ticking(local, &last_tick).await;
    }
}

/// Keeps the heartbeats of a stopping replica alive until its keys are handed over, however long the calls in flight take.
async fn keep_ticking(local: &Local, last_tick: &LastTick) {
    let mut ended = local.ended();
    loop {
        last_tick.note();
        tokio::select! {
            biased;
            _ = ended.wait_for(|ended| *ended) => return,
            () = local.clock.sleep(TICK) => {}
        }
    }
}

/// Packs unused keys until this replica stops.
pub(super) async fn pack(shell: Arc<KeyShell>, packing: Packing, packed: Counter) {
    let local = &shell.local;
    let mut stopping = local.stopping();
    let Packing {
        unused_for,
        every,
        parts,
    } = packing;
    loop {
        tokio::select! {
            biased;
            _ = stopping.wait_for(|stopping| *stopping) => return,
            () = local.clock.sleep(every) => {}
        }
        for cell in shell.keys.some(parts) {
            let now = local.clock.boot();
            let unused_since = now.saturating_sub(unused_for);
            if let Some(mut slot) = cell.slot_in_use() {
                shell.values.expire(&mut slot, now);
            }
            let span = shell.commits.rules(&cell.id.table).keep_after;
            let is_packed = cell.pack(unused_since, shell.time.now(), span);
            packed.inc_by(is_packed.into());
            tokio::task::consume_budget().await;
        }
    }
}

/// Hands keys and sessions over to replicas that request them through the store, until this one has ended.
pub(super) async fn requests(
    shell: Arc<KeyShell>,
    sessions: Arc<Sessions>,
    mut requests: mpsc::Receiver<OpenHandOver>,
) {
    let mut ended = shell.local.ended();
    loop {
        let request = tokio::select! {
            biased;
            _ = ended.wait_for(|ended| *ended) => return,
            request = requests.recv() => request,
        };
        let Some(request) = request else {
            return;
        };
        let (shell, sessions) = (Arc::clone(&shell), Arc::clone(&sessions));
        tokio::spawn(async move { request_answered::answer(&shell, &sessions, request).await });
    }
}
