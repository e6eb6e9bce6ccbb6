//! The recently released entries. A repeated create finds the entry of its request, and makes no second one (I5). A repeated release
//! learns whether its put was written. Entries with another end are listed in the row.
//!
//! This is the memory of one home: a take-over, a hand-over or a restart loses it. After that a repeated create makes a new entry, and
//! a repeated release with a put is told that its write is unknown.

use std::collections::VecDeque;

use crate::lock::{Fence, Seq, Tag};
use crate::session::Observed;

/// Releases that a key remembers: 20 KB at most, and each create searches them. A repeat after more releases than that within a
/// TTL takes a new entry, which ends unclaimed.
const RELEASED_MAX: usize = 256;

/// The latest releases, oldest first.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(super) struct Released {
    entries: VecDeque<ReleasedEntry>,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct ReleasedEntry {
    pub seq: Seq,
    pub tag: Tag,
    /// The grant of a holder; none of a waiter.
    pub grant: Fence,
    pub put: LastWrite,
    /// A TTL after the release.
    pub until: Observed,
}

/// The known outcome of the put of a release.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum LastWrite {
    /// No put, and no write of unknown outcome under this grant.
    None,
    /// No put; an earlier write may have taken effect.
    Unknown,
    /// Written by the call with this number; 0 if the caller does not count.
    Written(u64),
}

/// The outcome of the put in a repeated release.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum PutOfRepeat {
    /// It was written with the release.
    Written,
    /// The first release came without it.
    NotWritten,
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

    /// The entry of this request.
    pub fn of_tag(&self, tag: Tag, now: Observed) -> Option<&ReleasedEntry> {
        let mut latest = self.entries.iter().rev();
        latest.find(|entry| entry.tag == tag && entry.until > now)
    }

    /// The entry with this number, however long ago it was released.
    pub fn of_seq(&self, seq: Seq) -> Option<&ReleasedEntry> {
        self.entries.iter().rev().find(|e| e.seq == seq)
    }

    /// Forgets entries after their TTL.
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
    /// The outcome of the put in a release that repeats or follows another one.
    pub fn put_of_repeat(&self, grant: Option<Fence>, call_no: u64) -> PutOfRepeat {
        match self.put {
            LastWrite::Written(written) if written == call_no => PutOfRepeat::Written,
            // Another grant: this home may not know of the earlier try.
            LastWrite::None if grant.is_none_or(|grant| grant == self.grant) => {
                PutOfRepeat::NotWritten
            }
            LastWrite::None | LastWrite::Unknown | LastWrite::Written(_) => PutOfRepeat::Unknown,
        }
    }
}
