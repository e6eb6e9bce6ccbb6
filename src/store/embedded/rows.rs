//! The layout of the file: tables, and the keys of their rows.
//!
//! Table names and keys hold no control characters. So a 0 byte separates them, and rows are ordered by table, then key, then
//! entry.

use redb::TableDefinition;

use crate::lock::{Key, KeyId, Seq, TableName};

/// A table of rows whose keys are made here.
type BytesTable = TableDefinition<'static, &'static [u8], &'static [u8]>;
/// A table of counters.
type CounterTable = TableDefinition<'static, &'static str, u64>;

/// (table, key): the counters and ends of a key.
pub(super) const LOCKS: BytesTable = BytesTable::new("locks");
/// (table, key, seq): one live entry.
pub(super) const ENTRIES: BytesTable = BytesTable::new("entries");
/// (table, key): the value.
pub(super) const DATA: BytesTable = BytesTable::new("data");
/// Session id: the session.
pub(super) const SESSIONS: BytesTable = BytesTable::new("sessions");
/// (table, key, column): one cell.
pub(super) const CELLS: BytesTable = BytesTable::new("cells");
/// Written to see whether the disk has room, and removed.
pub(super) const ROOM: BytesTable = BytesTable::new("room");
/// Counters of the store itself, by name.
pub(super) const META: CounterTable = CounterTable::new("meta");

/// What a row is about: its table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum RowKind {
    Lock = 1,
    Entry = 2,
    Data = 3,
    Session = 4,
    Cell = 5,
}

impl RowKind {
    pub(super) const ALL: [RowKind; 5] = [
        RowKind::Lock,
        RowKind::Entry,
        RowKind::Data,
        RowKind::Session,
        RowKind::Cell,
    ];

    pub(super) fn of(number: u8) -> Option<RowKind> {
        let mut all = RowKind::ALL.into_iter();
        all.find(|kind| *kind as u8 == number)
    }

    pub(super) fn table(self) -> BytesTable {
        match self {
            RowKind::Lock => LOCKS,
            RowKind::Entry => ENTRIES,
            RowKind::Data => DATA,
            RowKind::Session => SESSIONS,
            RowKind::Cell => CELLS,
        }
    }
}

/// The row of META that counts commits.
pub(super) const COMMITS: &str = "commits";
/// The row of META below which no fence is; of a store that was restored.
pub(super) const FENCE_FLOOR: &str = "fence_floor";

/// Below every byte that a table name or key can hold, and so is the next one.
const SEPARATOR: u8 = 0;

/// The row of a key in LOCKS and DATA.
pub(super) fn key_row(id: &KeyId) -> Vec<u8> {
    row_of(&id.table, &id.key)
}

fn row_of(table: &TableName, key: &Key) -> Vec<u8> {
    let mut row = ending(table.as_str().as_bytes(), SEPARATOR);
    row.extend_from_slice(key.as_str().as_bytes());
    row
}

/// These bytes and one more.
fn ending(row: &[u8], last: u8) -> Vec<u8> {
    let mut longer = Vec::with_capacity(row.len() + 1);
    longer.extend_from_slice(row);
    longer.push(last);
    longer
}

/// The row of an entry in Entries, from the row of its key.
pub(super) fn entry_row(key_row: &[u8], seq: Seq) -> Vec<u8> {
    let mut row = Vec::with_capacity(key_row.len() + 1 + size_of::<u64>());
    row.extend_from_slice(key_row);
    row.push(SEPARATOR);
    row.extend_from_slice(&seq.0.to_be_bytes());
    row
}

/// The entries of one key: from the first up to, and without, the second.
pub(super) fn entries_of(key_row: &[u8]) -> (Vec<u8>, Vec<u8>) {
    (ending(key_row, SEPARATOR), ending(key_row, SEPARATOR + 1))
}

