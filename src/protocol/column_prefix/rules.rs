//! The rules of lock columns in a row. Pure: cells in, decisions out.
//!
//! A contender writes an *attempt*, a column of its own, and reads all lock columns. If there is no other one, it holds the row: it
//! replaces the attempt by its lock column. Else it removes the attempt. Of two contenders that write and then read, by quorums,
//! one at least reads the other.
//!
//! The value of a lock column is its end, as in Astyanax, so that clients of both kinds exclude each other. A column whose end has
//! passed is *stale*: nobody counts it.
//!
//! A write may come late, when others have passed what it follows. So a promise to the client is noted only once the lock column was
//! acknowledged, and in time: while the attempt, or the promise before a renewal, still counts.
//!
//! What a lock column cannot say is in *notes* outside the lock columns: that a lockRef waits, holds the row, or has ended.

use std::time::Duration;

use bytes::Bytes;

use crate::engine::EngineError;
use crate::lock::{NameHash, Seq, Tag};
use crate::protocol::entry::{StoredEntry, decoded};
use crate::protocol::queue::{Queue, QueueEntry};
use crate::store::{Columns, StoredCell};

/// The life of an attempt. A crashed contender blocks others for as long, and [`MARGIN`].
pub const ATTEMPT_TTL: Duration = Duration::from_secs(4);
/// A lock column ends later than promised by so much: more than the clocks of two replicas differ.
pub const MARGIN: Duration = Duration::from_secs(2);
/// How many attempts of one lockRef are told apart.
pub const ATTEMPTS: u64 = 1 << 32;

/// Begins the names of attempts and lock columns of lockRefs, behind the prefix; no lock id begins so.
const OWN: char = '~';
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
    /// When it was written, in microseconds.
    pub timestamp: u64,
    /// Its client does not hold the row yet.
    pub is_attempt: bool,
    /// Its lockRef, as far as its name or a note says.
    pub tag: Option<Tag>,
    /// Its entry, from a note.
    pub entry: Option<StoredEntry>,
}

/// The note of a lockRef that waits, or holds the row.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Note {
    /// The entry.
    #[prost(message, required, tag = "1")]
    pub entry: StoredEntry,
    /// The id of its second lock column; empty for none.
    #[prost(string, tag = "2")]
    pub lock_id: String,
    /// The promised end, in microseconds since 1970; 0 while it waits.
    #[prost(uint64, tag = "3")]
    pub promised_us: u64,
    /// The TTL of the lock column in the store, in milliseconds, where that is longer.
    #[prost(uint32, tag = "4")]
    pub column_ttl_ms: u32,
}

/// The kinds of notes. Of one lockRef a later kind counts more.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum NoteKind {
    Waits,
    Holds,
    Ended,
}

impl NoteKind {
    fn name(self) -> &'static str {
        match self {
            NoteKind::Waits => "waits",
            NoteKind::Holds => "holds",
            NoteKind::Ended => "ended",
        }
    }
}

impl Note {
    /// The note in a cell.
    pub fn decoded(cell: &Bytes) -> Result<Note, EngineError> {
        decoded(cell, "a note")
    }

    /// The TTL of the lock column in the store.
    pub fn column_ttl(&self) -> Duration {
        let longer = Duration::from_millis(self.column_ttl_ms.into());
        (self.entry.ttl() + MARGIN).max(longer)
    }
}

impl Names {
    pub fn new(prefix: &str) -> Names {
        Names {
            prefix: prefix.to_owned(),
        }
    }

    /// The lock column of a lockRef: no other one has a column of this name.
    pub fn lock(&self, tag: Tag) -> String {
        format!("{}{OWN}{tag:?}", self.prefix)
    }

    /// The second lock column of a lock with an id of its own, for other programs.
    pub fn second(&self, note: &Note) -> Option<String> {
        let lock_id = &note.lock_id;
        (!lock_id.is_empty()).then(|| format!("{}{lock_id}", self.prefix))
    }

    /// The cell whose timestamp is that of the latest change of data: what was deleted shows none.
    pub fn last(&self) -> String {
        format!("{NOTE}{}last", self.prefix)
    }

    /// The column of an attempt.
    pub fn attempt(&self, tag: Tag, nonce: u64) -> String {
        format!("{}-{nonce:08x}", self.lock(tag))
    }

    /// A note of a lockRef.
    pub fn note(&self, tag: Tag, kind: NoteKind) -> String {
        format!("{NOTE}{}{tag:?}/{}", self.prefix, kind.name())
    }

    /// All lock columns.
    pub fn locks(&self) -> Columns {
        beginning_with(self.prefix.clone())
    }

    /// All notes.
    pub fn notes(&self) -> Columns {
        beginning_with(format!("{NOTE}{}", self.prefix))
    }

