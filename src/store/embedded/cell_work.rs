//! Changes and reads of cells, for protocols that keep nothing in memory. Their ends are judged by the wall clock of this machine.
//!
//! A deleted cell leaves a marker for a while, so that an earlier write that comes late does not bring it back. Cells that have ended
//! are removed when their partition is written to.

use std::time::Duration;

use bytes::Bytes;
use redb::{ReadTransaction, ReadableTable, Table};

use super::fault::Fault;
use super::record::{CellRecord, decode_cell_record, encode_cell_record};
use super::rows::{CELLS, cell_row, cells_between, entries_after, key_row, split_cell, split_key};
use crate::clock::{Clock as _, SystemClock};
use crate::lock::{Key, KeyId, TableName};
use crate::store::{CellChange, CellSwap, Columns, StoredCell};

/// How long the marker of a deleted cell stays: no call is in flight for as long.
const MARKER_KEPT: Duration = Duration::from_secs(600);
/// How many cells behind the one that it changes a change looks through for ended ones.
const LOOKED_THROUGH_MAX: usize = 16;

/// Changes of cells of one partition.
#[derive(Debug)]
pub(super) struct CellWork {
    id: KeyId,
    /// What the cell of the first change must hold, of a swap.
    expected: Option<Option<Bytes>>,
    changes: Vec<CellChange>,
    /// The timestamp of a write, in microseconds. A swap is later than all before.
    timestamp: Option<u64>,
}

/// What the changes did to the transaction.
#[derive(Debug)]
pub(super) enum CellEffect {
    /// They were made, or were there.
    Done {
        /// They changed something.
        changed: bool,
    },
    /// The first cell has another value. Nothing was changed.
    Conflict(Option<Bytes>),
}

impl CellWork {
    /// A write, with its timestamp in microseconds.
    pub(super) fn write(id: &KeyId, changes: &[CellChange], timestamp: u64) -> CellWork {
        CellWork {
            id: id.clone(),
            expected: None,
            changes: changes.to_vec(),
            timestamp: Some(timestamp),
        }
    }

    /// A swap.
    pub(super) fn swap(id: &KeyId, swap: &CellSwap) -> CellWork {
        let changes = std::iter::once(&swap.first).chain(&swap.others);
        CellWork {
            id: id.clone(),
            expected: Some(swap.expected.clone()),
            changes: changes.cloned().collect(),
            timestamp: None,
        }
    }

    /// About how many bytes it writes.
    pub(super) fn bytes(&self) -> usize {
        let bytes = |change: &CellChange| match change {
            CellChange::Put { column, value, .. } => column.len() + value.len(),
            CellChange::Delete { column } => column.len(),
        };
        self.changes.iter().map(bytes).sum()
    }

    /// Makes the changes in a transaction.
    pub(super) fn apply(
        &self,
        cells: &mut Table<'_, &'static [u8], &'static [u8]>,
    ) -> Result<CellEffect, Fault> {
        let now_us = SystemClock.wall_us();
        let key_row = key_row(&self.id);
        if let (Some(expected), Some(first)) = (&self.expected, self.changes.first()) {
            let found = record(cells, &self.id, &cell_row(&key_row, first.column()))?;
            let found = found
                .filter(|cell| !cell.has_ended(now_us))
                .and_then(|cell| cell.value);
            if found != *expected {
                return Ok(CellEffect::Conflict(found));
            }
        }
        let mut changed = false;
        for change in &self.changes {
            let row = cell_row(&key_row, change.column());
            let before = record(cells, &self.id, &row)?;
            let after_before = before.as_ref().map_or(0, |cell| cell.timestamp + 1);
            let timestamp = self.timestamp.unwrap_or(now_us.max(after_before));
            let after = match change {
                CellChange::Put { value, ttl, .. } => CellRecord {
                    timestamp,
                    value: Some(value.clone()),
                    ends_at_us: ttl.map(|ttl| now_us.saturating_add(micros(ttl))),
                },
                CellChange::Delete { .. } => CellRecord {
                    timestamp,
                    value: None,
                    ends_at_us: Some(now_us.saturating_add(micros(MARKER_KEPT))),
                },
            };
            if before.is_none_or(|before| before.rank() < after.rank()) {
                cells.insert(row.as_slice(), encode_cell_record(&after).as_slice())?;
                changed = true;
            }
            self.remove_ended(cells, &row, now_us)?;
        }
        Ok(CellEffect::Done { changed })
    }