/// The entries, or cells, of a table whose keys come after `after`, and not before `prefix`: from the first up to, and without, the second.
pub(super) fn entries_after(
    table: &TableName,
    prefix: &str,
    after: Option<&Key>,
) -> (Vec<u8>, Vec<u8>) {
    let name = table.as_str().as_bytes();
    let mut from = ending(name, SEPARATOR);
    from.extend_from_slice(prefix.as_bytes());
    if let Some(key) = after {
        from = from.max(entries_of(&row_of(table, key)).1);
    }
    (from, ending(name, SEPARATOR + 1))
}

/// The row of a cell, from the row of its key. A column holds no control characters.
pub(super) fn cell_row(key_row: &[u8], column: &str) -> Vec<u8> {
    let mut row = ending(key_row, SEPARATOR);
    row.extend_from_slice(column.as_bytes());
    row
}

/// The cells of one key with these columns, or all: from the first up to, and without, the second.
pub(super) fn cells_between(key_row: &[u8], columns: Option<(&str, &str)>) -> (Vec<u8>, Vec<u8>) {
    match columns {
        Some((from, to)) => (cell_row(key_row, from), cell_row(key_row, to)),
        None => (ending(key_row, SEPARATOR), ending(key_row, SEPARATOR + 1)),
    }
}

/// Takes the row of a cell apart: the row of its key, and its column.
pub(super) fn split_cell(row: &[u8]) -> Option<(&[u8], &str)> {
    let at = row.iter().rposition(|byte| *byte == SEPARATOR)?;
    let (key_row, column) = row.split_at_checked(at)?;
    Some((key_row, std::str::from_utf8(column.get(1..)?).ok()?))
}

/// Takes the row of an entry apart: the row of its key, and its seq.
pub(super) fn split_entry(row: &[u8]) -> Option<(&[u8], Seq)> {
    let (rest, seq) = row.split_last_chunk::<{ size_of::<u64>() }>()?;
    let (separator, key_row) = rest.split_last()?;
    (*separator == SEPARATOR).then_some((key_row, Seq(u64::from_be_bytes(*seq))))
}

/// Takes the row of a key apart: the key in its table.
pub(super) fn split_key(row: &[u8]) -> Option<KeyId> {
    let (table, key) = std::str::from_utf8(row).ok()?.split_once('\0')?;
    Some(KeyId {
        table: TableName::parse(table).ok()?,
        key: Key::parse(key, Key::BYTES_MAX).ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(table: &str, key: &str) -> KeyId {
        KeyId {
            table: TableName::parse(table).unwrap(),
            key: Key::parse(key, 1024).unwrap(),
        }
    }

    #[test]
    fn rows_sort_by_table_then_key_then_entry_and_come_apart_again() {
        let ids = [
            id("t", " "),
            id("t", "a"),
            id("t", "a "),
            id("t", "a#1"),
            id("t", "a/b"),
            id("t", "ab"),
            id("t", "ü"),
            id("t1", "a"),
            id("t_2", "a"),
        ];
        let seqs = [Seq(1), Seq(255), Seq(256), Seq::LAST];
        let mut rows = Vec::new();
        for id in &ids {
            assert_eq!(split_key(&key_row(id)).as_ref(), Some(id));
            for seq in seqs {
                let row = entry_row(&key_row(id), seq);
                assert_eq!(split_entry(&row), Some((&key_row(id)[..], seq)));
                let (from, to) = entries_of(&key_row(id));
                assert!(from < row && row < to);
                rows.push(row);
            }
        }
        assert!(rows.is_sorted());
    }

    #[test]
    fn a_listing_begins_after_the_whole_key_and_ends_with_its_table() {
        let table = TableName::parse("t").unwrap();
        let (all, end) = entries_after(&table, "", None);
        let (after, _) = entries_after(&table, "", Some(&Key::parse("a", 9).unwrap()));
        let row = |t, k| entry_row(&key_row(&id(t, k)), Seq(u64::MAX >> 1));
        assert!(all < row("t", "a") && row("t", "a") < after);
        assert!(after < row("t", "a b") && row("t", "\u{10FFFF}") < end);
        assert!(row("s", "z") < all && end < row("t1", " "));
    }
}
