//! The check of a table of a user, whose rows have lock columns beside data.

use std::collections::BTreeMap;
use std::sync::Arc;

use fermata_cassandra::{Driver, Fault, RowTable, RowTableName, Use, Value};

use super::error::CassandraError;
use super::tables::{self, TableKind};
use crate::lock::TableName;
use crate::store::StoreError;

/// The tables of users, each by the name of its lock table.
pub type RowTables = BTreeMap<TableName, Arc<RowTable>>;

/// The columns of such a table: name, kind and type.
const LAYOUT: [(&str, &str, &str); 3] = [
    ("column1", "clustering", "text"),
    ("key", "partition_key", "text"),
    ("value", "regular", "blob"),
];

/// How the table differs from what lock columns need; `None` if it does not.
pub(super) async fn fault(
    name: &RowTableName,
    driver: &Driver,
) -> Result<Option<String>, CassandraError> {
    let text = "SELECT column_name, kind, type FROM system_schema.columns \
                    WHERE keyspace_name = ? AND table_name = ?";
    let statement = driver.prepare(Use::Read, text).await?;
    let values = [name.keyspace.as_str(), name.table.as_str()].map(Value::text);
    let mut found = Vec::new();
    for mut row in driver.execute(&statement, &values).await? {
        let mut column = |name| {
            let text = row.text(name);
            let text = text.map_err(|error| Fault::Refused(StoreError::from(error).to_string()));
            text.map(Option::unwrap_or_default)
        };
        found.push([column("column_name")?, column("kind")?, column("type")?].join(" "));
    }
    found.sort();
    let wanted = LAYOUT.map(|(name, kind, of_type)| format!("{name} {kind} {of_type}"));
    if found.is_empty() {
        return Ok(Some(format!("there is no table {name}")));
    }
    if found != wanted {
        let found = found.join(", ");
        return Ok(Some(format!(
            "the table {name} has another layout than lock columns need: {found}"
        )));
    }
    let options = tables::found(driver, &name.keyspace).await?.into_iter();
    let mut own = options.filter(|table| table.table == name.table.as_str());
    let faults = own.next().into_iter().flat_map(|table| {
        let faults = TableKind::Data.differences(&table).into_iter();
        let faults = faults.filter(|fault| fault.is_unsafe && fault.is.starts_with("read_repair"));
        faults.map(|fault| format!("the table {name} has {}: {}", fault.is, fault.why))
    });
    Ok(faults.into_iter().next())
}
