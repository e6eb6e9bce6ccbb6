//! The state of one key: its home, its queue, its fence, and the reserve of its home.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::lock::{Ended, EndedAs, Fence, Liveness, Lookup, Mode, ReplicaId, Seq, Tag};

/// A live entry in the queue of a key.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Entry {
    /// Its number.
    pub seq: Seq,
    /// Its lock mode.
    pub mode: Mode,
    /// The digest of its secret: names the request that made it, and the client that may act for it. The same tag finds the same
    /// entry while it lives (I5).
    pub tag: Tag,
    /// Its own TTL, or a session.
    pub liveness: Liveness,
    /// The identity of its creator; empty if unknown.
    pub identity: Box<str>,
    /// The label of its creator, for people.
    pub owner: Box<str>,
    /// Its creation by its creator's clock, in milliseconds since 1970. For people only (I9).
    pub created_at_ms: i64,
}

/// The replica that decides about a key, and its term.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Home {
    /// The replica.
    pub replica: ReplicaId,
    /// Raised by one with every change of home, like a term in Raft.
    pub term: u64,
}

/// The reserve that a home may use without another commit. With write-through nothing lies ahead of the row: `seq_end` is `next`,
/// `fence_end` is the end of the fence's width, and `volatile_end` is 0.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Reserved {
    /// Seqs below it may have been given out in this term.
    pub seq_end: Seq,
    /// Fences and write timestamps below it may have been used in this term.
    pub fence_end: u64,
    /// Entries below it may have been granted, and may have ended, without the row knowing.
    pub volatile_end: Seq,
}

/// The state of one key, as the store keeps it.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct KeyState {
    /// The guard of compare-and-swap: 0 for a key without a row, +1 for every committed change.
    pub version: u64,
    /// The replica that decides about the key; `None` before its first use.
    pub home: Option<Home>,
    /// The next seq to hand out.
    pub next: Seq,
    /// The fence of the present grant; [`Fence::NONE`] while nobody holds the key.
    pub grant: Fence,
    /// The fence that the holder's writes use: `grant`, or more after Extend. Stays when the holder goes.
    pub fence: Fence,
    /// The number of timestamps in `fence` (I3).
    pub width: u32,
    /// A write of a former grant may still arrive: the value is rewritten before HELD is answered under the next one (I7).
    pub unsynced: bool,
    /// The reserve ahead of this row.
    pub reserved: Reserved,
    /// The durable holder: a crash of the home cannot take the lock from it. `None` without a holder, or with a volatile one.
    pub kept: Option<Seq>,
    /// After a hand-over: the time for the first call here of a first entry without a call at the home before, in milliseconds; 0
    /// means a whole TTL (H4). So an abandoned entry does not stay first from home to home.
    pub first_left_ms: u32,
    /// The live entries in the order of their seqs (I1).
    pub entries: VecDeque<Arc<Entry>>,
    /// The latest ends other than clean releases.
    pub ended: Ended,
}

impl Default for KeyState {
    fn default() -> Self {
        KeyState {
            version: 0,
            home: None,
            next: Seq::FIRST,
            grant: Fence::NONE,
            fence: Fence::NONE,
            width: 0,
            unsynced: false,
            reserved: Reserved {
                seq_end: Seq::FIRST,
                fence_end: 0,
                volatile_end: Seq(0),
            },
            kept: None,
            first_left_ms: 0,
            entries: VecDeque::new(),
            ended: Ended::default(),
        }
    }
}

impl KeyState {
    /// The term of the home; 0 before the first use.
    pub fn term(&self) -> u64 {
        self.home.map_or(0, |home| home.term)
    }

    /// Whether this replica is the home, in this term.
    pub fn is_home(&self, home: Home) -> bool {
        self.home == Some(home)
    }

    /// The first entry of the queue, which holds the key once it has a grant.
    pub fn first(&self) -> Option<&Arc<Entry>> {
        self.entries.front()
    }

    /// The entry that holds the key.
    pub fn holder(&self) -> Option<&Arc<Entry>> {
        self.first().filter(|_| self.grant != Fence::NONE)
    }

    /// Every seq below it has ended: the seq of the first live entry, or `next`.
    pub fn head(&self) -> Seq {
        self.first().map_or(self.next, |entry| entry.seq)
    }

