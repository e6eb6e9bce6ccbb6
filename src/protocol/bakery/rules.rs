//! The rules of Lamport's bakery. Pure: cells in, decisions out.
//!
//! A contender shows that it chooses, reads all numbers, takes the next one, and stops choosing. Then it waits for those that were
//! choosing meanwhile: one of them may have a number that is not higher. From then on the lowest number holds the key.
//!
//! Choosing flags and numbers are cells of one partition. With two tables, as in the first versions of this lock, a read could show the
//! end of a choice and not its number.

use std::time::Duration;

use crate::engine::EngineError;
use crate::lock::{Seq, Tag};
use crate::protocol::entry::StoredEntry;
use crate::protocol::queue::{Queue, QueueEntry};
use crate::store::{Columns, StoredCell};

/// Begins the columns of contenders that choose.
const CHOOSING: &str = "choosing/";
/// Begins the columns of numbers.
const NUMBER: &str = "number/";
/// The column of the value.
pub const VALUE: &str = "value";

/// The bits of a seq that tell contenders with one number apart.
const CONTENDER_BITS: u32 = 20;
/// How many contenders can be told apart by these bits.
pub const CONTENDERS: u64 = 1 << CONTENDER_BITS;
/// The last number that leaves room for them.
const NUMBER_MAX: u64 = (1 << (62 - CONTENDER_BITS)) - 1;

/// How long a contender may choose. A crashed one blocks others for as long.
pub const CHOOSING_TTL: Duration = Duration::from_secs(4);

/// All contenders that choose or have a number.
pub fn contenders() -> Columns {
    Columns::Between(
        CHOOSING.to_owned(),
        format!("{}0", NUMBER.trim_end_matches('/')),
    )
}

/// All numbers.
pub fn numbers() -> Columns {
    Columns::starting(NUMBER)
}

/// The part of a seq that tells contenders apart.
fn contender(seq: Seq) -> u64 {
    seq.0 % CONTENDERS
}

/// The column of the flag of a contender that chooses.
pub fn choosing_column(tag: Tag, contender: u64) -> String {
    format!("{CHOOSING}{tag:?}-{contender:05x}")
}

/// The column of the number of a contender.
pub fn number_column(tag: Tag, seq: Seq) -> String {
    format!("{NUMBER}{tag:?}-{:05x}", contender(seq))
}

/// The column with the entry of a request.
pub fn request_column(tag: Tag) -> String {
    format!("request/{tag:?}")
}

/// The next seq after these, for this contender: a number above all, and the contender.
pub fn next_seq(cells: &[StoredCell], contender: u64) -> Result<Seq, EngineError> {
    let mut last = 0;
    for cell in cells.iter().filter(|cell| cell.column.starts_with(NUMBER)) {
        last = last.max(StoredEntry::decoded(&cell.value)?.seq / CONTENDERS);
    }
    match last {
        NUMBER_MAX.. => Err(EngineError::KeyUsedUp(
            "the numbers of this key are used up until its queue is empty".to_owned(),
        )),
        last => Ok(Seq((last + 1) * CONTENDERS + contender)),
    }
}

/// The flags of all contenders that choose, but this one.
pub fn others_choosing(cells: &[StoredCell], own: &str) -> Vec<String> {
    let flags = cells.iter().map(|cell| &cell.column);
    let others = flags.filter(|column| column.starts_with(CHOOSING) && *column != own);
    others.cloned().collect()
}

/// The queue: the numbers in their order. Equal numbers are ordered by the rest of the seq, then by the tag.
pub fn queue(cells: &[StoredCell]) -> Result<Queue, EngineError> {
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
    let next = entries.last().map_or(0, |last| last.seq.0) + 1;
    Ok(Queue {
        entries,
        next,
        token: 0,
        unsynced: false,
    })
}
