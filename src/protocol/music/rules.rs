//! The rules of MUSIC on lightweight transactions. Pure: cells in, decisions out.
//!
//! A partition holds one guard, an entry for each client in the order of their numbers, and the value. Every change but that of the
//! value is a transaction that swaps the guard: so each change knows of all others.
//!
//! - Numbers come from the guard, in the transaction that inserts the entry. So no entry appears ahead of another one that was seen.
//! - The guard names the holder. A release names the next one. If the entry of the holder is gone, the first entry takes over.
//! - A write first takes its timestamp from the guard. So a late write of an earlier holder loses, and a value with another timestamp than
//!   the last one that was taken is in doubt.

use bytes::Bytes;
use prost::Message as _;

use crate::engine::EngineError;
use crate::lock::Seq;
use crate::protocol::entry::decoded;
use crate::store::Columns;

/// The column of the guard.
pub const GUARD: &str = "guard";
/// Begins the columns of entries.
const ENTRY: &str = "entry/";

/// The bits of a timestamp for the writes of one holder; the others are for its number.
const WRITE_BITS: u32 = 24;
/// The last number that leaves room for its writes in a timestamp of 63 bits.
const SEQ_MAX: u64 = (1 << (63 - WRITE_BITS)) - 1;

/// The one cell of a key that decides.
#[derive(Clone, Copy, PartialEq, Eq, Hash, prost::Message)]
pub struct Guard {
    /// The last number that was given out; 0 before the first.
    #[prost(uint64, tag = "1")]
    pub issued: u64,
    /// No entry up to this number lives.
    #[prost(uint64, tag = "2")]
    pub passed: u64,
    /// The holder; 0 for none.
    #[prost(uint64, tag = "3")]
    pub holder: u64,
    /// Counts the swaps.
    #[prost(uint64, tag = "4")]
    pub version: u64,
    /// The last timestamp that a write took; 0 before the first.
    #[prost(uint64, tag = "5")]
    pub last_write: u64,
    /// The last call_no of a write of the holder.
    #[prost(uint64, tag = "6")]
    last_call_no: u64,
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

    /// After the creation of one more entry, which gets the number `issued`. In an empty queue it holds the key.
    pub fn created(self) -> Result<Guard, EngineError> {
        let issued = match self.issued {
            SEQ_MAX.. => {
                return Err(EngineError::KeyUsedUp(
                    "this key has given out all its lockRefs".to_owned(),
                ));
            }
            issued => issued + 1,
        };
        let created = Guard {
            issued,
            ..self.swapped()
        };
        match self.passed == self.issued {
            true => Ok(created.held_by(Seq(issued))),
            false => Ok(created),
        }
    }

    /// After this entry became the holder: no entry ahead of it lives.
    pub fn held_by(self, seq: Seq) -> Guard {
        Guard {
            passed: seq.0 - 1,
            holder: seq.0,
            last_call_no: 0,
            ..self.swapped()
        }
    }

    /// After the end of the holder. `next` is the first entry behind it.
    pub fn ended(self, next: Option<Seq>) -> Guard {
        match next {
            Some(next) => self.held_by(next),
            None => Guard {
                passed: self.issued,
                holder: 0,
                ..self.swapped()
            },
        }
    }

    /// The next version, with nothing else changed: a renewal.
    pub fn swapped(self) -> Guard {
        let version = self.version + 1;
        Guard { version, ..self }
    }

    /// After a write of the holder took the timestamp `last_write`. 0 is no call_no.
    pub fn writing(self, call_no: u64) -> Result<Guard, EngineError> {
        if call_no > 0 {
            self.takes(call_no)?;
        }
        let first = self.holder << WRITE_BITS;
        let last_write = first.max(self.last_write) + 1;
        if last_write >> WRITE_BITS != self.holder {
            return Err(EngineError::KeyUsedUp(
                "this lockRef has made all its writes; release it".to_owned(),
            ));
        }
        Ok(Guard {
            last_write,
            last_call_no: call_no.max(self.last_call_no),
            ..self.swapped()
        })
    }

