//! The tasks of a replica beside its keys: alarms, and the requests of replicas that cannot call this one.

use std::sync::Arc;

use tokio::sync::mpsc;

use super::counters::Counters;
use super::packing::Packing;
use super::replica::{Replica, note_moved};
use super::request_answered;
use super::sessions;
use super::time::TICK;
use crate::membership::{NotSure, OpenHandOver};

/// How many alarms are taken at one tick.
const FIRED_MAX: usize = 10_000;

/// Gives keys and sessions the alarms that are due, and forgets sessions that are done, until this replica stops.
pub(super) async fn alarms(replica: Arc<Replica>) {
    let mut stopping = replica.stopping.subscribe();
    loop {
        tokio::select! {
            biased;
            _ = stopping.wait_for(|stopping| *stopping) => break,
            () = replica.clock.sleep(TICK) => {}
        }
        note_moved(&replica.moved, &*replica.clock);
        let is_silent = replica.membership.is_sure() == Err(NotSure::Silent);
        replica.time.set_silent(is_silent);
        let now = replica.time.now();
        for id in replica.time.due(now, FIRED_MAX) {
            replica.alarm_fired(&id);
        }
        for (session, was_open) in replica.sessions.table.expire(now, FIRED_MAX) {
            sessions::expired(&replica, session, was_open);
        }
        for session in replica.sessions.table.take_done() {
            replica.forget_session_if_done(session);
        }
    }
    if replica.store.cluster.is_some() {
        move_on(replica).await;
    }
}

/// Shows that the runtime moves, for as long as a replica that stops is home to its keys: it sends heartbeats until they
/// were handed over, however long the calls in flight take.
async fn move_on(replica: Arc<Replica>) {
    let mut ended = replica.ended.subscribe();
    let (moved, clock) = (Arc::clone(&replica.moved), Arc::clone(&replica.clock));
    drop(replica);
    loop {
        note_moved(&moved, &*clock);
        tokio::select! {
            biased;
            _ = ended.wait_for(|ended| *ended) => return,
            () = clock.sleep(TICK) => {}
        }
    }
}

/// Packs the keys to which nothing happens, until this replica stops.
pub(super) async fn pack(replica: Arc<Replica>) {
    let mut stopping = replica.stopping.subscribe();
    let Packing {
        unused_for,
        every,
        parts,
    } = replica.packing;
    loop {
        tokio::select! {
            biased;
            _ = stopping.wait_for(|stopping| *stopping) => return,
            () = replica.clock.sleep(every) => {}
        }
        for cell in replica.keys.some(parts) {
            let now = replica.clock.boot();
            let unused_since = now.saturating_sub(unused_for);
            if let Some(mut slot) = cell.slot_in_use() {
                replica.values.expire(&mut slot, now);
            }
            let span = replica.commit_rules(&cell.id.table).keep_after;
            let is_packed = cell.pack(unused_since, replica.time.now(), span);
            Counters::add(&replica.counters.packed_keys, usize::from(is_packed));
            tokio::task::consume_budget().await;
        }
    }
}

/// Hands keys over to replicas that ask for them through the store, until this one has ended.
pub(super) async fn requests(replica: Arc<Replica>, mut requests: mpsc::Receiver<OpenHandOver>) {
    let mut ended = replica.ended.subscribe();
    loop {
        let request = tokio::select! {
            biased;
            _ = ended.wait_for(|ended| *ended) => return,
            request = requests.recv() => request,
        };
        let Some(request) = request else {
            return;
        };
        let replica = Arc::clone(&replica);
        tokio::spawn(async move { request_answered::answer(&replica, request).await });
    }
}
