//! The actor of one key: the only thing on this replica that changes the key, in one task.
//!
//! It takes calls, collects commands while a compare-and-swap is under way and commits them together in
//! the next one (group commit), remembers what the fence of its holder has given out (I3, I10), and wakes
//! whoever waits. What the rules are it asks [`crate::lock::decide`].
//!
//! - `calls`: what comes in, checked against the state
//! - `intent`: what the next compare-and-swap shall do, and how it becomes commands
//! - `commit`: the load or compare-and-swap under way, and what comes of it
//! - `outcome`: what callers hear of a batch whose outcomes stand
//! - `holding`: what the home of a holder remembers of its fence
//! - `latest`: the value, while this home knows it without reading
//! - `adopt`: what a new committed state means for leases, holder, waits and watches
//! - `critical`: reads and writes of the holder
//! - `sync`: letting a holder in (I7)
//! - `others`: what other replicas have to do with the key (I8, I10)
//! - `ceding`: places of this home that other replicas ask for (I10)
//! - `arrival`: what a call says by coming, whatever becomes of it
//! - `asked`: places of a silent home that callers here ask for
//! - `tell`: what other replicas are told of it
//! - `rest`: what is left of it while there is nothing to do

mod adopt;
mod arrival;
mod asked;
mod calls;
mod ceding;
mod commit;
mod critical;
mod holding;
mod intent;
mod latest;
mod msg;
mod others;
mod outcome;
mod rest;
mod sync;
mod tell;

use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::sync::{mpsc, oneshot, watch};

use super::activity::{Cause, Minute};
use super::api::{EngineError, Watched};
use super::clock::Sleep;
use super::inner::Inner;
use super::leases::{LeaseKey, OpenCall, PlaceId};
use crate::limits::Limits;
use crate::lock::{Entry, KeyId, Liveness, Seq, State};
use asked::Asked;
use commit::StoreDone;
use critical::IoDone;
pub(super) use critical::value_of;
use holding::Holding;
use intent::Intent;
use latest::Latest;
pub(super) use msg::{
    Accepted, GivesUp, Held, HeldReply, Life, Msg, PlaceRef, WatchHandle, Whereabouts,
};
use others::Others;
pub(super) use rest::Rest;

/// How long the task of a key stays after the last piece of work, so that the next one finds the state
/// at hand.
const LINGER: Duration = Duration::from_millis(250);
/// How many messages are taken before a compare-and-swap is started.
const TAKEN_MAX: usize = 1_024;

type StoreOp = Pin<Box<dyn Future<Output = StoreDone> + Send>>;
type IoOp = Pin<Box<dyn Future<Output = IoDone> + Send>>;

/// Somebody who is told once the holder may be let in.
pub(super) struct LetIn {
    pub seq: Seq,
    pub read_value: bool,
    pub existed: bool,
    pub reply: HeldReply,
    /// Keeps the place alive.
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
    /// What made it look again; of a look that nothing but a call asks for, [`Cause::Call`].
    looks_for: Cause,
    /// The latest thing that was done at the store was to read the state.
    just_read: bool,
    /// Calls that wait for a state to be read, and how many of them came before the present read was begun.
    backlog: VecDeque<Msg>,
    awaiting: usize,
    /// Where the key has no row: the timestamp of the value that the data table already holds (I2).
    past: Option<u64>,
    /// What this home remembers of the fence of its holder.
    holding: Option<Holding>,
    /// What the data of the key holds, where that is known for sure.
    latest: Latest,
    /// What the next compare-and-swap shall do.
    pending: VecDeque<Intent>,
    /// Who waits to hear HELD of the present holder.
    let_ins: Vec<LetIn>,
    /// Who waits for the turn of a place.
    wakes: BTreeMap<Seq, Vec<oneshot::Sender<()>>>,
    /// Who watches a place.
    watches: BTreeMap<Seq, watch::Sender<Watched>>,
    /// The turns that were seen while somebody waits here.
    turns: Option<Box<Minute>>,
    /// Failures in a row of the store.
    tries: u32,
    /// Swaps in a row that met another state.
    conflicts: u32,
    /// What there is to know because other replicas may change the key as well.
    others: Others,
    /// Places of a home that does not answer, which callers here ask for.
    asked: Asked,
}

