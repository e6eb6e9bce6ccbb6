//! The names of tables in statements, quoted.

use fermata_cassandra::{Keyspace, RowTableName};

use crate::lock::TableName;

/// `"keyspace"."prefix_table"`.
fn in_keyspace(keyspace: &Keyspace, prefix: &str, table: &TableName) -> String {
    format!("\"{keyspace}\".\"{prefix}_{table}\"")
}

/// The table of the states of keys.
pub(super) fn lock_table(keyspace: &Keyspace, table: &TableName) -> String {
    in_keyspace(keyspace, "lock", table)
}

/// The table of the values of keys.
pub(super) fn data_table(keyspace: &Keyspace, table: &TableName) -> String {
    in_keyspace(keyspace, "data", table)
}

/// A table there is one of.
pub(super) fn single_table(keyspace: &Keyspace, name: &str) -> String {
    format!("\"{keyspace}\".\"{name}\"")
}

/// The table of the cells of keys.
pub(super) fn cell_table(keyspace: &Keyspace, table: &TableName) -> String {
    in_keyspace(keyspace, "cells", table)
}

/// A table of a user.
pub(super) fn row_table(name: &RowTableName) -> String {
    single_table(&name.keyspace, name.table.as_str())
}
