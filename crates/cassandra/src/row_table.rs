//! A table of a user, whose rows have lock columns beside data.

use std::fmt;
use std::str::FromStr;

use crate::options::Keyspace;

/// A table of a user, and the quorum of its reads and writes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RowTable {
    /// Its name.
    pub name: RowTableName,
    /// The quorum.
    pub quorum: Quorum,
}

/// The name of a table of a user, `KEYSPACE.TABLE`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RowTableName {
    /// The keyspace.
    pub keyspace: Keyspace,
    /// The table. Its name has the form of that of a keyspace.
    pub table: Keyspace,
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

impl fmt::Display for RowTableName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.keyspace, self.table)
    }
}

/// The nodes that must answer, of those that have the partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Quorum {
    /// QUORUM: a majority of all.
    All,
    /// LOCAL_QUORUM: a majority in the datacenter of the coordinator.
    Local,
    /// EACH_QUORUM: a majority in each datacenter.
    Each,
}