    /// The position of the live entry with this seq: the number of entries ahead.
    pub fn position(&self, seq: Seq) -> Option<usize> {
        self.entries.binary_search_by(|e| e.seq.cmp(&seq)).ok()
    }

    /// The live entry with this seq.
    pub fn entry(&self, seq: Seq) -> Option<&Arc<Entry>> {
        self.position(seq).and_then(|at| self.entries.get(at))
    }

    /// Whether this row alone carries an entry through a crash of its home: as the holder, or at its place in the queue.
    pub fn keeps(&self, seq: Seq) -> bool {
        let is_listed = self.position(seq).is_some();
        self.kept == Some(seq) || (is_listed && seq >= self.reserved.volatile_end)
    }

    /// The known end of an issued entry that is not live.
    pub fn end_of(&self, seq: Seq) -> EndedAs {
        self.ended.end_of(seq)
    }

    /// Whether an entry has or had this number.
    pub fn has_issued(&self, seq: Seq) -> bool {
        (Seq::FIRST..self.next).contains(&seq)
    }

    /// The meaning of a seq and its tag.
    pub fn lookup(&self, seq: Seq, tag: Tag) -> Lookup {
        if !self.has_issued(seq) {
            return Lookup::NeverIssued;
        }
        if let Some(at) = self.position(seq) {
            return match self.entries.get(at) {
                Some(entry) if entry.tag == tag => Lookup::Live(at),
                _ => Lookup::NeverIssued,
            };
        }
        self.ended.lookup(seq, tag)
    }

    /// Whether a home of this row may have granted the key, or ended entries, ahead of the row.
    pub fn may_be_behind(&self) -> bool {
        self.reserved.volatile_end > self.head() || self.reserved.seq_end > self.next
    }

    /// The end of the fence's timestamps.
    pub(super) fn width_end(&self) -> u64 {
        self.fence.0.saturating_add(u64::from(self.width))
    }

    /// Reserves nothing ahead of the row (H5, write-through): decisions are committed before they are answered.
    pub(super) fn reserve_nothing(&mut self) {
        self.reserved = Reserved {
            seq_end: self.next,
            fence_end: self.width_end(),
            volatile_end: Seq(0),
        };
        self.kept = self.holder().map(|entry| entry.seq);
    }

    /// Checks that the parts agree; the error names the first fault. A store checks each row that it reads before any use.
    pub fn check(&self) -> Result<(), &'static str> {
        if self.next < Seq::FIRST || self.next > Seq(Seq::LAST.0 + 1) {
            return Err("next is out of range");
        }
        if self.width_end() > Fence::MAX || self.reserved.fence_end > Fence::MAX {
            return Err("fence is out of range");
        }
        if self.reserved.seq_end < self.next {
            return Err("seq_end is below next");
        }
        if self.reserved.fence_end < self.width_end() {
            return Err("fence_end is below the end of the fence");
        }
        let pairs = self.entries.iter().zip(self.entries.iter().skip(1));
        if pairs.into_iter().any(|(a, b)| a.seq >= b.seq) {
            return Err("entries are out of order");
        }
        if self.entries.front().is_some_and(|e| e.seq < Seq::FIRST)
            || self.entries.back().is_some_and(|e| e.seq >= self.next)
        {
            return Err("an entry was never given out");
        }
        if self.entries.is_empty() && self.grant != Fence::NONE {
            return Err("a grant without a holder");
        }
        if self.grant > self.fence {
            return Err("grant is above fence");
        }
        if self.kept.is_some() && self.kept != self.holder().map(|e| e.seq) {
            return Err("kept is not the holder");
        }
        if self.home.is_none() && !self.entries.is_empty() {
            return Err("a queue without a home");
        }
        let issued = Seq::FIRST..self.next;
        if self.ended.entries.iter().any(|e| !issued.contains(&e.seq)) {
            return Err("an ended entry was never given out");
        }
        if self
            .ended
            .entries
            .iter()
            .any(|e| self.position(e.seq).is_some())
        {
            return Err("an ended entry is live");
        }
        if !(Seq::FIRST..=self.next).contains(&self.ended.complete_from) {
            return Err("complete_from is out of range");
        }
        if self.ended.unknown.end > self.next {
            return Err("unknown ends reach beyond next");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
