//! The state of one key: its queue, its fence and its latest ends.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use uuid::Uuid;

use super::fence::Fence;
use super::lock_ref::Tag;

/// The number of an entry in the queue of a key: dense, assigned by the committed order of Creates (I1), never
/// reused. Starts at 1.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Seq(pub u64);

impl Seq {
    /// The first one.
    pub const FIRST: Seq = Seq(1);
    /// The last one; the number above it marks the end of a key's rows in the store.
    pub const LAST: Seq = Seq(i64::MAX as u64 - 1);
}

impl fmt::Debug for Seq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}", self.0)
    }
}

impl fmt::Display for Seq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// One running process of the service, new at every start.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ReplicaId(pub Uuid);

impl fmt::Display for ReplicaId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A client's session.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SessionId(pub Uuid);

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// How an entry holds the key once it is its turn. Room is left for shared modes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Mode {
    /// One holder at a time.
    Exclusive,
}

/// What an entry lives by.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Liveness {
    /// Its own time to live, kept valid by its home.
    Own {
        /// In milliseconds.
        ttl_ms: u32,
    },
    /// A session.
    Session(SessionId),
}

/// A live entry in the queue.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Entry {
    /// Its number.
    pub seq: Seq,
    /// How it holds the key.
    pub mode: Mode,
    /// Who asked for it: the same id finds the same entry for as long as it lives (I5).
    pub request_id: Uuid,
    /// What it lives by.
    pub liveness: Liveness,
    /// Raised by every TakeOver; evidence that it expired names the epoch it was seen at.
    pub epoch: u32,
    /// The replica that serves it (I10).
    pub home: ReplicaId,
    /// Who its creator was, as far as the server knows; empty if it does not.
    pub identity: Box<str>,
    /// The label its creator gave, for people.
    pub owner: Box<str>,
    /// When it was created by its creator's clock, in milliseconds since 1970. For people only (I9).
    pub created_at_ms: i64,
}

impl Entry {
    /// The part of its lockRef that cannot be guessed.
    pub fn tag(&self) -> Tag {
        Tag::of(self.request_id)
    }
}

/// Why an entry ended other than by a clean release.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum EndReason {
    /// No renewal for its TTL.
    Expired,
    /// Its session was closed or expired.
    SessionClosed,
    /// It was the head for one TTL and nobody claimed it (I5).
    Unclaimed,
    /// An operator ended it.
    Forced {
        /// Who.
        by: Box<str>,
        /// Why.
        why: Box<str>,
    },
    /// It was released through a replica that was not its home (I7).
    Foreign,
}

/// One remembered end.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct EndedEntry {
    /// Its number.
    pub seq: Seq,
    /// The tag of its lockRef.
    pub tag: Tag,
    /// Why it ended.
    pub reason: EndReason,
}

/// The latest ends other than clean releases.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Ended {
    /// Oldest first, in the order in which they ended.
    pub entries: VecDeque<EndedEntry>,
    /// From this seq on the list is complete: a seq that has ended and not listed was released cleanly.
    pub complete_from: Seq,
}

impl Ended {
    pub(crate) fn push(&mut self, entry: EndedEntry, ended_max: usize) {
        self.entries.push_back(entry);
        while self.entries.len() > ended_max {
            if let Some(forgotten) = self.entries.pop_front() {
                let after = Seq(forgotten.seq.0 + 1);
                self.complete_from = self.complete_from.max(after);
            }
        }
    }

    /// How an entry that is not live, and was given out, is known to have ended.
    pub(crate) fn end_of(&self, seq: Seq) -> EndedAs {
        match self.entries.iter().rev().find(|e| e.seq == seq) {
            Some(ended) => EndedAs::Lost(ended.reason.clone()),
            None if seq >= self.complete_from => EndedAs::Released,
            None => EndedAs::NoLongerKept,
        }
    }

    /// As [`Ended::end_of`], of one with this tag; never issued where the one that ended had another.
    pub(crate) fn lookup(&self, seq: Seq, tag: Tag) -> Lookup {
        let other = |e: &EndedEntry| e.seq == seq && e.tag != tag;
        match self.entries.iter().any(other) {
            true => Lookup::NeverIssued,
            false => Lookup::Ended(self.end_of(seq)),
        }
    }
}

/// How an entry that is gone is known to have ended.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum EndedAs {
    /// Released cleanly.
    Released,
    /// Ended otherwise.
    Lost(EndReason),
    /// So long ago that the reason is no longer kept.
    NoLongerKept,
}

/// What a seq and its tag mean in a state.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Lookup {
    /// A live entry: its index in [`State::entries`], which is how many are ahead of it.
    Live(usize),
    /// It has ended.
    Ended(EndedAs),
    /// This key never gave out such an entry.
    NeverIssued,
}

