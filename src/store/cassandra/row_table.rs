//! A table of a user, whose rows have lock columns beside data.

use std::str::FromStr;

use fermata_cassandra::{Driver, Keyspace, Quorum, Use, Value};

use super::error::CassandraError;
use super::tables::unreadable;

/// A table of a user, and the quorum of its reads and writes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RowTable {
    /// Its name.
    pub name: RowTableName,
    /// The quorum.
    pub quorum: Quorum,
}

/// `KEYSPACE.TABLE`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RowTableName {
    keyspace: Keyspace,
    table: Keyspace,
}

/// Why a text names no table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("must be KEYSPACE.TABLE, each 1 to 48 letters, digits or _, a letter first")]
pub struct RowTableNameError;

impl FromStr for RowTableName {
    type Err = RowTableNameError;

    fn from_str(text: &str) -> Result<RowTableName, RowTableNameError> {
        let (keyspace, table) = text.split_once('.').ok_or(RowTableNameError)?;
        // Both names have the same form.
        let parsed = |name| Keyspace::parse(name).map_err(|_| RowTableNameError);
        Ok(RowTableName {
            keyspace: parsed(keyspace)?,
            table: parsed(table)?,
        })
    }
}

impl std::fmt::Display for RowTableName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.keyspace, self.table)
    }
}

/// The columns of such a table: name, kind and type.
const LAYOUT: [(&str, &str, &str); 3] = [
    ("column1", "clustering", "text"),
    ("key", "partition_key", "text"),
    ("value", "regular", "blob"),
];

impl RowTableName {
    /// The name in statements.
    pub(super) fn quoted(&self) -> String {
        format!("\"{}\".\"{}\"", self.keyspace, self.table)
    }

    /// How the table differs from what lock columns need; `None` if it does not.
    pub(super) async fn fault(&self, driver: &Driver) -> Result<Option<String>, CassandraError> {
        let text = "SELECT column_name, kind, type FROM system_schema.columns \
                    WHERE keyspace_name = ? AND table_name = ?";
        let statement = driver.prepare(Use::Read, text).await?;
        let values = [self.keyspace.as_str(), self.table.as_str()].map(Value::text);
        let mut found = Vec::new();
        for mut row in driver.execute(&statement, &values).await? {
            let mut column = |name| {
                let text = row.text(name).map_err(unreadable);
                text.map(Option::unwrap_or_default)
            };
            found.push([column("column_name")?, column("kind")?, column("type")?].join(" "));
        }
        found.sort();
        let wanted = LAYOUT.map(|(name, kind, of_type)| format!("{name} {kind} {of_type}"));
        Ok(match found.is_empty() {
            true => Some(format!("there is no table {self}")),
            false => (found != wanted).then(|| {
                format!(
                    "the table {self} has another layout than lock columns need: {}",
                    found.join(", ")
                )
            }),
        })
    }
}
