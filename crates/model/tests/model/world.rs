//! One state of the world.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use fermata::key::KeyState;
use fermata::key::machine::{CallId, Datum, EntryRef, IoId, Machine, Mutation, PauseOf};
use fermata::lock::{Fence, ReplicaId, Seq, SessionId};
use uuid::Uuid;

use super::setup::{Faults, Setup};
use super::truth::Truth;

pub const REPLICAS: usize = 2;
pub const NODES: usize = 3;

/// What is put: a number for each put, in the order in which they were first sent; 0 for none.
pub type Value = u8;

pub fn replica_id(at: usize) -> ReplicaId {
    ReplicaId(Uuid::from_u128(100 + at as u128))
}

pub fn session_id(session: usize) -> SessionId {
    SessionId(Uuid::from_u128(200 + session as u128))
}

pub fn bytes_of(value: Value) -> Option<Bytes> {
    (value > 0).then(|| Bytes::copy_from_slice(&[value]))
}

pub fn mutation_of(value: Value) -> Mutation {
    bytes_of(value).map_or(Mutation::Delete, Mutation::Put)
}

pub fn value_of(bytes: Option<&Bytes>) -> Value {
    bytes.and_then(|bytes| bytes.first().copied()).unwrap_or(0)
}

/// What a node has: the higher timestamp stands; of two equal ones what hurts more, the older value.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Cell {
    pub timestamp: u64,
    pub value: Value,
}

impl Cell {
    pub fn newer(self, other: Cell) -> Cell {
        let key = |cell: Cell| (cell.timestamp, u8::MAX - cell.value);
        if key(other) > key(self) { other } else { self }
    }

    pub fn of(datum: &Datum) -> Cell {
        Cell {
            timestamp: datum.timestamp,
            value: value_of(datum.value.as_ref()),
        }
    }

    pub fn datum(self) -> Option<Datum> {
        (self.timestamp > 0).then(|| Datum {
            value: bytes_of(self.value),
            timestamp: self.timestamp,
        })
    }
}

/// A write on its way to the nodes.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Write {
    pub cell: Cell,
    /// The nodes that have it, by bit.
    pub reached: u8,
    /// Who waits for it.
    pub awaited: Option<(usize, u64)>,
}

/// A compare-and-swap on its way.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Swap {
    pub old: u64,
    pub new: Arc<KeyState>,
    pub is_applied: bool,
    /// Who waits for it.
    pub awaited: Option<usize>,
}

/// A replica.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Replica {
    pub is_up: bool,
    pub machine: Machine,
    /// A load is in flight.
    pub loads: bool,
    pub reads: BTreeSet<u64>,
    pub pauses: Vec<PauseOf>,
    /// Sessions whose ends it wants to learn of, and for which entries.
    pub attached: BTreeSet<(usize, Seq)>,
    /// Its clock is known to be wrong.
    pub clock_is_wrong: bool,
    /// It was told to take the key over, and has not answered.
    pub takes: bool,
    /// It learns that the key was handed to it in this term.
    pub given: Option<u64>,
    /// It was told to stop.
    pub is_stopping: bool,
    /// It gave the key to itself, and ends.
    pub stops: bool,
}

impl Replica {
    fn new() -> Self {
        Replica {
            is_up: true,
            machine: Machine::new(),
            loads: false,
            reads: BTreeSet::new(),
            pauses: Vec::new(),
            attached: BTreeSet::new(),
            clock_is_wrong: false,
            takes: false,
            given: None,
            is_stopping: false,
            stops: false,
        }
    }
}

/// How far a client is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Step {
    Create,
    Acquire,
    Get,
    Put,
    Release,
    /// All sections have ended, or its entry was taken from it.
    Done,
}

