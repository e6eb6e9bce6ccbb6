//! The home's memory of the holder and its fence, while the grant lasts (I3, I5, I7, I11).

use std::collections::{BTreeSet, VecDeque};

use bytes::Bytes;

use super::event::{CallError, CallId, EntryRef, IoId, KeyError, LeaseStatus, Report};
use super::released::LastWrite;
use super::value::Datum;
use crate::key::{Entry, KeyState, WritesOfHolder};
use crate::lock::{Fence, Seq, Tag};
use crate::session::Observed;

/// The progress of a grant. Each phase has its own data.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) enum Phase {
    /// The row does not yet allow a client to learn of the grant, or to write under it.
    Granting,
    /// The value must be rewritten under this fence before HELD is answered. The sync begins with the next call for it.
    Unsynced,
    /// The one read of this fence is in flight.
    SyncRead(IoId),
    /// The value read is being written at op 0.
    SyncWrite {
        /// The write in flight.
        io: IoId,
        /// The value read, under this fence: unchanged until acknowledged.
        datum: Datum,
    },
    /// The store failed a moment ago.
    SyncPaused {
        /// The value to write again; `None` to read again.
        rewrite: Option<Datum>,
    },
    /// It has more timestamps, and goes on once the row allows them.
    Extending(Resume),
    /// HELD may be answered, and the holder reads and writes.
    Held {
        /// The value was rewritten under this grant.
        synced: bool,
    },
    /// A write of unknown outcome is being settled for a reader: the value is read and written again.
    Settling {
        /// As in `Held`.
        synced: bool,
    },
    /// The put of an accepted release is not acknowledged: no further call is accepted unless the put fails.
    LastPut {
        /// As in `Held`.
        synced: bool,
    },
}

/// The work that an Extend interrupted.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Resume {
    /// The sync: its read begins anew, under the new fence.
    Sync,
    /// The holder's writes.
    Held {
        /// As in [`Phase::Held`].
        synced: bool,
    },
}

/// Whether a client was answered HELD (I5).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Claim {
    /// Not yet: evicted as unclaimed at this moment.
    Until(Observed),
    /// The number of answers and news that said HELD and were not lost.
    Answered(u32),
    /// A client named the grant, or the home before may have answered HELD.
    Claimed,
}

impl Claim {
    /// HELD is answered once more.
    pub fn answered(&mut self) {
        *self = match self {
            Claim::Until(_) => Claim::Answered(1),
            Claim::Answered(times) => Claim::Answered(times.saturating_add(1)),
            Claim::Claimed => Claim::Claimed,
        };
    }

    /// One HELD did not reach its client. Without another one, `until` is the claim deadline.
    fn lost(&mut self, until: Observed) {
        *self = match self {
            Claim::Until(_) | Claim::Answered(0 | 1) => Claim::Until(until),
            Claim::Answered(times) => Claim::Answered(*times - 1),
            Claim::Claimed => Claim::Claimed,
        };
    }
}

/// The put of a release, with the number of its call; 0 if the caller does not count.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum LastPut {
    /// No release with a put was accepted, or another call followed it.
    None,
    /// It waits, or is in flight.
    InFlight(u64),
    /// It failed, or may have failed: the call may be repeated.
    Failed(u64),
}

/// The kind of a critical call.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) enum CriticalKind {
    Get,
    Put(Option<Bytes>),
    /// A write, then the release.
    Release(Option<Bytes>),
}

impl CriticalKind {
    /// The error of a refused call. A release may repeat an earlier try that wrote; this is unknown if the entry has ended or is
    /// being released.
    pub fn refusal(&self, why: KeyError) -> CallError {
        let may_be_repeated = matches!(self, CriticalKind::Release(_));
        let may_have_written =
            may_be_repeated && matches!(why, KeyError::Ended(_) | KeyError::Releasing);
        CallError {
            why,
            may_have_written,
        }
    }
}

/// An accepted critical call.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Critical {
    pub call: CallId,
    pub entry: EntryRef,
    pub lease: LeaseStatus,
    pub kind: CriticalKind,
}