    /// Fails unless this call_no is above that of the last write.
    pub fn takes(&self, call_no: u64) -> Result<(), EngineError> {
        match call_no > self.last_call_no {
            true => Ok(()),
            false => Err(EngineError::CallNoNotAbove {
                given: call_no,
                last: self.last_call_no,
            }),
        }
    }

    /// Whether the last write of the holder had this call_no.
    pub fn has_written(&self, call_no: u64) -> bool {
        call_no > 0 && call_no == self.last_call_no
    }

    /// Entries that may be ahead of this one; `None`: there are none.
    pub fn ahead_of(&self, seq: Seq) -> Option<Columns> {
        let from = Seq(self.passed + 1);
        (from < seq).then(|| Columns::Between(entry_column(from), entry_column(seq)))
    }

    /// Entries that may be behind this one.
    pub fn behind(&self, seq: Seq) -> Columns {
        let (from, to) = (Seq(seq.0 + 1), Seq(self.issued + 1));
        Columns::Between(entry_column(from), entry_column(to))
    }

    /// All entries that may live.
    pub fn entries(&self) -> Columns {
        self.behind(Seq(self.passed))
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

/// The column with the highest call_no of a read of this holder.
pub fn read_column(seq: Seq) -> String {
    format!("read/{:016x}", seq.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_of_an_empty_queue_holds_the_key_and_a_release_names_the_next() {
        let one = Guard::default().created().unwrap();
        assert_eq!((one.issued, one.holder, one.passed), (1, 1, 0));
        let two = one.created().unwrap();
        assert_eq!((two.issued, two.holder), (2, 1));
        let handed = two.ended(Some(Seq(2)));
        assert_eq!((handed.holder, handed.passed), (2, 1));
        let empty = handed.ended(None);
        assert_eq!((empty.holder, empty.passed), (0, 2));
        assert_eq!(empty.created().unwrap().holder, 3);
        // Behind a holder that is gone somebody must take over.
        let behind = two.created().unwrap();
        assert_eq!(behind.holder, 1);
        assert_eq!(behind.held_by(Seq(3)).ahead_of(Seq(3)), None);
    }

    #[test]
    fn timestamps_rise_over_writes_and_holders_and_fit_63_bits() {
        let holder = |seq, last_write| Guard {
            issued: seq,
            holder: seq,
            last_write,
            ..Guard::default()
        };
        let first = holder(7, 0).writing(0).unwrap();
        let second = first.writing(3).unwrap();
        assert_eq!(second.last_write, first.last_write + 1);
        let next = holder(8, second.last_write).writing(0).unwrap();
        assert!(next.last_write > second.last_write);
        let last = holder(SEQ_MAX, 0).writing(0).unwrap();
        assert!(last.last_write < 1 << 63);
        assert!(holder(SEQ_MAX, 0).created().is_err());
        // The timestamps of one holder end before those of the next one begin.
        let used_up = holder(7, (8 << WRITE_BITS) - 1);
        assert!(matches!(used_up.writing(0), Err(EngineError::KeyUsedUp(_))));
    }

    #[test]
    fn a_call_no_is_above_the_last_one_of_the_same_holder() {
        let guard = Guard::default().created().unwrap().writing(5).unwrap();
        for given in [4, 5] {
            let refused = guard.writing(given).unwrap_err();
            assert_eq!(refused, EngineError::CallNoNotAbove { given, last: 5 });
        }
        assert!(guard.has_written(5) && !guard.has_written(4) && !guard.has_written(0));
        assert!(guard.writing(0).unwrap().takes(6).is_ok());
        let next = guard.created().unwrap().ended(Some(Seq(2)));
        assert!(next.writing(1).is_ok());
    }
}