    /// The lock columns among these cells.
    pub fn lock_columns(&self, cells: &[StoredCell]) -> Vec<LockColumn> {
        let locks = cells.iter().filter_map(|cell| {
            let id = cell.column.strip_prefix(&self.prefix)?;
            let own = id.strip_prefix(OWN);
            let (digits, nonce) = match own {
                Some(own) => own.split_once('-').map_or((own, ""), |both| both),
                None => ("", ""),
            };
            Some(LockColumn {
                column: cell.column.clone(),
                ends_at_us: end_in(&cell.value),
                timestamp: cell.timestamp,
                is_attempt: !nonce.is_empty(),
                tag: u128::from_str_radix(digits, 16).ok().map(Tag::from_bits),
                entry: None,
            })
        });
        locks.collect()
    }

    /// The notes of one kind among these cells, each with the tag of its lockRef.
    pub fn noted(&self, cells: &[StoredCell], kind: NoteKind) -> Vec<(Tag, Note)> {
        let noted = cells.iter().filter_map(|cell| {
            let tag = self.note_tag(&cell.column, kind)?;
            Some((tag, Note::decoded(&cell.value).ok()?))
        });
        noted.collect()
    }

    /// The tags of the lockRefs with a note of this kind.
    pub fn note_tags(&self, cells: &[StoredCell], kind: NoteKind) -> Vec<Tag> {
        let tags = cells
            .iter()
            .filter_map(|cell| self.note_tag(&cell.column, kind));
        tags.collect()
    }

    fn note_tag(&self, column: &str, kind: NoteKind) -> Option<Tag> {
        let name = column.strip_prefix(NOTE)?.strip_prefix(&self.prefix)?;
        let digits = name.strip_suffix(kind.name())?.strip_suffix('/')?;
        u128::from_str_radix(digits, 16).ok().map(Tag::from_bits)
    }

    /// Whether a column has data.
    pub fn is_data(&self, column: &str) -> bool {
        let noted = column.strip_prefix(NOTE).unwrap_or(column);
        !noted.starts_with(&self.prefix)
    }
}

/// All columns that begin so: with ASCII, whose last sign is not the last one.
fn beginning_with(prefix: String) -> Columns {
    let mut end = prefix.clone();
    if let Some(last) = end.pop() {
        end.push(char::from_u32(u32::from(last) + 1).unwrap_or(char::MAX));
    }
    Columns::Between(prefix, end)
}

impl LockColumn {
    /// Whether its end has passed.
    pub fn is_stale(&self, now_us: u64) -> bool {
        self.ends_at_us != 0 && self.ends_at_us < now_us
    }
}

pub fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}

/// The value of a lock column with this end.
pub fn column_value(ends_at_us: u64) -> Bytes {
    Bytes::copy_from_slice(&ends_at_us.to_be_bytes())
}

/// The end in a lock column: eight bytes, or a number as text, as Astyanax writes it into columns of text. 0 for anything else.
pub fn end_in(value: &Bytes) -> u64 {
    let number = <[u8; 8]>::try_from(&value[..]).map(u64::from_be_bytes);
    let text = || std::str::from_utf8(value).ok()?.parse().ok();
    number.ok().or_else(text).unwrap_or(0)
}

/// The number of a lockRef: these have no order, so it is made of its tag.
pub fn seq_of(tag: Tag) -> Seq {
    let high = u128::from_be_bytes(tag.bytes()) >> 66;
    Seq(u64::try_from(high).unwrap_or(u64::MAX).max(1))
}

/// The row as operators see it: the holder, those that try, and those that wait.
pub fn queue(mut columns: Vec<LockColumn>, waiting: Vec<(Tag, Note)>, now_us: u64) -> Queue {
    columns.retain(|column| !column.is_stale(now_us));
    columns.sort_by_key(|column| column.is_attempt);
    let is_held = columns.first().is_some_and(|first| !first.is_attempt);
    let mut entries: Vec<QueueEntry> = Vec::new();
    for column in columns {
        let is_known = |entry: &QueueEntry| column.tag.is_some_and(|tag| entry.seq == seq_of(tag));
        if column.is_attempt && entries.iter().any(is_known) {
            continue;
        }
        // One of another program is shown under its name.
        let hash = u128::from(NameHash::of(column.column.bytes()).0);
        let tag = column.tag.unwrap_or(Tag::from_bits(hash << 64 | hash));
        let ends = Duration::from_micros(column.ends_at_us.saturating_sub(now_us));
        let shown = || StoredEntry {
            tag: tag.bytes().to_vec(),
            owner: column.column,
            ..StoredEntry::default()
        };
        entries.push(QueueEntry {
            seq: seq_of(tag),
            entry: column.entry.unwrap_or_else(shown),
            left: ends.saturating_sub(MARGIN),
        });
    }
    for (tag, note) in waiting {
        let seq = seq_of(tag);
        if entries.iter().all(|entry| entry.seq != seq) {
            let entry = note.entry;
            let left = entry.ttl();
            entries.push(QueueEntry { seq, entry, left });
        }
    }
    Queue {
        entries,
        is_held,
        next: 0,
        token: 0,
    }
}
