//! The context of every event: the time, and the bounds.

use std::time::Duration;

use crate::key::{CommitMode, Decider};
use crate::lock::{CoreLimits, ReplicaId};
use crate::session::Observed;

/// The context of an event.
#[derive(Clone, Copy, Debug)]
pub struct Context<'a> {
    /// This replica.
    pub replica: ReplicaId,
    /// The present moment of this observer (I9).
    pub now: Observed,
    /// The wall clock in microseconds since 1970; `None` while it is known to be wrong (I2).
    pub now_us: Option<u64>,
    /// This replica may answer until then, by CLOCK_BOOTTIME, whatever becomes of its heartbeats: no take-over begins before
    /// (H2).
    pub sure_until: Duration,
    /// No other process can have the store open: every other home is gone.
    pub is_alone: bool,
    /// The last read of the value is too old: a write is not remembered, so that the next use reads the value (H9).
    pub value_is_due: bool,
    /// How the table of the key is committed.
    pub commit: CommitRules,
    /// The bounds.
    pub limits: &'a KeyLimits,
}

impl<'a> Context<'a> {
    pub(super) fn decider(&self) -> Decider<'a> {
        Decider {
            replica: self.replica,
            now_us: self.now_us,
            limits: &self.limits.core,
        }
    }
}

/// When decisions go into the row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CommitRules {
    /// Before or after the answer.
    pub mode: CommitMode,
    /// With write-back: the time from HELD until the holder becomes durable.
    pub keep_after: Duration,
}

/// The bounds of one key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KeyLimits {
    /// The bounds of its state.
    pub core: CoreLimits,
    /// Waiting calls, for each of: the row, the next commit, a grant, news.
    pub calls_max: usize,
    /// Waits and watches of one lockRef at once.
    pub waits_per_lock_ref_max: usize,
    /// Reads and writes of one lockRef in flight at once.
    pub critical_calls_max: usize,
    /// The longest value kept in memory, in bytes; 0 keeps none.
    pub known_value_bytes_max: usize,
    /// The time without a call after which a first entry in a session of unknown TTL counts as unclaimed.
    pub session_claim_ttl: Duration,
}