impl Critical {
    /// Whether it is the put of a release.
    pub fn is_release(&self) -> bool {
        matches!(self.kind, CriticalKind::Release(_))
    }
}

/// The writes of a fence.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(super) struct Writes {
    /// Timestamps in flight.
    in_flight: BTreeSet<u64>,
    /// The highest acknowledged timestamp.
    acknowledged: u64,
    /// The highest timestamp of unknown outcome.
    unknown: u64,
}

impl Writes {
    /// None in flight: the highest acknowledged timestamp, and the highest of unknown outcome.
    pub fn of_ended(acknowledged: u64, unknown: u64) -> Writes {
        Writes {
            in_flight: BTreeSet::new(),
            acknowledged,
            unknown,
        }
    }

    /// The arguments of [`Writes::of_ended`]; `None` with one in flight.
    pub fn ended(&self) -> Option<(u64, u64)> {
        let is_ended = self.in_flight.is_empty();
        is_ended.then_some((self.acknowledged, self.unknown))
    }

    pub fn begin(&mut self, timestamp: u64) {
        self.in_flight.insert(timestamp);
    }

    pub fn done(&mut self, timestamp: u64) {
        self.in_flight.remove(&timestamp);
        self.acknowledged = self.acknowledged.max(timestamp);
    }

    pub fn unknown(&mut self, timestamp: u64) {
        self.in_flight.remove(&timestamp);
        self.unknown = self.unknown.max(timestamp);
    }

    pub fn not_started(&mut self, timestamp: u64) {
        self.in_flight.remove(&timestamp);
    }

    /// Whether a write may yet take effect above the last acknowledged one (I7).
    pub fn are_open(&self) -> bool {
        let last = self.in_flight.last().copied().unwrap_or(0);
        last.max(self.unknown) > self.acknowledged
    }

    pub fn are_in_flight(&self) -> bool {
        !self.in_flight.is_empty()
    }

    /// The memory of a release without a put: unknown if a write under this grant may show.
    pub fn of_other_release(&self) -> LastWrite {
        match self.unknown == 0 && self.in_flight.is_empty() {
            true => LastWrite::None,
            false => LastWrite::Unknown,
        }
    }

    /// Whether this write was acknowledged and is the last one.
    pub fn ends_with(&self, timestamp: u64) -> bool {
        self.acknowledged == timestamp && !self.are_open()
    }
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Holder {
    pub seq: Seq,
    pub tag: Tag,
    pub grant: Fence,
    pub fence: Fence,
    pub width: u32,
    /// The last op taken from this fence; 0 is the sync's (I3).
    op: u32,
    pub phase: Phase,
    pub claim: Claim,
    pub writes: Writes,
    /// The highest timestamp met in the data that this fence did not give out (I2).
    past: Option<u64>,
    pub last_call_no: u64,
    pub last_put: LastPut,
    /// The first HELD answer, or the claim.
    pub in_use_since: Option<Observed>,
    /// It found the queue empty.
    pub at_once: bool,
    /// It held the key before this replica became the home; not reported yet.
    pub held_before: bool,
    /// Failed tries of its sync.
    pub sync_tries: u32,
    /// Accepted calls that wait for the sync or for timestamps, in order.
    pub queued: VecDeque<Critical>,
}

impl Holder {
    /// The holder of this state, still unknown to clients.
    pub fn new(entry: &Entry, state: &KeyState, claim: Claim, at_once: bool) -> Self {
        Holder {
            seq: entry.seq,
            tag: entry.tag,
            grant: state.grant,
            fence: state.fence,
            width: state.width,
            op: 0,
            phase: Phase::Granting,
            claim,
            writes: Writes::default(),
            past: None,
            last_call_no: 0,
            last_put: LastPut::None,
            in_use_since: None,
            at_once,
            held_before: false,
            sync_tries: 0,
            queued: VecDeque::new(),
        }
    }

    /// The report of its grant.
    pub fn granted(&mut self) -> Report {
        Report::Granted {
            seq: self.seq,
            at_once: self.at_once,
            held_before: std::mem::take(&mut self.held_before),
        }
    }

