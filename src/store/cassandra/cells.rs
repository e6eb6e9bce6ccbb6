//! Cells, for protocols that keep nothing in memory: swaps by lightweight transactions, writes by a majority.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use fermata_cassandra::{Fault, Row, Value, present};

use super::CassandraStore;
use super::cell_statements::{CellCql, CellTable, Change};
use super::codec::{bigint, number};
use super::scan::Smallest;
use super::statements::Cql;
use crate::lock::{Key, KeyId, TableName};
use crate::store::{
    CellChange, CellStore, CellSwap, Columns, Currency, StoreError, StoredCell, Swap, Written,
    check_read,
};

#[async_trait]
impl CellStore for CassandraStore {
    async fn read_cells(
        &self,
        id: &KeyId,
        columns: &Columns,
        currency: Currency,
    ) -> Result<Vec<StoredCell>, StoreError> {
        let key = Value::text(id.key.as_str());
        let (ask, values): (_, Vec<Value>) = match columns {
            Columns::Named(names) => {
                let names = names.iter().map(|name| Value::text(name));
                let values: Vec<Value> = std::iter::once(key).chain(names).collect();
                (CellCql::Named(values.len() - 1, currency), values)
            }
            Columns::Between(from, to) => (
                CellCql::Between(currency),
                vec![key, Value::text(from), Value::text(to)],
            ),
        };
        let ask = Cql::Cells(self.cell_table(&id.table), ask);
        let (mut cells, mut bytes) = (Vec::new(), 0);
        let visit = |row| {
            if let Some(cell) = cell(row)? {
                bytes += cell.bytes();
                cells.push(cell);
            }
            check_read(id, bytes)
        };
        match currency {
            // Transactions in flight are settled by the first page. It has all: few cells are read so.
            Currency::Settled => self
                .ask(ask, &values)
                .await?
                .into_iter()
                .try_for_each(visit)?,
            Currency::Acknowledged => self.each_row(ask, &values, visit).await?,
        }
        Ok(cells)
    }

    async fn write_cells(&self, id: &KeyId, changes: &[CellChange], timestamp: u64) -> Written {
        let shape = changes.iter().map(Change::from).collect();
        let ask = Cql::Cells(self.cell_table(&id.table), CellCql::Write(shape));
        let mut values = match bigint(timestamp) {
            Ok(timestamp) => vec![Value::BigInt(timestamp)],
            Err(error) => return Written::NotStarted(error),
        };
        values.extend(changes.iter().flat_map(|change| bound(id, change)));
        match self.ask(ask, &values).await {
            Ok(_) => Written::Done,
            Err(fault) if fault.is_unknown() => Written::Unknown(fault.into()),
            Err(fault) => Written::NotStarted(fault.into()),
        }
    }

    async fn swap_cells(&self, id: &KeyId, swap: &CellSwap) -> Swap<Bytes> {
        let ask = Cql::Cells(self.cell_table(&id.table), CellCql::swap(swap));
        let mut values = bound(id, &swap.first);
        values.extend(swap.expected.clone().map(Value::Blob));
        values.extend(swap.others.iter().flat_map(|change| bound(id, change)));
        match self.ask(ask, &values).await.and_then(met) {
            Ok(None) => Swap::Applied,
            Ok(Some(found)) => Swap::Conflict(found),
            Err(fault) => fault.into(),
        }
    }

    async fn list_partitions(
        &self,
        table: &TableName,
        prefix: &str,
        after: Option<&Key>,
        limit: usize,
    ) -> Result<Vec<Key>, StoreError> {
        let cells = self.cell_table(table);
        let is_wanted =
            |key: &Key| key.as_str().starts_with(prefix) && after.is_none_or(|after| key > after);
        let decode = |mut row: Row| {
            let key = present(row.text("key")?, "key")?;
            match (Key::parse(&key, Key::BYTES_MAX), &cells) {
                (Ok(key), _) => Ok(Some(key).filter(is_wanted)),
                // Nobody can lock it by this service.
                (Err(_), CellTable::Row(_)) => Ok(None),
                (Err(error), CellTable::Own(_)) => {
                    Err(StoreError::Damaged(format!("a malformed key: {error}")))
                }
            }
        };
        let mut keys = Smallest::new(limit);
        let ask = Cql::Cells(cells.clone(), CellCql::Partitions);
        self.each_readable(ask, super::scan::ALL, decode, |key| keys.offer(key, ()))
            .await?;
        Ok(keys.kept.into_keys().collect())
    }
}

impl CassandraStore {
    /// The table with the cells of a table.
    fn cell_table(&self, table: &TableName) -> CellTable {
        match self.row_tables.get(table) {
            Some(row) => CellTable::Row(Arc::clone(row)),
            None => CellTable::Own(table.clone()),
        }
    }
}

/// The values of a change, in the order in which they are bound.
fn bound(id: &KeyId, change: &CellChange) -> Vec<Value> {
    let key = Value::text(id.key.as_str());
    match change {
        CellChange::Put { column, value, ttl } => vec![
            Value::Int(ttl.map_or(0, seconds)),
            Value::Blob(value.clone()),
            key,
            Value::text(column),
        ],
        CellChange::Delete { column } => vec![key, Value::text(column)],
    }
}

/// A cell lives longer than its TTL by so much: Cassandra counts from the beginning of the second of the write, and the clocks of two
/// nodes may differ by a second.
const MARGIN_S: u64 = 2;

/// Whole seconds, rounded up, and the margin.
fn seconds(ttl: Duration) -> i32 {
    let whole = ttl.as_secs() + u64::from(ttl.subsec_nanos() > 0);
    i32::try_from(whole.saturating_add(MARGIN_S)).unwrap_or(i32::MAX)
}

/// A cell that was read. A row without a value is the rest of a transaction that met no cell.
fn cell(mut row: Row) -> Result<Option<StoredCell>, StoreError> {
    let column = present(row.text("column1")?, "column1")?;
    let Some(value) = row.blob("value")? else {
        return Ok(None);
    };
    let left = row
        .int("left")?
        .map(|left| Duration::from_secs(u64::from(left.unsigned_abs()).saturating_sub(MARGIN_S)));
    Ok(Some(StoredCell {
        column,
        value,
        timestamp: number(present(row.bigint("written")?, "written")?)?,
        left,
    }))
}

/// The value that a swap met; `None` if it took effect.
fn met(rows: Vec<Row>) -> Result<Option<Option<Bytes>>, Fault> {
    let unreadable = |error| Fault::Unknown(format!("the answer to a transaction: {error}"));
    let mut row = rows
        .into_iter()
        .next()
        .ok_or_else(|| Fault::Unknown("a transaction was answered without a row".to_owned()))?;
    let applied = present(row.boolean("[applied]").map_err(unreadable)?, "[applied]");
    match applied.map_err(unreadable)? {
        true => Ok(None),
        false => row.blob("value").map(Some).map_err(unreadable),
    }
}
