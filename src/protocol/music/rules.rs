//! The rules of MUSIC on lightweight transactions. Pure: cells in, decisions out.
//!
//! A partition holds one guard, an entry for each waiter in the order of their numbers, and the value. Every create and every release of
//! the first entry swaps the guard.
//!
//! - Numbers come from the guard, in the transaction that inserts the entry. So no entry appears ahead of another one that was seen.
//! - The first live entry holds the key.
//! - The timestamp of a write is the number of its holder, then the number of the write. So a late write of an earlier holder loses.
//! - A holder whose predecessor did not release cleanly rewrites the value first, under a timestamp of its own.

use bytes::Bytes;
use prost::Message as _;

use crate::engine::EngineError;
use crate::lock::{Seq, Tag};
use crate::protocol::entry::decoded;
use crate::store::Columns;

/// The column of the guard.
pub const GUARD: &str = "guard";
/// The column of the value.
pub const VALUE: &str = "value";
/// The column with the number of the last acknowledged write.
pub const WRITTEN: &str = "written";
/// Begins the columns of entries.
const ENTRY: &str = "entry/";
/// Begins the columns of requests.
const REQUEST: &str = "request/";
/// Begins the columns of writes in flight. They are read together with the value.
const INTENT: &str = "value/";

/// The bits of a timestamp for the writes of one holder; the others are for its number.
const WRITE_BITS: u32 = 24;
/// The writes of a sync come first, ...
const SYNCS_MAX: u64 = 1 << 10;
/// ... then those with a call_no, and from here on those without.
const UNNUMBERED: u64 = 1 << 23;
/// The last number that leaves room for its writes in a timestamp of 63 bits.
const SEQ_MAX: u64 = (1 << (63 - WRITE_BITS)) - 1;

/// The one cell of a key that each create and release swaps.
#[derive(Clone, Copy, PartialEq, Eq, Hash, prost::Message)]
pub struct Guard {
    /// The last number that was given out; 0 before the first.
    #[prost(uint64, tag = "1")]
    pub issued: u64,
    /// No entry up to this number lives.
    #[prost(uint64, tag = "2")]
    pub passed: u64,
    /// No write of a holder up to this number is in doubt.
    #[prost(uint64, tag = "3")]
    pub settled: u64,
    /// The last holder that began a sync, ...
    #[prost(uint64, tag = "4")]
    pub sync_seq: u64,
    /// ... and how often.
    #[prost(uint64, tag = "5")]
    pub syncs: u64,
}

impl Guard {
    /// The guard in its cell; that of a new key without one.
    pub fn of(cell: Option<&Bytes>) -> Result<Guard, EngineError> {
        cell.map_or(Ok(Guard::default()), |cell| decoded(cell, "a guard"))
    }

    /// Its cell.
    pub fn encoded(&self) -> Bytes {
        self.encode_to_vec().into()
    }

    /// After the creation of one more entry, which gets the number `issued`.
    pub fn created(self) -> Result<Guard, EngineError> {
        match self.issued {
            SEQ_MAX.. => Err(EngineError::KeyUsedUp(
                "this key has given out all its lockRefs".to_owned(),
            )),
            issued => Ok(Guard {
                issued: issued + 1,
                ..self
            }),
        }
    }

    /// After the end of the first entry. `is_settled`: none of its writes is in doubt.
    pub fn without_first(self, seq: Seq, is_settled: bool) -> Guard {
        let settled = match is_settled && !self.needs_sync(seq) {
            true => seq.0,
            false => self.settled,
        };
        Guard {
            passed: seq.0,
            settled,
            ..self
        }
    }

    /// Whether the value must be rewritten before this entry holds the key.
    pub fn needs_sync(&self, seq: Seq) -> bool {
        self.settled + 1 != seq.0
    }

