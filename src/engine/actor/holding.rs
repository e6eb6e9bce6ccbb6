//! What the home of a holder remembers of its fence, until the store shows that the fence has ended (I10).

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use super::critical::Critical;
use crate::lock::{Entry, Fence, Seq, Tag};
use crate::store::Cell;

/// How far granting the lock to the holder has come (I7).
#[derive(Debug)]
pub(super) enum SyncPhase {
    /// The value must be synced under this fence first.
    Unsynced,
    /// The one read of this fence is in flight.
    Reading,
    /// What was read is being rewritten at op 0, with the same content until that is acknowledged.
    Writing(Cell),
    /// It was rewritten, and the last read of the key is too long ago by now: it is looked at first (I10).
    Looking,
    /// The holder may be granted the lock.
    Open,
}

/// Whether a holder is being evicted because nobody claimed it. While it is, nobody is granted the lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Unclaimed {
    No,
    /// By the swap in flight.
    Evicting,
    /// By one that may yet take effect.
    InDoubt,
}

/// How far the put of a release has come. The numbers are those of their calls; 0 for none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum LastPut {
    /// There is none.
    None,
    /// It is not acknowledged yet: nothing more is taken unless it fails.
    InFlight(u64),
    /// It was acknowledged.
    Written(u64),
    /// It failed, and nothing was accepted since: the same call may come again.
    Failed(u64),
}

/// What the home of a holder remembers of its fence.
pub(super) struct HolderState {
    pub seq: Seq,
    pub tag: Tag,
    pub grant: Fence,
    pub fence: Fence,
    pub width: u32,
    /// The last op of this fence that was given out; 0 is the sync rewrite (I3).
    pub op: u32,
    pub sync_phase: SyncPhase,
    /// The value was rewritten under this grant.
    pub synced: bool,
    /// When it was last answered HELD, or had a critical call accepted, by CLOCK_BOOTTIME.
    pub served_at: Option<Duration>,
    /// An answer said HELD to someone who was there to hear it (I5).
    pub claimed: bool,
    /// Whether it is being evicted because nobody claimed it.
    pub unclaimed: Unclaimed,
    /// The claim is being watched.
    pub claim_watched: bool,
    /// A release was accepted: nothing more is taken, and nothing more is begun.
    pub releasing: bool,
    /// How far the put of a release has come.
    pub last_put: LastPut,
    /// An Extend is asked for.
    pub extending: bool,
    /// The highest timestamp seen in the data that this fence did not give out (I2).
    pub past: Option<u64>,
    pub last_call_no: u64,
    /// Timestamps of writes that are in flight.
    pub writing: BTreeSet<u64>,
    /// The highest timestamp of a write that was acknowledged.
    pub acked: u64,
    /// The highest timestamp of a write whose outcome is not known.
    pub unknown: u64,
    /// Critical calls in flight or put off.
    pub calls: usize,
    /// Critical calls that wait for the sync phase or for an Extend.
    pub put_off: VecDeque<Critical>,
}

impl HolderState {
    pub fn new(entry: &Entry, grant: Fence, width: u32, unsynced: bool) -> Self {
        HolderState {
            seq: entry.seq,
            tag: entry.tag(),
            grant,
            fence: grant,
            width,
            op: 0,
            sync_phase: if unsynced {
                SyncPhase::Unsynced
            } else {
                SyncPhase::Open
            },
            synced: false,
            served_at: None,
            claimed: false,
            unclaimed: Unclaimed::No,
            claim_watched: false,
            releasing: false,
            last_put: LastPut::None,
            extending: false,
            past: None,
            last_call_no: 0,
            writing: BTreeSet::new(),
            acked: 0,
            unknown: 0,
            calls: 0,
            put_off: VecDeque::new(),
        }
    }

    pub fn is_open(&self) -> bool {
        matches!(self.sync_phase, SyncPhase::Open)
    }

    /// Whether nobody may be granted the lock any more.
    pub fn is_unclaimed(&self) -> bool {
        self.unclaimed != Unclaimed::No
    }

    /// Whether the put of the release with this number was acknowledged.
    pub fn has_written_last(&self, call_no: u64) -> bool {
        call_no > 0 && self.last_put == LastPut::Written(call_no)
    }

    /// The put of the release that is in flight was acknowledged, or failed.
    pub fn end_last_put(&mut self, written: bool) {
        if let LastPut::InFlight(call_no) = self.last_put {
            self.last_put = match written {
                true => LastPut::Written(call_no),
                false => LastPut::Failed(call_no),
            };
        }
    }

    /// The last timestamp that this fence gave out.
    pub fn last_timestamp(&self) -> u64 {
        self.fence.0 + u64::from(self.op)
    }

    /// The next write timestamp; `None` if the fence has none left, or would not show above what the
    /// data already holds: then Extend first.
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
        if timestamp > self.last_timestamp() && !self.writing.contains(&timestamp) {
            self.past = Some(self.past.map_or(timestamp, |past| past.max(timestamp)));
        }
    }

    /// A write whose outcome is not known, and that no later acknowledged write covers (I7).
    pub fn has_open_write(&self) -> bool {
        let open = self.writing.last().copied().unwrap_or(0).max(self.unknown);
        open > self.acked
    }
}
