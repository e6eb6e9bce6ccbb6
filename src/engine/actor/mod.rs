//! The actor of one key: the only thing on this replica that changes the key, in one task.
//!
//! It takes calls, collects commands while a compare-and-swap is in flight and commits them together in
//! the next one (group commit), remembers what the fence of its holder has given out (I3, I10), and wakes
//! whoever waits. What the rules are it asks [`crate::lock::decide`].
//!
//! - `calls`: what comes in, checked against the state
//! - `intent`: what the next compare-and-swap shall do, and how it becomes commands
//! - `commit`: the load or compare-and-swap in flight, and what comes of it
//! - `outcome`: what callers learn of a batch whose outcomes stand
//! - `holding`: what the home of a holder remembers of its fence
//! - `latest`: the value, while this home knows it without reading
//! - `adopt`: what a new committed state means for leases, holder, waits and watches
//! - `critical`: reads and writes of the holder
//! - `sync`: granting the lock to a holder (I7)
//! - `remote_entries`: what other replicas have to do with the key (I8, I10)
//! - `hand_over`: entries of this home that other replicas ask for (I10)
//! - `arrival`: what a call says by coming, whatever becomes of it
//! - `take_over_requests`: entries of a silent home that callers here ask for
//! - `notify`: what other replicas are told of it
//! - `idle_snapshot`: what is left of it while there is nothing to do

mod adopt;
mod arrival;
mod calls;
mod commit;
mod critical;
mod hand_over;
mod holding;
mod idle_snapshot;
mod intent;
mod latest;
mod msg;
mod notify;
mod outcome;
mod remote_entries;
mod sync;
mod take_over_requests;

use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::sync::{mpsc, oneshot, watch};

use super::activity::{Cause, Minute};
use super::api::{EngineError, WatchEvent};
use super::clock::Sleep;
use super::inner::Inner;
use super::leases::{EntryId, LeaseKey, OpenCall};
use crate::limits::Limits;
use crate::lock::{Entry, KeyId, Liveness, Seq, State};
use commit::StoreDone;
use critical::IoDone;
pub(super) use critical::value_of;
use holding::HolderState;
pub(super) use idle_snapshot::IdleSnapshot;
use intent::Intent;
use latest::Latest;
pub(super) use msg::{
    Accepted, EntryRef, EntryStatus, HandOverAnswer, Held, HeldReply, LeaseValidity, Msg,
    WatchHandle,
};
use remote_entries::RemoteEntries;
use take_over_requests::TakeOverRequests;

/// How long the task of a key stays after the last piece of work, so that the next one finds the state
/// at hand.
const LINGER: Duration = Duration::from_millis(250);
/// How many messages are taken before a compare-and-swap is started.
const TAKEN_MAX: usize = 1_024;

type StoreOp = Pin<Box<dyn Future<Output = StoreDone> + Send>>;
type IoOp = Pin<Box<dyn Future<Output = IoDone> + Send>>;

/// Somebody who is told once the holder may be granted the lock.
pub(super) struct GrantWaiter {
    pub seq: Seq,
    pub read_value: bool,
    pub existed: bool,
    pub reply: HeldReply,
    /// Keeps the entry alive.
    pub _open: OpenCall,
}

/// The actor of one key. Parked between two pieces of work.
pub(super) struct Actor {
    id: Arc<KeyId>,
    /// The latest state that is known to have been committed; `None` until it was read.
    state: Option<Arc<State>>,
    /// What is known of the store may be out of date: read it again before anything else.
    stale: bool,
    /// A read showed another state than is known of its version: the next one settles the key.
    disputed: bool,
    /// What made it re-read; of a read that nothing but a call asks for, [`Cause::Call`].
    read_cause: Cause,
    /// The latest thing that was done at the store was to read the state.
    just_read: bool,
    /// Calls that wait for a state to be read, and how many of them came before the present read was begun.
    backlog: VecDeque<Msg>,
    awaiting: usize,
    /// Where the key has no row: the timestamp of the value that the data table already holds (I2).
    past: Option<u64>,
    /// What this home remembers of the fence of its holder.
    holding: Option<HolderState>,
    /// What the data of the key holds, where that is known for sure.
    latest: Latest,
    /// What the next compare-and-swap shall do.
    pending: VecDeque<Intent>,
    /// Who waits to be answered HELD of the present holder.
    grant_waiters: Vec<GrantWaiter>,
    /// Who waits for the turn of an entry.
    wakers: BTreeMap<Seq, Vec<oneshot::Sender<()>>>,
    /// Who watches an entry.
    watches: BTreeMap<Seq, watch::Sender<WatchEvent>>,
    /// The turns that were seen while somebody waits here.
    turns: Option<Box<Minute>>,
    /// Failures in a row of the store.
    tries: u32,
    /// Swaps in a row that met another state.
    conflicts: u32,
    /// What there is to know because other replicas may change the key as well.
    remote_entries: RemoteEntries,
    /// Entries of a home that does not answer, which callers here ask for.
    take_over_requests: TakeOverRequests,
}

/// What a running actor has besides.
struct Run {
    inner: Arc<Inner>,
    /// The load or compare-and-swap in flight: never more than one.
    store_op: Option<StoreOp>,
    /// Reads and writes of data in flight.
    io: FuturesUnordered<IoOp>,
    /// Set while the store is not to be asked again yet.
    pause: Option<Sleep>,
    /// When to look what others did, while somebody waits behind an entry of theirs.
    poll: Option<Sleep>,
}

