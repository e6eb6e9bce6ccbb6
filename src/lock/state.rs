//! The parts of a key's state: numbers, ids, lives and ends of entries.

use std::collections::VecDeque;
use std::fmt;
use std::ops::Range;

use uuid::Uuid;

use super::secret::{SessionId, Tag};

/// The number of an entry in the queue of a key: assigned by its home in the order of Creates (I1), rising, never reused. Starts
/// at 1.
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

/// The way in which an entry holds the key. Room is left for shared modes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Mode {
    /// One holder at a time.
    Exclusive,
}

/// The source of an entry's liveness.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Liveness {
    /// Its own TTL, kept by its home.
    Own {
        /// In milliseconds.
        ttl_ms: u32,
    },
    /// A session.
    Session(SessionId),
}

/// Why an entry ended other than by a clean release.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum EndReason {
    /// No renewal for its TTL.
    Expired,
    /// Its session was closed or expired.
    SessionClosed,
    /// It was first for one TTL, and no client claimed it (I5).
    Unclaimed,
    /// An operator ended it.
    Forced {
        /// The operator.
        by: Box<str>,
        /// The reason.
        why: Box<str>,
    },
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
    /// Oldest end first.
    pub entries: VecDeque<EndedEntry>,
    /// From this seq on the list is complete: an ended seq that is not listed was released cleanly, ...
    pub complete_from: Seq,
    /// ... except for these: a home may have given out or ended them ahead of the row before it crashed.
    pub unknown: Range<Seq>,
}

impl Default for Ended {
    /// The ends of an unused key.
    fn default() -> Self {
        Ended {
            entries: VecDeque::new(),
            complete_from: Seq::FIRST,
            unknown: Seq(0)..Seq(0),
        }
    }
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

    /// Marks the unlisted ends of these seqs as unknown. Only one range is kept: an earlier one apart from it makes everything
    /// below its end unknown.
    pub(crate) fn forget(&mut self, seqs: Range<Seq>) {
        let before = std::mem::replace(&mut self.unknown, seqs);
        if before.is_empty() {
            return;
        }
        if self.unknown.start <= before.end {
            self.unknown.start = self.unknown.start.min(before.start);
        } else {
            self.complete_from = self.complete_from.max(before.end);
        }
    }

    /// The known end of an issued entry that is not live.
    pub(crate) fn end_of(&self, seq: Seq) -> EndedAs {
        match self.entries.iter().rev().find(|e| e.seq == seq) {
            Some(ended) => EndedAs::Lost(ended.reason.clone()),
            None if seq >= self.complete_from && !self.unknown.contains(&seq) => EndedAs::Released,
            None => EndedAs::NoLongerKept,
        }
    }

    /// The known end of the entry of this request, other than a clean release.
    pub(crate) fn of_tag(&self, tag: Tag) -> Option<EndedAs> {
        let latest = self.entries.iter().rev().find(|e| e.tag == tag);
        latest.map(|ended| EndedAs::Lost(ended.reason.clone()))
    }

    /// As [`Ended::end_of`], for a tag; `NeverIssued` if the ended entry had another one.
    pub(crate) fn lookup(&self, seq: Seq, tag: Tag) -> Lookup {
        let other = |e: &EndedEntry| e.seq == seq && e.tag != tag;
        match self.entries.iter().any(other) {
            true => Lookup::NeverIssued,
            false => Lookup::Ended(self.end_of(seq)),
        }
    }
}

/// The known end of an entry.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum EndedAs {
    /// Released cleanly.
    Released,
    /// Ended otherwise.
    Lost(EndReason),
    /// The reason is not kept: too old, or lost with the home before its row knew.
    NoLongerKept,
}

/// The meaning of a seq and its tag in a state.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Lookup {
    /// A live entry, with its index in the queue: the number of entries ahead.
    Live(usize),
    /// It has ended.
    Ended(EndedAs),
    /// This key never issued such an entry.
    NeverIssued,
}
