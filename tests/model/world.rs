//! One state of the world: the lock's register, the data nodes, two replicas, clients, and what is on its way
//! between them.

use crate::committed::Committed;
use crate::setup::{Faults, Setup};
use crate::truth::Truth;

pub const REPLICAS: usize = 2;
pub const NODES: usize = 3;
/// Write timestamps, and so fences.
pub type Ts = u16;

/// What a data node has: of two cells the one with the higher timestamp stands. Where they are equal a node goes
/// by the bytes; here by what hurts more, the older value.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Cell {
    pub ts: Ts,
    pub value: u8,
}

impl Cell {
    pub fn shows_end(self, other: Cell) -> bool {
        (self.ts, other.value) > (other.ts, self.value)
    }

    pub fn newer(self, other: Cell) -> Cell {
        if other.shows_end(self) { other } else { self }
    }
}

/// The first answer of a read at a majority.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct FirstAnswer {
    pub node: u8,
    pub cell: Cell,
}

/// A write of data on its way to the nodes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Write {
    pub cell: Cell,
    /// The nodes that have it.
    pub reached: u8,
    pub by: u8,
    /// The grant it was begun under.
    pub grant: Ts,
    /// The rewrite of a sync, and nobody's put.
    pub sync: bool,
    /// The replica still waits for the acknowledgement.
    pub awaited: bool,
}

/// A put on its way from its client, who may have given it up.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PutCall {
    pub value: u8,
    pub seq: u8,
    pub grant: Ts,
}

/// How far granting the lock to the holder has come.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum SyncPhase {
    Unsynced,
    Reading(FirstAnswer),
    Writing(Cell),
    Open,
}

/// What the home of a holder remembers of its fence.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct HolderState {
    pub seq: u8,
    pub grant: Ts,
    pub fence: Ts,
    pub width: u16,
    pub op: u16,
    pub sync_phase: SyncPhase,
    pub synced: bool,
    pub claimed: bool,
    pub releasing: bool,
    pub extending: bool,
    /// Which put of the section was accepted last.
    pub last_call: u8,
    /// The highest timestamp that was acknowledged, and the highest of unknown outcome.
    pub acked: Ts,
    pub unknown: Ts,
}

/// Why an entry may be ended.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Proof {
    Silent { epoch: u8 },
    Unclaimed { grant: Ts },
}

/// What a release says of the fence, filled in when it is sent.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct LastWords {
    pub grant: Option<Ts>,
    pub synced: bool,
    pub open_write: bool,
}

/// What the next compare-and-swap of a replica shall do.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Intent {
    Create {
        request: u8,
        /// A try of it was of unknown outcome: it is decided to its end.
        open: bool,
    },
    Release {
        seq: u8,
        request: u8,
        words: LastWords,
    },
    Evict {
        seq: u8,
        request: u8,
        proof: Proof,
    },
    TakeOver {
        seq: u8,
        from_home: u8,
        from_fence: Ts,
        from_epoch: u8,
    },
    Extend {
        seq: u8,
        fence: Ts,
    },
}

/// A compare-and-swap on its way, or one of unknown outcome that may yet take effect.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Swap {
    pub by: u8,
    pub expected: u64,
    pub batch: Vec<Intent>,
}

