//! The commands on a key, and their outcomes.

use super::state::{Entry, Home};
use crate::lock::{EndReason, EndedAs, Fence, FenceError, Liveness, Mode, ReplicaId, Seq, Tag};

/// The arguments of a new entry.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct NewEntry {
    /// Names the request and its client: the same tag finds the same entry while it lives, and later its end (I5).
    pub tag: Tag,
    /// Its lock mode.
    pub mode: Mode,
    /// Its own TTL, or a session.
    pub liveness: Liveness,
    /// The client's identity; empty if unknown.
    pub identity: Box<str>,
    /// A label for people.
    pub owner: Box<str>,
    /// The time of its creation, in milliseconds since 1970, for people only.
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

/// The home's knowledge of the writes of a holder that ends, or goes to another home with its key (I7).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct WritesOfHolder {
    /// The value was rewritten under this grant.
    pub synced: bool,
    /// A write of unknown outcome is not covered by a later acknowledged one.
    pub open: bool,
}

impl WritesOfHolder {
    /// An entry that was never answered HELD.
    pub const NONE: WritesOfHolder = WritesOfHolder {
        synced: false,
        open: false,
    };
}

/// A decision about a key. All but TakeOver are the home's own (H1). Each is idempotent against the state: after an unknown
/// outcome it is simply decided again.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Command {
    /// Become the home of a key without one, or with a home that stopped, is down, or lost its memory of the key (H3).
    TakeOver {
        /// The home until now; refused if it is another one.
        from: Option<Home>,
        /// The new home.
        to: ReplicaId,
        /// The timestamp of the value in the data table, in microseconds, if the key has no row yet (I2).
        past: Option<u64>,
    },
    /// Add an entry at the end of the queue.
    Create(NewEntry),
    /// End an entry, the holder or a waiter, by the wish of its client.
    Release {
        /// The entry.
        seq: Seq,
        /// Its tag.
        tag: Tag,
        /// The holder's writes.
        writes: WritesOfHolder,
    },
    /// End an entry for another reason.
    Evict {
        /// The entry.
        seq: Seq,
        /// Its tag.
        tag: Tag,
        /// The reason.
        reason: EndReason,
        /// Refused unless this is the grant in force, for a holder that was found unclaimed under it.
        only_under: Option<Fence>,
    },
    /// Grant the key to the first entry, if that was not possible when it became the first.
    Grant,
    /// Get more write timestamps for the holder (I3).
    Extend {
        /// The exhausted fence.
        fence: Fence,
        /// A timestamp in the data above that fence.
        past: Option<u64>,
    },
    /// Hand the key over to another replica (H4).
    HandOver {
        /// The new home.
        to: ReplicaId,
        /// The holder's writes; `None` if it was never answered HELD: it goes without its grant.
        holder: Option<WritesOfHolder>,
        /// The time that the first entry has for a call at the next home, in milliseconds; 0 means a whole TTL.
        left_ms: u32,
    },
}

/// The outcome of one command.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Outcome {
    /// TakeOver: this replica is the home (now, or already).
    Home(Home),
    /// Create: the entry.
    Created {
        /// Its number.
        seq: Seq,
        /// An earlier call of the same request created it.
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
    /// The queue is full.
    QueueFull {
        /// The limit in force.
        entries_max: usize,
    },
    /// Nine tenths of the queue are in use, and the identity of the new entry has used its share.
    QueueShareUsed {
        /// The share of each identity in the last tenth.
        share: usize,
    },
    /// The numbers of the key are used up.
    SeqUsedUp,
    /// No fence can be taken.
    Fence(FenceError),
    /// This machine's clock is wrong: it takes no fence.
    ClockIsWrong,
    /// The request_id belongs to an entry with other arguments.
    RequestMismatch {
        /// The argument that differs.
        field: &'static str,
    },
    /// The key never issued this entry.
    NeverIssued,
    /// Another grant is in force, or nobody holds the key.
    OtherGrant,
}
