//! Rules that are switched off, to see that the others rest on them: what a call asks of the store, or is answered by it, is
//! changed on the way.

use fermata::store::{CellChange, CellSwap, Columns, StoredCell};
use prost::Message as _;

use super::call::tag_of;
use super::cells::{Cells, Life};

/// The contenders with one number.
pub const CONTENDERS: u64 = 1 << 20;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Off {
    /// Bakery: nobody shows that it chooses.
    Flag,
    /// Bakery: of two with one number each takes itself for the first.
    Ties,
    /// Bakery: numbers are read from one node.
    ChoiceOfMajority,
    /// Bakery: numbers that have expired are forgotten.
    Last,
    /// Bakery: a holder does not raise the floor.
    Floor,
    /// Bakery: a number below the floor does not count.
    BelowFloor,
    /// Bakery: the end of a choice may show before its number.
    OnePartition,
    /// Bakery: a choice that took too long counts.
    LateChoice,
    /// MUSIC: no read settles what is in flight.
    Settled,
    /// MUSIC: the queue is read from one node.
    QueueOfMajority,
    /// MUSIC: a create does not compare the guard, so its number is its own.
    Number,
    /// MUSIC: a renewal does not swap the guard.
    Renewal,
    /// MUSIC: a value in doubt is not written again.
    Sync,
    /// MUSIC: a write has the timestamp of a clock.
    Timestamp,
    /// MUSIC: a read is not noted.
    ReadNote,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Guard {
    #[prost(uint64, tag = "2")]
    passed: u64,
    #[prost(uint64, tag = "3")]
    holder: u64,
    #[prost(uint64, tag = "5")]
    last_write: u64,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Entry {
    #[prost(uint64, tag = "6")]
    seq: u64,
}

impl Off {
    /// A write as it reaches the store.
    pub fn write(self, changes: &mut Vec<CellChange>, timestamp: &mut u64, client: usize) {
        let is_put = |change: &CellChange| matches!(change, CellChange::Put { .. });
        changes.retain(|change| match self {
            Off::Flag => !(is_put(change) && change.column().starts_with("choosing/")),
            Off::Last => change.column() != "last",
            Off::Floor => change.column() != "floor",
            Off::ReadNote => !change.column().starts_with("read/"),
            _ => true,
        });
        if self == Off::Timestamp && changes.iter().any(|change| change.column() == "value") {
            // The clock of the first client is ahead.
            *timestamp = 1_000 - client as u64;
        }
    }

    /// Cells as they reach a call.
    pub fn read(self, cells: &mut Vec<StoredCell>, client: usize) {
        let seq = |cell: &StoredCell| {
            let is_number = cell.column.starts_with("number/");
            let entry = is_number.then(|| Entry::decode(cell.value.clone()).unwrap());
            entry.map(|entry| entry.seq)
        };
        match self {
            Off::BelowFloor => {
                let floor = cells.iter().find(|cell| cell.column == "floor");
                let bytes = floor.map(|cell| cell.value.as_ref().try_into().unwrap());
                let floor = bytes.map_or(0, u64::from_be_bytes);
                cells.retain(|cell| seq(cell).is_none_or(|seq| seq >= floor));
            }
            Off::Ties => {
                let tag = format!("{:?}", tag_of(client));
                let number = |cell: &StoredCell| seq(cell).map(|seq| seq / CONTENDERS);
                let is_own = |cell: &&StoredCell| cell.column.contains(&tag);
                let own = cells
                    .iter()
                    .find(|cell| is_own(cell) && number(cell).is_some());
                if let Some(own) = own.and_then(number) {
                    cells.retain(|cell| is_own(&cell) || number(cell) != Some(own));
                }
            }
            Off::Sync | Off::Timestamp => {
                for cell in cells.iter_mut().filter(|cell| cell.column == "value") {
                    cell.timestamp = u64::MAX;
                }
            }
            _ => {}
        }
    }

    /// Whether such a read may be answered by one node.
    pub fn reads_one(self, columns: &Columns) -> bool {
        let is_queue = matches!(columns, Columns::Between(..));
        is_queue && matches!(self, Off::ChoiceOfMajority | Off::QueueOfMajority)
    }

    /// Whether a swap is made without a look at the guard, and then whether without a change of it, too.
    pub fn swaps_blindly(self, swap: &CellSwap, cells: &Cells, client: usize) -> Option<bool> {
        let entry = swap.others.iter().find(|change| {
            matches!(change, CellChange::Put { .. }) && change.column().starts_with("entry/")
        })?;
        let has_entry = cells
            .row
            .get(entry.column())
            .is_some_and(|cell| matches!(cell.life, Life::Ttl { client: of, .. } if of == client));
        match self {
            Off::Number => (!has_entry).then_some(false),
            Off::Renewal => {
                let CellChange::Put { value, .. } = &swap.first else {
                    return None;
                };
                let before = Guard::decode(swap.expected.clone()?).unwrap();
                (Guard::decode(value.clone()).unwrap() == before).then_some(true)
            }
            _ => None,
        }
    }
}
