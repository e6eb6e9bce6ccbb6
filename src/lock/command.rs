//! What can be asked of a key, and what comes of it.

use uuid::Uuid;

use super::fence::{Fence, FenceError};
use super::lock_ref::Tag;
use super::state::{EndReason, EndedAs, Entry, Liveness, Mode, ReplicaId, Seq, SessionId};

/// The arguments of a new entry.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Create {
    /// Names the call: the same id finds the same entry for as long as it lives (I5).
    pub request_id: Uuid,
    /// How it shall hold the key.
    pub mode: Mode,
    /// What it shall live by.
    pub liveness: Liveness,
    /// The replica that is asked and becomes its home.
    pub home: ReplicaId,
    /// Who asks, as far as the server knows.
    pub identity: Box<str>,
    /// A label for people.
    pub owner: Box<str>,
    /// When, in milliseconds since 1970, for people only.
    pub created_at_ms: i64,
    /// The timestamp of a value that the data table already holds, in microseconds, where the key has
    /// no row yet (I2).
    pub past: Option<u64>,
}

impl Create {
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
        } else if self.identity != entry.identity {
            Some("request_id")
        } else {
            None
        }
    }
}

/// Why an entry may be evicted. Checked against the state each time the command is decided, so that a
/// Conflict in between cannot turn old evidence against a changed entry.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Evidence {
    /// It lives by itself, and was silent for its TTL at this epoch.
    Silent {
        /// The epoch that the silence was seen at.
        epoch: u32,
    },
    /// The session it lives by has ended.
    SessionEnded(SessionId),
    /// It has been the holder with this grant for one TTL at this home, and no answer said so to
    /// anyone. Only a home that has had it since before it became holder may say this (I5).
    Unclaimed {
        /// The home that says so.
        home: ReplicaId,
        /// The grant that nobody claimed.
        grant: Fence,
    },
    /// An operator wants it gone.
    Forced {
        /// Who.
        by: Box<str>,
        /// Why.
        why: Box<str>,
    },
}

impl Evidence {
    /// The reason that is kept of an entry that it ends.
    pub fn reason(&self) -> EndReason {
        match self {
            Evidence::Silent { .. } => EndReason::Expired,
            Evidence::SessionEnded(_) => EndReason::SessionClosed,
            Evidence::Unclaimed { .. } => EndReason::Unclaimed,
            Evidence::Forced { by, why } => EndReason::Forced {
                by: by.clone(),
                why: why.clone(),
            },
        }
    }
}

/// One thing to do to a key. Every command is idempotent: decided again on a state that has its effect, it changes
/// nothing.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Command {
    /// Add an entry at the end of the queue.
    Create(Create),
    /// Release an entry: the holder's, or a waiter's.
    Release {
        /// The entry.
        seq: Seq,
        /// Its tag.
        tag: Tag,
        /// The replica that asks.
        home: ReplicaId,
        /// The grant in force as this replica knows it to the end: it granted the holder the lock with it, or knows
        /// that it granted nobody the lock. `None` where it knows none: a holder then goes as foreign (I7).
        grant: Option<Fence>,
        /// The value was synced under this grant, or did not need to be.
        synced: bool,
        /// A write of unknown outcome is not covered by a later acknowledged one (I7).
        open_write: bool,
    },
    /// End an entry for a reason.
    Evict {
        /// The entry.
        seq: Seq,
        /// Its tag.
        tag: Tag,
        /// Why.
        evidence: Evidence,
    },
    /// Become the home of an entry (I10).
    TakeOver {
        /// The entry.
        seq: Seq,
        /// Its home until now; refused if it is another one.
        from_home: ReplicaId,
        /// The fence in force, for a holder; [`Fence::NONE`] for a waiter. Refused if it is another one.
        from_fence: Fence,
        /// The epoch of the entry; refused if it is another one, so that a home that comes back (A, B, A) is
        /// not taken for the one that agreed.
        from_epoch: u32,
        /// The new home.
        to_home: ReplicaId,
    },
    /// Get more write timestamps for the holder (I3).
    Extend {
        /// The holder's entry.
        seq: Seq,
        /// Its home.
        home: ReplicaId,
        /// The fence whose timestamps are used up.
        fence: Fence,
        /// A timestamp seen in the data that is above them.
        past: Option<u64>,
    },
}

/// An entry was made or found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Created {
    /// Its number.
    pub seq: Seq,
    /// An earlier call with the same request_id had made it.
    pub existed: bool,
}

/// An entry was released.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Released {
    /// It held the key in a committed state. (False for one that became holder within the same batch.)
    pub was_holder: bool,
    /// Nobody had been granted the lock, or it came from the holder's home with its grant.
    pub clean: bool,
}

/// What came of one command.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// Create: here is the entry.
    Created(Created),
    /// Release: done now.
    Released(Released),
    /// Evict: done now.
    Evicted {
        /// It held the key.
        was_holder: bool,
    },
    /// TakeOver: this home has the entry (now, or already).
    TakenOver,
    /// Extend: the fence in force is above the one named.
    Extended,
    /// Release, Evict, TakeOver, Extend: the entry is gone.
    Gone(EndedAs),
    /// The command must not be done on this state. Nothing was changed.
    Refused(Refusal),
}

/// Why a command was refused.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// The queue has as many entries as it may have.
    QueueFull {
        /// The limit in force.
        entries_max: usize,
    },
    /// The numbers of the key are used up.
    SeqUsedUp,
    /// No fence can be taken.
    Fence(FenceError),
    /// The request_id belongs to an entry with other arguments.
    RequestMismatch {
        /// The argument that differs.
        field: &'static str,
    },
    /// The key never gave out this entry.
    NeverIssued,
    /// The evidence for an Evict no longer holds.
    EvidenceGone,
    /// The home or the fence is not the one named.
    Overtaken,
    /// TakeOver of a waiter, but it is the head by now.
    IsHolder,
    /// Extend of an entry that does not hold the key.
    NotHolder,
}
