//! Cells: the store of protocols that keep nothing in memory.
//!
//! A partition is a key of a table. Its cells have a column and a value, and may end by themselves. Of two writes of a cell the one
//! with the higher timestamp stays. The store judges when a cell has ended, by the clocks of its own machines.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

use super::{StoreError, Swap, Written};
use crate::lock::{Key, KeyId, TableName};

/// A cell that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredCell {
    /// Its column.
    pub column: String,
    /// Its value.
    pub value: Bytes,
    /// When it was written, in microseconds.
    pub timestamp: u64,
    /// It lives for as long at least; `None` for a cell that stays. Whole seconds on Cassandra.
    pub left: Option<Duration>,
}

impl StoredCell {
    /// Its size.
    pub fn bytes(&self) -> usize {
        self.column.len() + self.value.len()
    }
}

/// How much one read may bring, in bytes.
pub const READ_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Fails for a read that has brought more than it may.
pub fn check_read(id: &KeyId, bytes: usize) -> Result<(), StoreError> {
    match bytes > READ_BYTES_MAX {
        true => Err(StoreError::Unavailable(format!(
            "the row of {id} has more than {READ_BYTES_MAX} bytes"
        ))),
        false => Ok(()),
    }
}

/// A selection of cells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Columns {
    /// Those with these names.
    Named(Vec<String>),
    /// Those from the first name up to, and without, the second, in the order of their bytes.
    Between(String, String),
}

impl Columns {
    /// All of a partition.
    pub fn all() -> Columns {
        Columns::Between(String::new(), char::MAX.to_string())
    }
}

/// How current a read is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Currency {
    /// It shows all acknowledged writes and swaps.
    Acknowledged,
    /// As `Acknowledged`, and swaps in flight are settled first.
    Settled,
}

/// A change of one cell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CellChange {
    /// Writes it.
    Put {
        /// Its column.
        column: String,
        /// Its value.
        value: Bytes,
        /// Its life, rounded up to whole seconds; `None`: it stays.
        ttl: Option<Duration>,
    },
    /// Deletes it.
    Delete {
        /// Its column.
        column: String,
    },
}

impl CellChange {
    /// The changed column.
    pub fn column(&self) -> &str {
        match self {
            CellChange::Put { column, .. } | CellChange::Delete { column } => column,
        }
    }
}

/// A swap: changes of one partition that take effect together, if its first change finds the expected value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CellSwap {
    /// The value that the cell of the first change must have; `None`: no such cell.
    pub expected: Option<Bytes>,
    /// The first change.
    pub first: CellChange,
    /// All others, of other columns.
    pub others: Vec<CellChange>,
}

/// The cells of tables. A cell is changed by swaps only, or by writes only: their timestamps have nothing to do with each other.
///
/// Every future may be dropped at any time; the change may then have happened or not.
#[async_trait]
pub trait CellStore: Send + Sync + 'static {
    /// Reads cells of one partition at one moment, in the order of their columns.
    async fn read_cells(
        &self,
        id: &KeyId,
        columns: &Columns,
        currency: Currency,
    ) -> Result<Vec<StoredCell>, StoreError>;

    /// Writes cells of one partition together, with this timestamp in microseconds. Repeating it changes nothing.
    async fn write_cells(&self, id: &KeyId, changes: &[CellChange], timestamp: u64) -> Written;

    /// Swaps cells of one partition, durably. A conflict shows the value of the first cell.
    async fn swap_cells(&self, id: &KeyId, swap: &CellSwap) -> Swap<Bytes>;

    /// Lists keys with at least one cell that begin with `prefix`, in the order of their bytes, from the first above `after`,
    /// `limit` at most. A shorter answer is the last page.
    async fn list_partitions(
        &self,
        table: &TableName,
        prefix: &str,
        after: Option<&Key>,
        limit: usize,
    ) -> Result<Vec<Key>, StoreError>;
}
