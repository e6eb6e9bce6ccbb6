//! The cells of the key, as a majority has them, and what is in flight.
//!
//! Three nodes, two of which answer each read and are repaired by it. So a write in doubt is seen by a read or not, and what one
//! read has seen all later ones see, in the columns that were read. That is all that nodes can do to such reads, and all
//! that the model keeps: what a majority has, and what may be on one node.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use fermata::store::{CellChange, CellSwap, Columns, Currency, StoredCell};

use super::call::TTL;

/// What ends a cell.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Life {
    /// The end of the TTL of this client. `is_old`: a good part of it has passed.
    Ttl { client: usize, is_old: bool },
    /// A choice that takes too long.
    Flag { client: usize },
    /// Nothing, or it lives longer than the model looks at.
    Stays,
}

/// A cell. Without a value it is deleted, or has expired.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Cell {
    pub timestamp: u64,
    pub value: Option<Bytes>,
    pub life: Life,
}

impl Cell {
    /// Whether it replaces another one. Of two with one timestamp a deletion does, then the larger value.
    fn replaces(&self, other: &Cell) -> bool {
        let key = |cell: &Cell| (cell.timestamp, cell.value.is_none());
        let is_larger = key(self) == key(other) && self.value > other.value;
        key(self) > key(other) || is_larger
    }

    fn stored(&self, column: &str) -> Option<StoredCell> {
        let left = match self.life {
            Life::Ttl { is_old: false, .. } => TTL,
            Life::Ttl { is_old: true, .. } => TTL / 2,
            Life::Flag { .. } => FLAG_LEFT,
            Life::Stays => STAYS,
        };
        Some(StoredCell {
            column: column.to_owned(),
            value: self.value.clone()?,
            timestamp: self.timestamp,
            left: Some(left),
        })
    }
}

const FLAG_LEFT: Duration = Duration::from_secs(4);
const STAYS: Duration = Duration::from_secs(3_600);

pub type Row = BTreeMap<String, Cell>;
pub type Changes = Vec<(String, Cell)>;

/// A swap that may have been decided.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Doubt {
    /// What no majority has of it.
    pub changes: Changes,
    /// A read showed a part of it, so all of it comes.
    pub is_decided: bool,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Cells {
    pub row: Row,
    /// Writes that no majority has, without what others have overwritten.
    pub writes: Vec<Changes>,
    /// The last swap, if it is not settled.
    pub doubt: Option<Doubt>,
    /// What a node has that has missed all writes since a moment.
    pub lagging: Option<Row>,
}

pub fn is_in(columns: &Columns, column: &str) -> bool {
    match columns {
        Columns::Named(names) => names.iter().any(|name| name == column),
        Columns::Between(from, to) => from.as_str() <= column && column < to.as_str(),
    }
}

/// The cells of changes that a client makes.
pub fn cells_of(changes: &[CellChange], timestamp: u64, client: usize) -> Changes {
    let cell = |change: &CellChange| match change {
        CellChange::Put { value, ttl, .. } => Cell {
            timestamp,
            value: Some(value.clone()),
            life: match ttl {
                Some(TTL) => Life::Ttl {
                    client,
                    is_old: false,
                },
                Some(ttl) if *ttl < TTL => Life::Flag { client },
                _ => Life::Stays,
            },
        },
        CellChange::Delete { .. } => Cell {
            timestamp,
            value: None,
            life: Life::Stays,
        },
    };
    let cells = changes.iter().map(|c| (c.column().to_owned(), cell(c)));
    cells.collect()
}

/// Those of changes that a selection has.
fn take(changes: &mut Changes, columns: &Columns) -> Changes {
    let (taken, left) = std::mem::take(changes)
        .into_iter()
        .partition(|(column, _)| is_in(columns, column));
    *changes = left;
    taken
}

