//! The cells of an embedded store.

use async_trait::async_trait;
use bytes::Bytes;

use super::EmbeddedStore;
use super::cell_work::{self, CellWork};
use super::stores::{swapped, written};
use super::work::{Met, Work};
use crate::lock::{Key, KeyId, TableName};
use crate::store::{
    CellChange, CellStore, CellSwap, Columns, Currency, StoreError, StoredCell, Swap, Written,
    check_read,
};

#[async_trait]
impl CellStore for EmbeddedStore {
    async fn read_cells(
        &self,
        id: &KeyId,
        columns: &Columns,
        currency: Currency,
    ) -> Result<Vec<StoredCell>, StoreError> {
        if currency == Currency::Settled {
            self.settle().await?;
        }
        let (id, columns) = (id.clone(), columns.clone());
        let read = id.clone();
        let cells = self
            .read(move |snapshot| cell_work::read(snapshot, &read, &columns))
            .await?;
        check_read(&id, cells.iter().map(StoredCell::bytes).sum())?;
        Ok(cells)
    }

    async fn write_cells(&self, id: &KeyId, changes: &[CellChange], timestamp: u64) -> Written {
        let work = CellWork::write(id, changes, timestamp);
        written(self.submit(Work::Cells(work)).await)
    }

    async fn swap_cells(&self, id: &KeyId, swap: &CellSwap) -> Swap<Bytes> {
        let work = CellWork::swap(id, swap);
        swapped(self.submit(Work::Cells(work)).await, |met| match met {
            Met::Cell(value) => Some(value),
            Met::State(_) | Met::Session(_) => None,
        })
    }

    async fn list_partitions(
        &self,
        table: &TableName,
        prefix: &str,
        after: Option<&Key>,
        limit: usize,
    ) -> Result<Vec<Key>, StoreError> {
        let (table, prefix, after) = (table.clone(), prefix.to_owned(), after.cloned());
        self.list(move |snapshot| {
            cell_work::partitions(snapshot, &table, &prefix, after.as_ref(), limit)
        })
        .await
    }
}