impl Actor {
    pub fn new(id: Arc<KeyId>, limits: &Limits) -> Self {
        Actor {
            id,
            state: None,
            stale: false,
            disputed: false,
            read_cause: Cause::Call,
            backlog: VecDeque::new(),
            awaiting: 0,
            just_read: false,
            past: None,
            holding: None,
            latest: Latest::up_to(limits.remembered_value_bytes_max),
            pending: VecDeque::new(),
            grant_waiters: Vec::new(),
            wakers: BTreeMap::new(),
            watches: BTreeMap::new(),
            turns: None,
            tries: 0,
            conflicts: 0,
            remote_entries: RemoteEntries::default(),
            take_over_requests: TakeOverRequests::default(),
        }
    }

    pub fn id(&self) -> &Arc<KeyId> {
        &self.id
    }

    /// Whether it remembers something that must not be dropped (I10): a live entry, or somebody who is
    /// to be told.
    pub fn must_stay(&self) -> bool {
        !self.pending.is_empty()
            || !self.backlog.is_empty()
            || self.remote_entries.has_own_entry
            || !self.take_over_requests.is_empty()
            || !self.watches.is_empty()
            || !self.wakers.is_empty()
    }

    /// Gives memory back before a rest that may be long: locks are held by the hundred thousand.
    fn shrink(&mut self) {
        self.backlog.shrink_to_fit();
        self.pending.shrink_to_fit();
        self.grant_waiters.shrink_to_fit();
        if let Some(holding) = &mut self.holding {
            holding.put_off.shrink_to_fit();
        }
    }

    fn entry_id(&self, seq: Seq) -> EntryId {
        EntryId {
            id: Arc::clone(&self.id),
            seq,
        }
    }

    fn lease_key(&self, entry: &Entry) -> LeaseKey {
        match entry.liveness {
            Liveness::Own { .. } => LeaseKey::Entry(self.entry_id(entry.seq)),
            Liveness::Session(session) => LeaseKey::Session(session),
        }
    }

    /// Serves the key until there has been nothing to do for a while.
    pub async fn run(mut self: Box<Self>, inner: Arc<Inner>, mut rx: mpsc::Receiver<Msg>) {
        let mut fenced = inner.fenced.subscribe();
        let mut run = Run {
            inner,
            store_op: None,
            io: FuturesUnordered::new(),
            pause: None,
            poll: None,
        };
        loop {
            self.grant_holder(&mut run);
            self.poll_remote_entries(&mut run);
            if run.store_op.is_none() && run.pause.is_none() && self.ask_store(&mut run) {
                continue;
            }
            let known = self.state.is_some() && !self.stale;
            let idle = run.store_op.is_none() && run.pause.is_none();
            // While the state is being read there is nothing to check a call against: calls wait in the
            // backlog, and fail if it cannot be read. The first of a new actor makes it read.
            let taking = known || self.backlog.len() < run.inner.limits.calls_per_key_max;
            tokio::select! {
                biased;
                // Whoever waits learns that this replica is fenced. One that has its store alone never is.
                _ = fenced.wait_for(|fenced| *fenced), if run.inner.shared => return,
                done = next_of(&mut run.store_op) => {
                    run.store_op = None;
                    self.store_done(&mut run, done);
                }
                Some(done) = run.io.next() => self.io_done(&mut run, done),
                () = pause_of(&mut run.pause) => self.go_on(&mut run),
                () = pause_of(&mut run.poll) => {
                    run.poll = None;
                    self.read_for(Cause::Poll);
                }
                msg = rx.recv(), if taking => match msg {
                    Some(msg) if known => {
                        self.take(&mut run, msg, false);
                        let mut taken = 1;
                        while taken < TAKEN_MAX && let Ok(msg) = rx.try_recv() {
                            self.take(&mut run, msg, false);
                            taken += 1;
                        }
                    }
                    Some(msg) => self.put_off(&run, msg),
                    // The map keeps the sender of a running actor; it is gone only if the map is.
                    None => return,
                },
                () = tokio::time::sleep(LINGER), if idle && run.io.is_empty()
                    && (run.poll.is_none() || self.latest.is_known()) => {
                    self.latest.forget();
                    if self.wakers.is_empty() && self.watches.is_empty() {
                        self.turns = None;
                    }
                    if run.poll.is_some() {
                        // Somebody watches, or waits.
                        continue;
                    }
                    self.shrink();
                    match run.inner.keys.park(self, &rx) {
                        Ok(()) => return,
                        Err(back) => self = back,
                    }
                }
            }
        }
    }
}

/// The outcome of the operation in flight; never, if there is none.
async fn next_of(op: &mut Option<StoreOp>) -> StoreDone {
    match op {
        Some(op) => op.await,
        None => std::future::pending().await,
    }
}

async fn pause_of(pause: &mut Option<Sleep>) {
    match pause {
        Some(pause) => pause.await,
        None => std::future::pending().await,
    }
}

/// Why a caller learns nothing more of a call: its actor is gone.
pub(super) fn no_answer() -> EngineError {
    EngineError::Unavailable("the call was interrupted; its outcome is not known".to_owned())
}