impl Cells {
    /// A majority has a write.
    pub fn land(&mut self, changes: Changes) {
        for (column, cell) in changes {
            match self.row.get_mut(&column) {
                Some(old) if cell.replaces(old) => *old = cell,
                Some(_) => {}
                None => {
                    self.row.insert(column, cell);
                }
            }
        }
    }

    /// A majority has a swap. Swaps come one after another.
    pub fn land_swap(&mut self, changes: Changes) {
        for (column, cell) in changes {
            match cell.value {
                Some(_) => self.row.insert(column, cell),
                None => self.row.remove(&column),
            };
        }
    }

    /// The writes in flight that a read of these may show, by bit.
    pub fn may_show(&self, columns: &Columns) -> u8 {
        let shows = |changes: &&Changes| changes.iter().any(|(column, _)| is_in(columns, column));
        let writes = self.writes.iter().enumerate();
        let shown = writes.filter(|(_, changes)| shows(changes));
        shown.map(|(i, _)| 1 << i).sum()
    }

    /// Whether a read may show a part of the swap that is not settled.
    pub fn may_show_doubt(&self, columns: &Columns) -> bool {
        let changes = self.doubt.as_ref().map(|doubt| &doubt.changes);
        changes.is_some_and(|changes| changes.iter().any(|(column, _)| is_in(columns, column)))
    }

    /// Settles the last swap. It takes effect if it was decided, or now.
    pub fn settle(&mut self, takes_effect: bool) {
        if let Some(doubt) = self.doubt.take()
            && (doubt.is_decided || takes_effect)
        {
            self.land_swap(doubt.changes);
        }
    }

    /// Whether settling has two ends.
    pub fn is_in_doubt(&self) -> bool {
        self.doubt.as_ref().is_some_and(|doubt| !doubt.is_decided)
    }

    /// A read, which shows these of the writes in flight, and the last swap or not.
    pub fn read(
        &mut self,
        columns: &Columns,
        currency: Currency,
        shown: u8,
        shows_doubt: bool,
    ) -> Vec<StoredCell> {
        for i in (0..self.writes.len()).filter(|i| shown >> i & 1 == 1) {
            let seen = take(&mut self.writes[i], columns);
            self.land(seen);
        }
        match (currency, &mut self.doubt) {
            (Currency::Settled, _) => self.settle(shows_doubt),
            (Currency::Acknowledged, Some(doubt)) if shows_doubt => {
                doubt.is_decided = true;
                let seen = take(&mut doubt.changes, columns);
                self.land_swap(seen);
            }
            (Currency::Acknowledged, _) => {}
        }
        shown_in(&self.row, columns)
    }

    /// Whether a swap takes effect, after the one before it was settled.
    pub fn fits(&self, swap: &CellSwap) -> bool {
        let cell = self.row.get(swap.first.column());
        cell.and_then(|cell| cell.value.as_ref()) == swap.expected.as_ref()
    }

    /// Changes all cells that a majority or the node that lags has.
    pub fn each(&mut self, change: impl Fn(&mut Cell)) {
        let lagging = self.lagging.iter_mut().flat_map(BTreeMap::values_mut);
        self.row.values_mut().chain(lagging).for_each(change);
    }

    /// Without what no read can show any more.
    pub fn tidy(&mut self) {
        let row = &self.row;
        for changes in &mut self.writes {
            changes.retain(|(column, cell)| row.get(column).is_none_or(|old| cell.replaces(old)));
        }
        self.writes.retain(|changes| !changes.is_empty());
        self.writes.sort();
        self.writes.dedup();
        if self.doubt.as_ref().is_some_and(|d| d.changes.is_empty()) {
            self.doubt = None;
        }
    }
}

/// The cells of a selection.
pub fn shown_in(row: &Row, columns: &Columns) -> Vec<StoredCell> {
    let shown = row.iter().filter(|(column, _)| is_in(columns, column));
    shown
        .filter_map(|(column, cell)| cell.stored(column))
        .collect()
}