/// An entry that its home handed over to the other replica.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Promise {
    pub seq: u8,
    pub fence: Ts,
    pub epoch: u8,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Replica {
    pub up: bool,
    /// The latest committed state that it knows; `None` for a task that crashed and has not looked yet.
    pub view: Option<Committed>,
    /// The outcome of its last swap is not known: it looks before anything else.
    pub stale: bool,
    pub holding: Option<HolderState>,
    pub pending: Vec<Intent>,
    pub swap: Option<Swap>,
    pub handed_over: Option<Promise>,
    /// The other one is to learn of the promise once no call is in flight.
    pub owes_hand_over: bool,
    /// A hint is on its way to it.
    pub hinted: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Phase {
    Idle,
    Creating { at: u8 },
    Waiting,
    Held,
    Releasing,
    Done,
    Lost,
    Crashed,
}

/// The call that a client has open.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Call {
    None,
    Get {
        at: u8,
        grant: Ts,
        first: FirstAnswer,
    },
    Put,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Client {
    pub phase: Phase,
    pub section: u8,
    pub seq: u8,
    pub grant: Ts,
    /// Puts that it began in this section.
    pub puts: u8,
    pub call: Call,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct World {
    /// The lock's row: what is committed.
    pub stored: Committed,
    /// Swaps of unknown outcome that may yet take effect.
    pub open: Vec<Swap>,
    pub nodes: [Cell; NODES],
    pub writes: Vec<Write>,
    pub calls: Vec<PutCall>,
    /// An agreement on its way, to the replica that it is for.
    pub hand_over: Option<(u8, Promise)>,
    pub replicas: [Replica; REPLICAS],
    pub clients: Vec<Client>,
    pub faults: Faults,
    pub truth: Truth,
}

impl World {
    pub fn new(setup: &Setup) -> World {
        let stored = Committed::default();
        let replica = Replica {
            up: true,
            view: Some(stored.clone()),
            stale: false,
            holding: None,
            pending: Vec::new(),
            swap: None,
            handed_over: None,
            owes_hand_over: false,
            hinted: false,
        };
        let client = Client {
            phase: Phase::Idle,
            section: 0,
            seq: 0,
            grant: 0,
            puts: 0,
            call: Call::None,
        };
        World {
            stored,
            open: Vec::new(),
            nodes: Default::default(),
            writes: Vec::new(),
            calls: Vec::new(),
            hand_over: None,
            replicas: [replica.clone(), replica],
            clients: vec![client; usize::from(setup.clients)],
            faults: setup.faults,
            truth: Truth::default(),
        }
    }

    /// Whether this entry's client is still there for it.
    pub fn is_wanted(&self, setup: &Setup, request: u8, seq: u8) -> bool {
        let client = &self.clients[setup.client_of(request)];
        let mine = setup.request(setup.client_of(request) as u8, client.section) == request;
        match client.phase {
            Phase::Creating { .. } => mine,
            Phase::Waiting | Phase::Held | Phase::Releasing => mine && client.seq == seq,
            Phase::Idle | Phase::Done | Phase::Lost | Phase::Crashed => false,
        }
    }

    /// Whether every client had its turns, and gave the key back.
    pub fn all_served(&self) -> bool {
        self.clients.iter().all(|c| c.phase == Phase::Done)
    }

    /// Whether a client is through with all it wanted, or is gone.
    pub fn is_finished(&self) -> bool {
        self.clients
            .iter()
            .all(|c| matches!(c.phase, Phase::Done | Phase::Lost | Phase::Crashed))
    }
}

impl HolderState {
    pub fn is_open(&self) -> bool {
        self.sync_phase == SyncPhase::Open
    }

    /// The timestamp of the next write, where the fence has one left (I3).
    pub fn next_timestamp(&self) -> Option<Ts> {
        (self.op + 1 < self.width).then(|| self.fence + self.op + 1)
    }
}

impl Replica {
    /// What it remembers of this grant, where it serves it.
    pub fn serves(&self, grant: Ts) -> Option<&HolderState> {
        let serving = |h: &&HolderState| h.grant == grant && h.is_open() && !h.releasing;
        self.holding
            .as_ref()
            .filter(serving)
            .filter(|h| self.up && !self.stale && self.handed_over.is_none_or(|c| c.seq != h.seq))
            // Whoever it ends itself it serves no longer.
            .filter(|h| !self.is_evicting(h.seq))
    }

    pub fn is_taking_over(&self, entry: u8) -> bool {
        self.wants(|i| matches!(i, Intent::TakeOver { seq, .. } if *seq == entry))
    }

    pub fn is_evicting(&self, entry: u8) -> bool {
        self.wants(|i| matches!(i, Intent::Evict { seq, .. } if *seq == entry))
    }

    pub fn is_releasing(&self, entry: u8) -> bool {
        self.wants(|i| matches!(i, Intent::Release { seq, .. } if *seq == entry))
    }

    /// Whether such a thing waits for the next swap, or is in the one in flight.
    fn wants(&self, such: impl Fn(&Intent) -> bool) -> bool {
        let in_flight = self.swap.iter().flat_map(|swap| &swap.batch);
        self.pending.iter().chain(in_flight).any(such)
    }
}