/// What a running actor has besides.
struct Run {
    inner: Arc<Inner>,
    /// The load or compare-and-swap under way: never more than one.
    store_op: Option<StoreOp>,
    /// Reads and writes of data under way.
    io: FuturesUnordered<IoOp>,
    /// Set while the store is not to be asked again yet.
    pause: Option<Sleep>,
    /// When to look what others did, while somebody waits behind a place of theirs.
    poll: Option<Sleep>,
}

impl Actor {
    pub fn new(id: Arc<KeyId>, limits: &Limits) -> Self {
        Actor {
            id,
            state: None,
            stale: false,
            disputed: false,
            looks_for: Cause::Call,
            backlog: VecDeque::new(),
            awaiting: 0,
            just_read: false,
            past: None,
            holding: None,
            latest: Latest::up_to(limits.remembered_value_bytes_max),
            pending: VecDeque::new(),
            let_ins: Vec::new(),
            wakes: BTreeMap::new(),
            watches: BTreeMap::new(),
            turns: None,
            tries: 0,
            conflicts: 0,
            others: Others::default(),
            asked: Asked::default(),
        }
    }

    pub fn id(&self) -> &Arc<KeyId> {
        &self.id
    }

    /// Whether it remembers something that must not be dropped (I10): a live place, or somebody who is
    /// to be told.
    pub fn must_stay(&self) -> bool {
        !self.pending.is_empty()
            || !self.backlog.is_empty()
            || self.others.has_own_place
            || !self.asked.is_empty()
            || !self.watches.is_empty()
            || !self.wakes.is_empty()
    }

    /// Gives memory back before a rest that may be long: locks are held by the hundred thousand.
    fn shrink(&mut self) {
        self.backlog.shrink_to_fit();
        self.pending.shrink_to_fit();
        self.let_ins.shrink_to_fit();
        if let Some(holding) = &mut self.holding {
            holding.put_off.shrink_to_fit();
        }
    }

    fn place(&self, seq: Seq) -> PlaceId {
        PlaceId {
            id: Arc::clone(&self.id),
            seq,
        }
    }

    fn lease_key(&self, entry: &Entry) -> LeaseKey {
        match entry.liveness {
            Liveness::Own { .. } => LeaseKey::Place(self.place(entry.seq)),
            Liveness::Session(session) => LeaseKey::Session(session),
        }
    }

    /// Serves the key until there has been nothing to do for a while.
    pub async fn run(mut self: Box<Self>, inner: Arc<Inner>, mut rx: mpsc::Receiver<Msg>) {
        let mut dead = inner.dead.subscribe();
        let mut run = Run {
            inner,
            store_op: None,
            io: FuturesUnordered::new(),
            pause: None,
            poll: None,
        };
        loop {
            self.let_in(&mut run);
            self.poll_others(&mut run);
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
                // Whoever waits hears that this replica is over. One that has its store alone never is.
                _ = dead.wait_for(|dead| *dead), if run.inner.shared => return,
                done = next_of(&mut run.store_op) => {
                    run.store_op = None;
                    self.store_done(&mut run, done);
                }
                Some(done) = run.io.next() => self.io_done(&mut run, done),
                () = pause_of(&mut run.pause) => self.go_on(&mut run),
                () = pause_of(&mut run.poll) => {
                    run.poll = None;
                    self.look_for(Cause::Poll);
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
                    if self.wakes.is_empty() && self.watches.is_empty() {
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

/// The outcome of the operation under way; never, if there is none.
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

/// Why a caller hears nothing more of a call: its actor is gone.
pub(super) fn no_answer() -> EngineError {
    EngineError::Unavailable("the call was interrupted; its outcome is not known".to_owned())
}
