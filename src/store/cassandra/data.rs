//! The values of keys, written plainly with the timestamps of their holders' fences.

use async_trait::async_trait;
use fermata_cassandra::{Value, present};

use super::CassandraStore;
use super::codec::{bigint, number};
use super::statements::Cql;
use crate::lock::KeyId;
use crate::store::{Cell, DataStore, StoreError, Written};

/// Two days: ScyllaDB refuses timestamps from three days ahead of its clock on, and what is written further ahead than
/// this cannot be overwritten by anybody else for as long (I3).
pub(super) const AHEAD_US_MAX: u64 = 2 * 24 * 3_600 * 1_000_000;

#[async_trait]
impl DataStore for CassandraStore {
    async fn read_data(&self, id: &KeyId) -> Result<Option<Cell>, StoreError> {
        let values = [Value::text(id.key.as_str())];
        let rows = self.ask(Cql::ReadData(id.table.clone()), &values).await?;
        let Some(mut row) = rows.into_iter().next() else {
            return Ok(None);
        };
        let Some(value) = row.blob("value")? else {
            return Ok(None);
        };
        let deleted = row.boolean("deleted")?.unwrap_or(false);
        let timestamp = number(present(row.bigint("written")?, "written")?)?;
        Ok(Some(Cell {
            value: (!deleted).then_some(value),
            timestamp,
        }))
    }

    async fn write_data(&self, id: &KeyId, cell: Cell) -> Written {
        let timestamp = match bigint(cell.timestamp) {
            Ok(timestamp) => timestamp,
            Err(error) => return Written::NotStarted(error),
        };
        // A deleted value is a live marker: no purged tombstone can bring the old value back.
        let is_deleted = cell.value.is_none();
        let values = [
            Value::text(id.key.as_str()),
            Value::Blob(cell.value.unwrap_or_default()),
            Value::Boolean(is_deleted),
            Value::BigInt(timestamp),
        ];
        match self.ask(Cql::WriteData(id.table.clone()), &values).await {
            Ok(_) => Written::Done,
            Err(fault) if fault.is_unknown() => Written::Unknown(fault.into()),
            Err(fault) => Written::NotStarted(fault.into()),
        }
    }

    fn ahead_us_max(&self) -> Option<u64> {
        Some(AHEAD_US_MAX)
    }
}