    /// Removes ended cells behind a changed one. Changes come to every part of a partition that is in use.
    fn remove_ended(
        &self,
        cells: &mut Table<'_, &'static [u8], &'static [u8]>,
        changed: &[u8],
        now_us: u64,
    ) -> Result<(), Fault> {
        let (_, end) = cells_between(&key_row(&self.id), None);
        let mut ended = Vec::new();
        let behind = cells.range(changed..end.as_slice())?;
        for row in behind.take(LOOKED_THROUGH_MAX) {
            let (row, cell) = row?;
            if decoded(&self.id, cell.value())?.has_ended(now_us) {
                ended.push(row.value().to_vec());
            }
        }
        for row in ended {
            cells.remove(row.as_slice())?;
        }
        Ok(())
    }
}

fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}

fn decoded(id: &KeyId, row: &[u8]) -> Result<CellRecord, Fault> {
    decode_cell_record(row).map_err(|error| Fault::row(format_args!("a cell of {id}"), error))
}

fn record(
    cells: &impl ReadableTable<&'static [u8], &'static [u8]>,
    id: &KeyId,
    row: &[u8],
) -> Result<Option<CellRecord>, Fault> {
    cells
        .get(row)?
        .map(|cell| decoded(id, cell.value()))
        .transpose()
}

/// The cell as it is read; `None` where it was deleted or has ended.
fn stored(column: &str, cell: CellRecord, now_us: u64) -> Option<StoredCell> {
    if cell.has_ended(now_us) {
        return None;
    }
    let left = cell
        .ends_at_us
        .map(|at| Duration::from_micros(at.saturating_sub(now_us)));
    Some(StoredCell {
        column: column.to_owned(),
        value: cell.value?,
        timestamp: cell.timestamp,
        left,
    })
}

/// Reads cells of a snapshot.
pub(super) fn read(
    snapshot: &ReadTransaction,
    id: &KeyId,
    columns: &Columns,
) -> Result<Vec<StoredCell>, Fault> {
    let cells = snapshot.open_table(CELLS)?;
    let key_row = key_row(id);
    let now_us = SystemClock.wall_us();
    let mut found = Vec::new();
    match columns {
        Columns::Named(names) => {
            let mut names: Vec<&String> = names.iter().collect();
            names.sort();
            for name in names {
                let cell = record(&cells, id, &cell_row(&key_row, name))?;
                found.extend(cell.and_then(|cell| stored(name, cell, now_us)));
            }
        }
        Columns::Between(from, to) => {
            let (from, to) = cells_between(&key_row, Some((from, to)));
            for row in cells.range(from.as_slice()..to.as_slice())? {
                let (row, cell) = row?;
                let Some((_, column)) = split_cell(row.value()) else {
                    return Err(Fault::Row(format!("a cell of {id} has no column")));
                };
                let cell = decoded(id, cell.value())?;
                found.extend(stored(column, cell, now_us));
            }
        }
    }
    Ok(found)
}

/// Keys with a cell. Steps over all but the first of each key that is shown.
pub(super) fn partitions(
    snapshot: &ReadTransaction,
    table: &TableName,
    prefix: &str,
    after: Option<&Key>,
    limit: usize,
) -> Result<Vec<Key>, Fault> {
    let cells = snapshot.open_table(CELLS)?;
    let now_us = SystemClock.wall_us();
    let (mut from, to) = entries_after(table, prefix, after);
    let mut found = Vec::new();
    while found.len() < limit {
        let Some(row) = cells.range(from.as_slice()..to.as_slice())?.next() else {
            break;
        };
        let (row, cell) = row?;
        let id = split_cell(row.value()).and_then(|(key_row, _)| split_key(key_row));
        let Some(id) = id else {
            return Err(Fault::Row(format!("a cell in {table} has no key")));
        };
        if !id.key.as_str().starts_with(prefix) {
            break;
        }
        if stored("", decoded(&id, cell.value())?, now_us).is_none() {
            from = row.value().to_vec();
            from.push(0);
            continue;
        }
        from = cells_between(&key_row(&id), None).1;
        found.push(id.key);
    }
    Ok(found)
}
