//! The rules of lock columns in a row. Pure: cells in, decisions out.
//!
//! A contender writes an *attempt*, a column of its own, and reads all lock columns. If there is no other one, it holds the row: it
//! replaces the attempt by its lock column. Else it removes the attempt. Of two contenders that write and then read, by quorums,
//! one at least reads the other.
//!
//! The value of a lock column begins with its end, eight bytes as in Astyanax, so that clients of both kinds exclude each other. A
//! column whose end has passed is *stale*: nobody counts it.
//!
//! A contender that waits has a *note* outside the lock columns, and so has one that has ended, for a while.

use std::time::Duration;

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use prost::Message as _;

use crate::lock::{NameHash, Seq, Tag};
use crate::protocol::entry::StoredEntry;
use crate::protocol::queue::{Queue, QueueEntry};
use crate::store::{Columns, StoredCell};

/// The life of an attempt. A crashed contender blocks others for as long, and [`MARGIN`].
pub const ATTEMPT_TTL: Duration = Duration::from_secs(4);
/// A lock column ends later than promised by so much: more than the clocks of two replicas differ.
const MARGIN: Duration = Duration::from_secs(2);
/// How many attempts of one lockRef are told apart.
pub const ATTEMPTS: u64 = 1 << 32;

/// Begins the names of attempts, behind the prefix; no lock id begins so.
const ATTEMPT: char = '~';
/// Begins the names of notes, before the prefix.
const NOTE: char = '~';

/// The names of columns of one table.
#[derive(Clone, Debug)]
pub struct Names {
    prefix: String,
}

/// A lock column.
#[derive(Clone, Debug, PartialEq)]
pub struct LockColumn {
    /// Its name.
    pub column: String,
    /// Its end, in microseconds since 1970; 0 for none.
    pub ends_at_us: u64,
    /// Its entry, unless another program wrote it.
    pub entry: Option<StoredEntry>,
    /// When it was written, in microseconds.
    pub timestamp: u64,
    /// Its client does not hold the row yet.
    pub is_attempt: bool,
}

/// What the lock columns say to an attempt.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// There is no other one but these stale ones.
    Alone(Vec<LockColumn>),
    /// Its lockRef holds the row, by another call.
    Holds(LockColumn),
    /// This many others are there.
    Busy(usize),
}

impl Names {
    pub fn new(prefix: &str) -> Names {
        Names {
            prefix: prefix.to_owned(),
        }
    }

    /// The lock column of this id.
    pub fn lock(&self, lock_id: &str) -> String {
        format!("{}{lock_id}", self.prefix)
    }

    /// The column of an attempt.
    pub fn attempt(&self, tag: Tag, nonce: u64) -> String {
        format!("{}{ATTEMPT}{tag:?}-{nonce:08x}", self.prefix)
    }

    /// The note of a lockRef that waits.
    pub fn waits(&self, tag: Tag) -> String {
        format!("{NOTE}{}{tag:?}/waits", self.prefix)
    }

    /// The note of a lockRef that has ended.
    pub fn ended(&self, tag: Tag) -> String {
        format!("{NOTE}{}{tag:?}/ended", self.prefix)
    }

    /// All lock columns.
    pub fn locks(&self) -> Columns {
        let mut end = self.prefix.clone();
        // The prefix is ASCII, and has a last sign below the last one.
        if let Some(last) = end.pop() {
            end.push(char::from_u32(u32::from(last) + 1).unwrap_or(char::MAX));
        }
        Columns::Between(self.prefix.clone(), end)
    }

    /// The lock columns among these cells.
    pub fn lock_columns(&self, cells: &[StoredCell]) -> Vec<LockColumn> {
        let locks = cells.iter().filter_map(|cell| {
            let id = cell.column.strip_prefix(&self.prefix)?;
            let mut value = cell.value.clone();
            let ends_at_us = value.try_get_u64().unwrap_or(0);
            let entry = StoredEntry::decode(value).ok();
            Some(LockColumn {
                ends_at_us,
                entry: entry.filter(|entry| entry.tag().is_some()),
                timestamp: cell.timestamp,
                is_attempt: id.starts_with(ATTEMPT),
                column: cell.column.clone(),
            })
        });
        locks.collect()
    }

    /// Whether a column has data.
    pub fn is_data(&self, column: &str) -> bool {
        let noted = column.strip_prefix(NOTE).unwrap_or(column);
        !noted.starts_with(&self.prefix)
    }
}

impl LockColumn {
    /// Whether its end has passed.
    pub fn is_stale(&self, now_us: u64) -> bool {
        self.ends_at_us != 0 && self.ends_at_us < now_us
    }

    /// How long its client may still count on it.
    pub fn left(&self, now_us: u64) -> Duration {
        Duration::from_micros(self.ends_at_us.saturating_sub(now_us)).saturating_sub(MARGIN)
    }

    /// Whether it belongs to the lockRef with this tag, and holds the row.
    pub fn is_held_by(&self, tag: Tag) -> bool {
        let entry = self.entry.as_ref().filter(|_| !self.is_attempt);
        entry.and_then(StoredEntry::tag) == Some(tag)
    }
}

/// The value of a lock column that is written now, for this long.
pub fn column_value(now_us: u64, ttl: Duration, entry: &StoredEntry) -> Bytes {
    let span = u64::try_from((ttl + MARGIN).as_micros()).unwrap_or(u64::MAX);
    let mut value = BytesMut::new();
    value.put_u64(now_us.saturating_add(span));
    value.put_slice(&entry.encoded());
    value.freeze()
}

/// The TTL of a lock column in the store.
pub fn column_ttl(ttl: Duration, entry: &StoredEntry) -> Duration {
    (ttl + MARGIN).max(Duration::from_millis(entry.column_ttl_ms.into()))
}

/// The number of a lockRef: these have no order, so it is made of its tag.
pub fn seq_of(tag: Tag) -> Seq {
    let high = u128::from_be_bytes(tag.bytes()) >> 66;
    Seq(u64::try_from(high).unwrap_or(u64::MAX).max(1))
}

/// What these lock columns say to an attempt of this lockRef.
pub fn verdict(columns: Vec<LockColumn>, attempt: &str, tag: Tag, now_us: u64) -> Verdict {
    let others = columns
        .into_iter()
        .filter(|column| column.column != attempt);
    let (stale, live): (Vec<_>, Vec<_>) = others.partition(|column| column.is_stale(now_us));
    if let Some(own) = live.iter().find(|column| column.is_held_by(tag)) {
        return Verdict::Holds(own.clone());
    }
    match live.len() {
        0 => Verdict::Alone(stale),
        others => Verdict::Busy(others),
    }
}

/// The queue of a row: its live lock columns, those of holders first.
pub fn queue(mut columns: Vec<LockColumn>, now_us: u64) -> Queue {
    columns.retain(|column| !column.is_stale(now_us));
    columns.sort_by_key(|column| column.is_attempt);
    let entries = columns.into_iter().map(|column| {
        let left = column.left(now_us);
        let hash = u128::from(NameHash::of(column.column.bytes()).0);
        // Operators see one of another program under its name.
        let entry = column.entry.unwrap_or_else(|| StoredEntry {
            tag: (hash << 64 | hash).to_be_bytes().to_vec(),
            owner: column.column,
            ..StoredEntry::default()
        });
        QueueEntry {
            seq: entry.tag().map_or(Seq(1), seq_of),
            entry,
            left,
        }
    });
    Queue {
        entries: entries.collect(),
        next: 0,
        token: 0,
    }
}
