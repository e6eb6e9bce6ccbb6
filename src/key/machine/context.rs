//! The context of every event: the time, and the bounds.

use std::time::Duration;

use crate::key::{CommitMode, Decider};
use crate::lock::{CoreLimits, ReplicaId};
use crate::session::Observed;

/// What every event comes with.
#[derive(Clone, Copy, Debug)]
pub struct Context<'a> {
    /// This replica.
    pub replica: ReplicaId,
    /// The present moment of this observer (I9).
    pub now: Observed,
    /// The wall clock in microseconds since 1970; `None` while it is known to be wrong (I2).
    pub now_us: Option<u64>,
    /// Until when this replica may answer whatever becomes of its heartbeats, by CLOCK_BOOTTIME: nobody takes its keys over
    /// before (H2).
    pub sure_until: Duration,
    /// No other process can have the store open: every other home is gone.
    pub is_alone: bool,
    /// The value was read long ago: what is written is not taken for all that there is of it, so that the next one who needs
    /// it reads it (H9).
    pub value_is_due: bool,
    /// How the table of the key is committed.
    pub commit: CommitRules,
    /// The bounds.
    pub limits: &'a KeyLimits,
}

impl<'a> Context<'a> {
    /// This replica, deciding now.
    pub(super) fn decider(&self) -> Decider<'a> {
        Decider {
            replica: self.replica,
            now_us: self.now_us,
            limits: &self.limits.core,
        }
    }
}

/// When what was decided goes into the row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CommitRules {
    /// Before it is answered, or later.
    pub mode: CommitMode,
    /// With write-back: a holder becomes durable so long after it was told that it holds the key.
    pub keep_after: Duration,
}

/// The bounds of one key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KeyLimits {
    /// The bounds of its state.
    pub core: CoreLimits,
    /// How many calls may wait at once, each kind by itself: for the row, for the next commit, for a grant or for news.
    pub calls_max: usize,
    /// How many waits and watches one lockRef may have at once.
    pub waits_per_lock_ref_max: usize,
    /// How many reads and writes of one lockRef may be in flight at once.
    pub critical_calls_max: usize,
    /// A longer value is not kept in memory, in bytes; with 0 none is.
    pub known_value_bytes_max: usize,
    /// After this a first entry that lives by a session of unknown TTL counts as unclaimed.
    pub session_claim_ttl: Duration,
}
