//! The recently released entries. A repeated create finds the entry of its request, and makes no second one (I5). A repeated release
//! learns whether its put was written. Entries with another end are listed in the row.
//!
//! This is the memory of one home: a take-over, a hand-over or a restart loses it. After that a repeated create makes a new entry, and
//! a repeated release with a put is told that its write is unknown.

use std::collections::VecDeque;

use crate::lock::{Fence, Seq, Tag};
use crate::session::Observed;

/// How many a key remembers, the latest: 20 KB at most of a key that changes hands so often within a TTL, and a create looks
/// through all of them. A repeat that comes after so many further releases takes a new entry, which ends unclaimed.
const RELEASED_MAX: usize = 256;

/// The latest releases, oldest first.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(super) struct Released {
    entries: VecDeque<ReleasedEntry>,
}

/// One entry that was released.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct ReleasedEntry {
    pub seq: Seq,
    pub tag: Tag,
    /// The grant that it held the key under; none of a waiter.
    pub grant: Fence,
    pub put: LastWrite,
    /// It is remembered for a TTL.
    pub until: Observed,
}

/// What is known of the put of a release.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum LastWrite {
    /// It carried none, and no write under this grant is of unknown outcome.
    None,
    /// It carried none; an earlier write may have taken effect.
    Unknown,
    /// It was written by the call with this number; 0 where its caller does not count.
    Written(u64),
}

/// What a repeated release hears of the put that it carries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum PutOfRepeat {
    /// It was written with the release.
    Written,
    /// The release came without it.
    NotWritten,
    /// That cannot be told.
    Unknown,
}

impl Released {
    /// Notes a release.
    pub fn push(&mut self, entry: ReleasedEntry, now: Observed) {
        while let Some(first) = self.entries.front()
            && (first.until <= now || self.entries.len() >= RELEASED_MAX)
        {
            self.entries.pop_front();
        }
        self.entries.push_back(entry);
    }

    /// The entry that this request made.
    pub fn of_tag(&self, tag: Tag, now: Observed) -> Option<&ReleasedEntry> {
        let mut latest = self.entries.iter().rev();
        latest.find(|entry| entry.tag == tag && entry.until > now)
    }

    /// The entry with this number, however long ago it was released.
    pub fn of_seq(&self, seq: Seq) -> Option<&ReleasedEntry> {
        self.entries.iter().rev().find(|e| e.seq == seq)
    }

    /// Forgets those whose TTL has passed.
    pub fn forget(&mut self, now: Observed) {
        self.entries.retain(|entry| entry.until > now);
        if self.entries.is_empty() {
            self.entries = VecDeque::new();
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = &ReleasedEntry> {
        self.entries.iter()
    }
}

impl FromIterator<ReleasedEntry> for Released {
    fn from_iter<I: IntoIterator<Item = ReleasedEntry>>(entries: I) -> Self {
        Released {
            entries: entries.into_iter().collect(),
        }
    }
}

impl ReleasedEntry {
    /// What became of the put that a release carries which is repeated, or comes after another one.
    pub fn put_of_repeat(&self, grant: Option<Fence>, call_no: u64) -> PutOfRepeat {
        match self.put {
            LastWrite::Written(written) if written == call_no => PutOfRepeat::Written,
            // An earlier try under another grant is one that this home may not know.
            LastWrite::None if grant.is_none_or(|grant| grant == self.grant) => {
                PutOfRepeat::NotWritten
            }
            LastWrite::None | LastWrite::Unknown | LastWrite::Written(_) => PutOfRepeat::Unknown,
        }
    }
}