    /// The last op taken from this fence, and the highest foreign timestamp in the data.
    pub fn timestamps(&self) -> (u32, Option<u64>) {
        (self.op, self.past)
    }

    /// Restores [`Holder::timestamps`].
    pub fn with_timestamps(self, op: u32, past: Option<u64>) -> Self {
        Holder { op, past, ..self }
    }

    pub fn entry(&self) -> EntryRef {
        EntryRef {
            seq: self.seq,
            tag: self.tag,
            grant: Some(self.grant),
        }
    }

    pub fn shrink(&mut self) {
        if self.queued.is_empty() {
            self.queued = VecDeque::new();
        }
    }

    /// Whether no further critical call is accepted.
    pub fn is_closing(&self) -> bool {
        let closes = matches!(self.phase, Phase::LastPut { .. });
        closes || self.queued.iter().any(Critical::is_release)
    }

    /// Whether HELD may be answered.
    pub fn is_held(&self) -> bool {
        matches!(self.phase, Phase::Held { .. })
    }

    fn synced(&self) -> bool {
        match self.phase {
            Phase::Held { synced }
            | Phase::Settling { synced }
            | Phase::LastPut { synced }
            | Phase::Extending(Resume::Held { synced }) => synced,
            Phase::Granting
            | Phase::Unsynced
            | Phase::SyncRead(_)
            | Phase::SyncWrite { .. }
            | Phase::SyncPaused { .. }
            | Phase::Extending(Resume::Sync) => false,
        }
    }

    /// The put of a release failed or never began: the client may repeat the call (I11).
    pub fn last_put_failed(&mut self) {
        if let LastPut::InFlight(call_no) = self.last_put {
            self.last_put = LastPut::Failed(call_no);
        }
    }

    /// The end of the timestamps of its fence.
    pub fn width_end(&self) -> u64 {
        self.fence.0.saturating_add(u64::from(self.width))
    }

    /// HELD is answered, or its client named the grant.
    pub fn note_in_use(&mut self, now: Observed) {
        self.in_use_since.get_or_insert(now);
    }

    /// Whether no client was answered HELD, or no such answer arrived.
    pub fn is_unclaimed(&self) -> bool {
        matches!(self.claim, Claim::Until(_))
    }

    /// One HELD did not reach its client. Without another one the lock is not in use and does not become durable: the next home
    /// takes a durable holder for a claimed one.
    pub fn answer_lost(&mut self, claim_until: Observed) {
        self.claim.lost(claim_until);
        if self.is_unclaimed() {
            self.in_use_since = None;
        }
    }

    /// The meaning of its end for the next holder (I7).
    pub fn writes_of_holder(&self) -> WritesOfHolder {
        WritesOfHolder {
            synced: self.synced(),
            open: self.writes.are_open(),
        }
    }

    /// It got another fence, with more timestamps.
    pub fn extended(&mut self, state: &KeyState) {
        self.width = state.width;
        self.fence = state.fence;
        self.op = 0;
        if self.past.is_some_and(|past| past < state.fence.0) {
            self.past = None;
        }
    }

    /// Goes on after an Extend, successful or not.
    pub fn resume(&mut self, resume: Resume) {
        self.phase = match resume {
            Resume::Sync => Phase::Unsynced,
            Resume::Held { synced } => Phase::Held { synced },
        };
    }

    /// The last timestamp taken from this fence.
    pub fn last_timestamp(&self) -> u64 {
        self.fence.0 + u64::from(self.op)
    }

    /// The next write timestamp; `None` if the fence has none left, or the data has one as high.
    pub fn next_timestamp(&mut self) -> Option<u64> {
        let next = self.op + 1;
        let timestamp = self.fence.0 + u64::from(next);
        if next >= self.width || self.past.is_some_and(|past| past >= timestamp) {
            return None;
        }
        self.op = next;
        Some(timestamp)
    }

    /// Notes a timestamp met in the data.
    pub fn saw(&mut self, timestamp: u64) {
        if timestamp > self.last_timestamp() {
            self.past = self.past.max(Some(timestamp));
        }
    }

    /// The highest timestamp met in the data that this fence did not give out.
    pub fn past(&self) -> Option<u64> {
        self.past
    }
}