/// A client.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Client {
    pub step: Step,
    pub section: u8,
    pub puts: u8,
    /// The call in flight, and where.
    pub call: Option<(CallId, usize)>,
    /// Calls that were taken in somewhere, or given up: the next one needs another name and number.
    pub calls: u64,
    /// The number of its release, which a try without an answer is repeated with; 0 for a new one.
    pub release_no: u64,
    /// A replica answered HELD with this grant, and nobody heard it.
    pub lost_held: Option<(usize, Fence)>,
    pub entry: Option<EntryRef>,
    /// It was answered HELD, and nothing since says otherwise.
    pub is_sure: bool,
    /// It was promised more than its home was sure of (H7).
    pub is_durable: bool,
    /// The value of its put, from its first try on.
    pub value: Value,
    /// A try of the put was of unknown outcome.
    pub may_be_written: bool,
    pub session_ended: bool,
}

impl Client {
    fn new() -> Self {
        Client {
            step: Step::Create,
            section: 0,
            puts: 0,
            call: None,
            calls: 0,
            release_no: 0,
            lost_held: None,
            entry: None,
            is_sure: false,
            is_durable: false,
            value: 0,
            may_be_written: false,
            session_ended: false,
        }
    }
}

/// One state of the world.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct World {
    pub row: Arc<KeyState>,
    pub swaps: Vec<Swap>,
    pub nodes: [Cell; NODES],
    pub writes: Vec<Write>,
    pub replicas: Vec<Replica>,
    pub clients: Vec<Client>,
    pub truth: Truth,
    pub left: Faults,
    /// The last value that was given to a put.
    pub values: Value,
    /// The entry that an operator takes away: what its client is notified of it holds no longer.
    pub forced: Option<Seq>,
}

impl World {
    pub fn new(setup: &Setup) -> World {
        World {
            row: Arc::new(KeyState::default()),
            swaps: Vec::new(),
            nodes: [Cell::default(); NODES],
            writes: Vec::new(),
            replicas: (0..REPLICAS).map(|_| Replica::new()).collect(),
            clients: (0..setup.clients).map(|_| Client::new()).collect(),
            truth: Truth::default(),
            left: setup.faults,
            values: 0,
            forced: None,
        }
    }

    pub fn is_finished(&self) -> bool {
        self.clients.iter().all(|c| c.step == Step::Done)
    }

    /// The home by the row, if it is up.
    pub fn home(&self) -> Option<usize> {
        let home = self.row.home?.replica;
        (0..REPLICAS).find(|at| replica_id(*at) == home && self.replicas[*at].is_up)
    }

    /// Whether the row has a home that ended.
    pub fn home_is_gone(&self) -> bool {
        self.row.home.is_some() && self.home().is_none()
    }

    /// One spelling for worlds that cannot be told apart.
    pub fn tidy(&mut self) {
        let version = self.row.version;
        self.swaps
            .retain(|s| s.awaited.is_some() || (!s.is_applied && s.old == version));
        self.swaps
            .sort_by_key(|s| (s.old, s.awaited, s.is_applied, s.new.term(), s.new.next));
        let nodes = self.nodes;
        self.writes.retain(|w| {
            let lands = |n: usize| w.reached & (1 << n) == 0 && nodes[n].newer(w.cell) != nodes[n];
            w.awaited.is_some() || (0..NODES).any(lands)
        });
        self.writes.sort();
        // The nodes are alike.
        let column = |world: &World, n: usize| {
            let reached = world.writes.iter().map(|w| w.reached >> n & 1 == 1);
            (world.nodes[n], reached.collect::<Vec<_>>())
        };
        let mut order = [0, 1, 2];
        order.sort_by_key(|n| column(self, *n));
        if order != [0, 1, 2] {
            self.nodes = order.map(|n| nodes[n]);
            for write in &mut self.writes {
                let bit = |to: usize| (write.reached >> order[to] & 1) << to;
                write.reached = (0..NODES).map(bit).sum();
            }
            self.writes.sort();
        }
    }

    pub fn io(at: u64) -> IoId {
        IoId(at)
    }
}
