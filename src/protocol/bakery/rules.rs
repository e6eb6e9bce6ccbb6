//! The rules of Lamport's bakery. Pure: cells in, decisions out.
//!
//! A contender shows that it chooses, reads all numbers, takes the next one, and stops choosing. Then it waits for those that were
//! choosing meanwhile: one of them may have a number that is not higher. From then on the lowest number holds the key.
//!
//! The *floor* is the number of the last contender that was told that it holds the key. A contender below the floor has ended,
//! whatever a late write of it shows. It counts in the queue as long as its number lives: it may have been told that it holds the
//! key before the floor was raised.
//!
//! The *last number* stays when its contender is gone. So no floor that is raised late passes a contender that came after it.
//!
//! Flags, numbers and the floor are cells of one partition. With two tables, as in the first versions of this lock, a read could show
//! the end of a choice and not its number.

use std::time::Duration;

use bytes::Bytes;

use crate::engine::EngineError;
use crate::lock::{Seq, Tag};
use crate::protocol::entry::StoredEntry;
use crate::protocol::queue::{Queue, QueueEntry};
use crate::store::{Columns, StoredCell};

/// Begins the columns of contenders that choose.
const CHOOSING: &str = "choosing/";
/// The column of the floor. It sorts between flags and numbers.
pub const FLOOR: &str = "floor";
/// The column of the last number that was taken. It sorts between floor and numbers.
pub const LAST: &str = "last";
/// Begins the columns of numbers.
const NUMBER: &str = "number/";
/// The column after all of them.
const END: &str = "number0";

/// A number is followed by this many bits that tell contenders with one number apart.
const CONTENDER_BITS: u32 = 20;
/// How many contenders these bits tell apart.
pub const CONTENDERS: u64 = 1 << CONTENDER_BITS;
/// The last number that leaves room for them.
const NUMBER_MAX: u64 = (1 << (62 - CONTENDER_BITS)) - 1;

/// How long a contender may choose. A crashed one blocks others for as long.
pub const CHOOSING_TTL: Duration = Duration::from_secs(4);

/// Flags, floor and numbers.
pub fn contenders() -> Columns {
    Columns::Between(CHOOSING.to_owned(), END.to_owned())
}

/// Floor and numbers.
pub fn numbers() -> Columns {
    Columns::Between(FLOOR.to_owned(), END.to_owned())
}

/// The column of the flag of a contender that chooses.
pub fn choosing_column(tag: Tag, contender: u64) -> String {
    format!("{CHOOSING}{tag:?}-{contender:05x}")
}

/// The column of the number of a contender.
pub fn number_column(tag: Tag, seq: Seq) -> String {
    format!("{NUMBER}{tag:?}-{:05x}", seq.0 % CONTENDERS)
}

/// The floor; 0 before the first holder.
pub fn floor(cells: &[StoredCell]) -> u64 {
    seq_in(cells, FLOOR)
}

/// The seq in the cell of this column; 0 without it.
fn seq_in(cells: &[StoredCell], column: &str) -> u64 {
    let cell = cells.iter().find(|cell| cell.column == column);
    let bytes = cell.and_then(|cell| cell.value.as_ref().try_into().ok());
    bytes.map_or(0, u64::from_be_bytes)
}

/// The cell of a floor, or of the last number.
pub fn seq_cell(seq: Seq) -> Bytes {
    Bytes::copy_from_slice(&seq.0.to_be_bytes())
}

/// The next seq after all that are seen, for this contender: a number, and the contender.
pub fn next_seq(cells: &[StoredCell], contender: u64) -> Result<Seq, EngineError> {
    let queue = queue(cells)?;
    let last = queue.entries.last().map_or(0, |last| last.seq.0);
    let last = last.max(floor(cells)).max(seq_in(cells, LAST));
    match last / CONTENDERS {
        NUMBER_MAX.. => Err(EngineError::KeyUsedUp(
            "this key has given out all its numbers".to_owned(),
        )),
        last => Ok(Seq((last + 1) * CONTENDERS + contender)),
    }
}

/// The flags of all contenders that choose.
pub fn choosing(cells: &[StoredCell]) -> Vec<String> {
    let flags = cells.iter().map(|cell| &cell.column);
    flags
        .filter(|column| column.starts_with(CHOOSING))
        .cloned()
        .collect()
}

/// The queue: the living numbers in their order. Equal numbers are ordered by contender, then by tag.
pub fn queue(cells: &[StoredCell]) -> Result<Queue, EngineError> {
    let floor = floor(cells);
    let numbers = cells.iter().filter(|cell| cell.column.starts_with(NUMBER));
    let entries = numbers.map(|cell| {
        let entry = StoredEntry::decoded(&cell.value)?;
        Ok(QueueEntry {
            seq: Seq(entry.seq),
            left: cell.left.unwrap_or_default(),
            entry,
        })
    });
    let mut entries: Vec<QueueEntry> = entries.collect::<Result<_, EngineError>>()?;
    entries.sort_by(|a, b| (a.seq, &a.entry.tag).cmp(&(b.seq, &b.entry.tag)));
    let last = entries.last().map_or(floor, |last| last.seq.0);
    Ok(Queue {
        is_held: !entries.is_empty(),
        entries,
        next: last + 1,
        token: 0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(column: &str, value: Bytes) -> StoredCell {
        StoredCell {
            column: column.to_owned(),
            value,
            timestamp: 1,
            left: None,
        }
    }

    fn number(seq: Seq) -> StoredCell {
        let tag = Tag::from_bits(seq.0.into());
        let entry = StoredEntry {
            tag: tag.bytes().to_vec(),
            seq: seq.0,
            ..StoredEntry::default()
        };
        cell(&number_column(tag, seq), entry.encoded())
    }

    #[test]
    fn a_number_is_above_all_that_were_taken_even_of_contenders_that_are_gone() {
        let one = next_seq(&[], 7).unwrap();
        assert_eq!(one, Seq(CONTENDERS + 7));
        let gone = [cell(LAST, seq_cell(one))];
        assert_eq!(next_seq(&gone, 0).unwrap(), Seq(2 * CONTENDERS));
    }

    #[test]
    fn a_number_below_the_floor_counts_while_it_lives() {
        let (one, two) = (Seq(CONTENDERS), Seq(2 * CONTENDERS));
        let cells = [cell(FLOOR, seq_cell(two)), number(one), number(two)];
        let queue = queue(&cells).unwrap();
        let seqs: Vec<Seq> = queue.entries.iter().map(|entry| entry.seq).collect();
        assert_eq!(seqs, [one, two]);
    }
}