/// The state of one key.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct State {
    /// The guard of compare-and-swap: 0 for a key without a row, +1 for every committed change.
    pub version: u64,
    /// The next seq to hand out.
    pub next: Seq,
    /// Every seq below it has ended. The seq of the first live entry, or `next`.
    pub head: Seq,
    /// The fence given to the present holder when it became holder or was taken over; [`Fence::NONE`]
    /// while nobody holds the key. The head of the queue waits like all others while no fence can be taken for it.
    pub grant: Fence,
    /// The fence that the holder's writes use: `grant`, or more after Extend. Stays when it goes.
    pub fence: Fence,
    /// How many timestamps belong to `fence` (I3).
    pub width: u32,
    /// A holder went without a clean release: the next one must rewrite the value first (I7).
    pub unsynced: bool,
    /// The live entries in the order of their seqs.
    pub entries: VecDeque<Arc<Entry>>,
    /// The latest ends.
    pub ended: Ended,
}

impl Default for State {
    fn default() -> Self {
        State {
            version: 0,
            next: Seq::FIRST,
            head: Seq::FIRST,
            grant: Fence::NONE,
            fence: Fence::NONE,
            width: 0,
            unsynced: false,
            entries: VecDeque::new(),
            ended: Ended {
                entries: VecDeque::new(),
                complete_from: Seq::FIRST,
            },
        }
    }
}

impl State {
    /// The holder of the key: the head of the queue, once it has a grant.
    pub fn holder(&self) -> Option<&Arc<Entry>> {
        self.entries.front().filter(|_| self.grant != Fence::NONE)
    }

    /// Whether this entry holds the key.
    pub fn is_holder(&self, seq: Seq) -> bool {
        self.holder().is_some_and(|entry| entry.seq == seq)
    }

    /// Whether the head of the queue has no grant yet, because no fence could be taken for it.
    pub fn awaits_grant(&self) -> bool {
        self.grant == Fence::NONE && !self.entries.is_empty()
    }

    /// The live entry with this seq: how many are ahead of it.
    pub fn position(&self, seq: Seq) -> Option<usize> {
        self.entries.binary_search_by(|e| e.seq.cmp(&seq)).ok()
    }

    /// The live entry with this seq.
    pub fn entry(&self, seq: Seq) -> Option<&Arc<Entry>> {
        self.position(seq).and_then(|at| self.entries.get(at))
    }

    /// How an entry that is not live, and was given out, is known to have ended.
    pub fn how_ended(&self, seq: Seq) -> EndedAs {
        self.ended.end_of(seq)
    }

    /// What a seq and its tag mean here.
    pub fn lookup(&self, seq: Seq, tag: Tag) -> Lookup {
        if seq < Seq::FIRST || seq >= self.next {
            return Lookup::NeverIssued;
        }
        if let Some(at) = self.position(seq) {
            return match self.entries.get(at) {
                Some(entry) if entry.tag() == tag => Lookup::Live(at),
                _ => Lookup::NeverIssued,
            };
        }
        self.ended.lookup(seq, tag)
    }

    /// Whether the parts agree with each other; the first that does not. A store calls this on what
    /// it read before anybody acts on it.
    pub fn check(&self) -> Result<(), &'static str> {
        if self.next < Seq::FIRST || self.next > Seq(Seq::LAST.0 + 1) {
            return Err("next is out of range");
        }
        if self.fence.0.saturating_add(u64::from(self.width)) > Fence::MAX {
            return Err("fence is out of range");
        }
        let first = self.entries.front().map_or(self.next, |e| e.seq);
        if first != self.head {
            return Err("head is not the first live entry");
        }
        if self
            .entries
            .iter()
            .zip(self.entries.iter().skip(1))
            .any(|(a, b)| a.seq >= b.seq)
        {
            return Err("entries are out of order");
        }
        if self.entries.back().is_some_and(|e| e.seq >= self.next) {
            return Err("an entry is not below next");
        }
        if self.entries.is_empty() && self.grant != Fence::NONE {
            return Err("a grant without a holder");
        }
        if self.grant > self.fence {
            return Err("grant is above fence");
        }
        let issued = Seq::FIRST..self.next;
        let mut ends = self.ended.entries.iter().map(|e| e.seq);
        if ends.any(|seq| !issued.contains(&seq)) {
            return Err("an ended entry was never given out");
        }
        let mut ends = self.ended.entries.iter().map(|e| e.seq);
        if ends.any(|seq| self.position(seq).is_some()) {
            return Err("an ended entry is live");
        }
        if !(Seq::FIRST..=self.next).contains(&self.ended.complete_from) {
            return Err("the list of ends is complete from an entry out of range");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
