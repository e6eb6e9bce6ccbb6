//! The commands on a key, and their outcomes.

use super::state::{Entry, Home};
use crate::lock::{EndReason, EndedAs, Fence, FenceError, Liveness, Mode, ReplicaId, Seq, Tag};

/// The arguments of a new entry.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct NewEntry {
    /// Names the call and who made it: the same tag finds the same entry while it lives, and how it ended after that (I5).
    pub tag: Tag,
    /// How it shall hold the key.
    pub mode: Mode,
    /// What it shall live by.
    pub liveness: Liveness,
    /// Who asks, as far as the server knows.
    pub identity: Box<str>,
    /// A label for people.
    pub owner: Box<str>,
    /// When, in milliseconds since 1970, for people only.
    pub created_at_ms: i64,
}

impl NewEntry {
    pub(super) fn differs_from(&self, entry: &Entry) -> Option<&'static str> {
        if self.mode != entry.mode {
            Some("mode")
        } else if self.liveness != entry.liveness {
            match (self.liveness, entry.liveness) {
                (Liveness::Own { .. }, Liveness::Own { .. }) => Some("ttl"),
                _ => Some("session"),
            }
        } else if self.owner != entry.owner {
            Some("owner")
        } else {
            None
        }
    }
}

/// What the home knows of the writes of a holder that goes, or goes with its key to another home (I7).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct WritesOfHolder {
    /// The value was rewritten under this grant.
    pub synced: bool,
    /// A write of unknown outcome is not covered by a later acknowledged one.
    pub open: bool,
}

impl WritesOfHolder {
    /// Of an entry that was never answered HELD.
    pub const NONE: WritesOfHolder = WritesOfHolder {
        synced: false,
        open: false,
    };
}

/// One thing to decide about a key. All but TakeOver are the home's own (H1). Each is idempotent against the state, so
/// that one of unknown outcome is simply decided again.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Command {
    /// Become the home: of a key that has none, or whose home stopped, is down, or lost its memory of the key (H3).
    TakeOver {
        /// The home until now; refused if it is another one.
        from: Option<Home>,
        /// The new home.
        to: ReplicaId,
        /// The timestamp of a value that the data table already holds, in microseconds, where the key has no row yet
        /// (I2).
        past: Option<u64>,
    },
    /// Add an entry at the end of the queue.
    Create(NewEntry),
    /// End an entry by the wish of its client: the holder, or a waiter.
    Release {
        /// The entry.
        seq: Seq,
        /// Its tag.
        tag: Tag,
        /// What the holder's writes came to.
        writes: WritesOfHolder,
    },
    /// End an entry for another reason.
    Evict {
        /// The entry.
        seq: Seq,
        /// Its tag.
        tag: Tag,
        /// Why.
        reason: EndReason,
        /// Refused unless this is the grant in force: of a holder that was found unclaimed under it.
        only_under: Option<Fence>,
    },
    /// Grant the key to the first entry, where that could not be done when it became the first.
    Grant,
    /// Get more write timestamps for the holder (I3).
    Extend {
        /// The fence whose timestamps are used up.
        fence: Fence,
        /// A timestamp seen in the data that is above them.
        past: Option<u64>,
    },
    /// Give the key to another replica (H4).
    HandOver {
        /// The new home.
        to: ReplicaId,
        /// What the holder's writes came to; `None` of a first entry that was never answered HELD: it goes ungranted.
        holder: Option<WritesOfHolder>,
        /// For how long the first entry may go unheard at its next home, in milliseconds; 0: for a whole TTL.
        left_ms: u32,
    },
}

/// What came of one command.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Outcome {
    /// TakeOver: this replica is the home (now, or already).
    Home(Home),
    /// Create: here is the entry.
    Created {
        /// Its number.
        seq: Seq,
        /// An earlier call of the same request had made it.
        existed: bool,
    },
    /// Release: ended now.
    Released,
    /// Evict: ended now.
    Evicted {
        /// It held the key.
        was_holder: bool,
    },
    /// Grant: the first entry has a grant, or there is none.
    Granted,
    /// Extend: the fence in force is above the one named.
    Extended,
    /// HandOver: the other replica is the home.
    HandedOver,
    /// Create, Release, Evict: it had ended before.
    Gone(EndedAs),
    /// The command must not be done on this state. Nothing was changed.
    Refused(Refusal),
}

/// Why a command was refused.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Refusal {
    /// Another replica, or the same one in another term, is the home; `None`: the key has none.
    NotHome(Option<Home>),
    /// The queue has as many entries as it may have.
    QueueFull {
        /// The limit in force.
        entries_max: usize,
    },
    /// Nine tenths of that are in use, and the identity of the new entry has its share of them.
    QueueShareUsed {
        /// How many each identity may have of the last tenth.
        share: usize,
    },
    /// The numbers of the key are used up.
    SeqUsedUp,
    /// No fence can be taken.
    Fence(FenceError),
    /// This machine's clock is known to be wrong: no fence is taken.
    ClockIsWrong,
    /// The request_id belongs to an entry with other arguments.
    RequestMismatch {
        /// The argument that differs.
        field: &'static str,
    },
    /// The key never gave out this entry.
    NeverIssued,
    /// The grant is not the one named, or nobody holds the key.
    OtherGrant,
}