    /// At the beginning of a sync of this entry. Each try has a timestamp of its own, so a slow one cannot undo a later one.
    pub fn sync_begun(self, seq: Seq) -> Result<Guard, EngineError> {
        let syncs = match self.sync_seq == seq.0 {
            true => self.syncs + 1,
            false => 1,
        };
        if syncs >= SYNCS_MAX {
            return Err(EngineError::KeyUsedUp(
                "the value of this key could not be rewritten often enough; release this lockRef"
                    .to_owned(),
            ));
        }
        Ok(Guard {
            sync_seq: seq.0,
            syncs,
            ..self
        })
    }

    /// At the end of that sync.
    pub fn synced(self, seq: Seq) -> Guard {
        Guard {
            settled: seq.0 - 1,
            ..self
        }
    }

    /// The timestamp of the sync that has begun.
    pub fn sync_timestamp(&self) -> u64 {
        first_timestamp(Seq(self.sync_seq)) + self.syncs
    }

    /// Entries that may be ahead of this one; `None`: there are none.
    pub fn ahead_of(&self, seq: Seq) -> Option<Columns> {
        (self.passed + 1 < seq.0)
            .then(|| Columns::Between(entry_column(Seq(self.passed + 1)), entry_column(seq)))
    }

    /// All live entries.
    pub fn entries(&self) -> Columns {
        let from = entry_column(Seq(self.passed + 1));
        Columns::Between(from, entry_column(Seq(self.issued + 1)))
    }
}

/// The column of an entry. Columns sort as numbers do.
pub fn entry_column(seq: Seq) -> String {
    format!("{ENTRY}{:016x}", seq.0)
}

/// The number of an entry, from its column.
pub fn entry_seq(column: &str) -> Option<Seq> {
    let number = column.strip_prefix(ENTRY)?;
    u64::from_str_radix(number, 16).ok().map(Seq)
}

/// The column of a request.
pub fn request_column(tag: Tag) -> String {
    format!("{REQUEST}{tag:?}")
}

/// The column of a write in flight.
pub fn intent_column(timestamp: u64) -> String {
    format!("{INTENT}{timestamp:016x}")
}

/// Whether the column is of a write in flight of this entry.
pub fn is_intent_of(column: &str, seq: Seq) -> bool {
    let timestamp = column.strip_prefix(INTENT);
    let timestamp = timestamp.and_then(|hex| u64::from_str_radix(hex, 16).ok());
    timestamp.is_some_and(|timestamp| timestamp >> WRITE_BITS == seq.0)
}

/// The value and all writes in flight.
pub fn value_and_intents() -> Columns {
    Columns::Between(VALUE.to_owned(), format!("{VALUE}0"))
}

fn first_timestamp(seq: Seq) -> u64 {
    seq.0 << WRITE_BITS
}

/// The timestamp of a write with this call_no.
pub fn numbered_timestamp(seq: Seq, call_no: u64) -> Result<u64, EngineError> {
    let last = UNNUMBERED - SYNCS_MAX - 1;
    match call_no > last {
        true => Err(EngineError::KeyUsedUp(format!(
            "call_no {call_no} is above {last}, the last one of a lockRef of a music table; release this lockRef"
        ))),
        false => Ok(first_timestamp(seq) + SYNCS_MAX + call_no),
    }
}

/// The timestamp of the write without a call_no that follows so many others.
pub fn unnumbered_timestamp(seq: Seq, before: u32) -> Result<u64, EngineError> {
    match u64::from(before) < UNNUMBERED {
        true => Ok(first_timestamp(seq) + UNNUMBERED + u64::from(before)),
        false => Err(EngineError::KeyUsedUp(
            "this lockRef has made all its writes without a call_no; release it".to_owned(),
        )),
    }
}

/// The call_no that a timestamp stands for, for an error.
pub fn call_no_of(timestamp: u64) -> u64 {
    (timestamp & ((1 << WRITE_BITS) - 1)).saturating_sub(SYNCS_MAX)
}
