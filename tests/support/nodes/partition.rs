//! One partition on one node: cells with timestamps, and what a query shows of them.

use std::collections::BTreeMap;

use fermata_cassandra::Value;

/// A value, and when it was written.
type Cell = (u64, Value);

/// The cells of one row.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Cells {
    /// When it was inserted.
    inserted: u64,
    cells: BTreeMap<String, Cell>,
}

/// What a node holds of a key; also what one change writes, and what two nodes exchange.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Partition {
    statics: BTreeMap<String, Cell>,
    rows: BTreeMap<i64, Cells>,
    /// Deleted: above the first and below the second, as of the third.
    deleted: Vec<(i64, i64, u64)>,
}

/// What a query reads: these columns of these rows.
#[derive(Clone, Debug)]
pub struct Slice {
    pub columns: Vec<String>,
    pub from: i64,
    pub to: i64,
}

fn put(cells: &mut BTreeMap<String, Cell>, column: &str, cell: &Cell) {
    let newer = cells.get(column).is_none_or(|(at, _)| *at < cell.0);
    if newer {
        cells.insert(column.to_owned(), cell.clone());
    }
}

impl Partition {
    pub fn set_static(&mut self, column: &str, value: Value, at: u64) {
        put(&mut self.statics, column, &(at, value));
    }

    pub fn insert(&mut self, seq: i64, cells: Vec<(String, Value)>, at: u64) {
        let row = self.rows.entry(seq).or_default();
        row.inserted = row.inserted.max(at);
        for (column, value) in cells {
            put(&mut row.cells, &column, &(at, value));
        }
    }

    pub fn delete(&mut self, above: i64, below: i64, at: u64) {
        self.deleted.push((above, below, at));
    }

    /// Takes in what another node has, or a change writes: of each cell the latest stands.
    pub fn merge(&mut self, other: &Partition) {
        for (column, cell) in &other.statics {
            put(&mut self.statics, column, cell);
        }
        for (seq, other) in &other.rows {
            let row = self.rows.entry(*seq).or_default();
            row.inserted = row.inserted.max(other.inserted);
            for (column, cell) in &other.cells {
                put(&mut row.cells, column, cell);
            }
        }
        for range in &other.deleted {
            if !self.deleted.contains(range) {
                self.deleted.push(*range);
            }
        }
    }

    /// What of it a query reads, and a repair after that query writes: nothing but these cells.
    pub fn queried(&self, slice: &Slice) -> Partition {
        let wanted = |column: &str| slice.columns.iter().any(|one| one == column);
        let picked = |cells: &BTreeMap<String, Cell>| {
            let cells = cells.iter().filter(|(column, _)| wanted(column));
            cells.map(|(c, cell)| (c.clone(), cell.clone())).collect()
        };
        let rows = self.rows.range(slice.from..=slice.to.max(slice.from));
        let rows = rows.filter(|(seq, _)| **seq <= slice.to).map(|(seq, row)| {
            let row = Cells {
                inserted: row.inserted,
                cells: picked(&row.cells),
            };
            (*seq, row)
        });
        // A range is clipped to what was asked for.
        let clip = |(above, below, at): &(i64, i64, u64)| {
            let above = (*above).max(slice.from.saturating_sub(1));
            let below = (*below).min(slice.to.saturating_add(1));
            (above < below).then_some((above, below, *at))
        };
        Partition {
            statics: picked(&self.statics),
            rows: rows.collect(),
            deleted: self.deleted.iter().filter_map(clip).collect(),
        }
    }

    pub fn static_value(&self, column: &str) -> Option<&Value> {
        self.statics.get(column).map(|(_, value)| value)
    }

    /// The seqs of the rows that are there, in order.
    pub fn seqs(&self) -> Vec<i64> {
        let seqs = self.rows.keys().copied();
        seqs.filter(|seq| self.is_there(*seq)).collect()
    }

    fn deleted_at(&self, seq: i64) -> u64 {
        let ranges = self.deleted.iter();
        let ranges = ranges.filter(|(above, below, _)| (above + 1..*below).contains(&seq));
        ranges.map(|(_, _, at)| *at).max().unwrap_or(0)
    }

    fn is_there(&self, seq: i64) -> bool {
        let deleted = self.deleted_at(seq);
        self.rows.get(&seq).is_some_and(|row| {
            row.inserted > deleted || row.cells.values().any(|(at, _)| *at > deleted)
        })
    }

    /// A cell of a row that is there, or one that all rows share.
    pub fn value(&self, seq: i64, column: &str) -> Option<&Value> {
        if let Some(shared) = self.static_value(column) {
            return Some(shared);
        }
        let deleted = self.deleted_at(seq);
        let (at, value) = self.rows.get(&seq)?.cells.get(column)?;
        (*at > deleted).then_some(value)
    }
}
