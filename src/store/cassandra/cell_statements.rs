//! The statements on cells.

use std::sync::Arc;

use fermata_cassandra::{Keyspace, RowTable, Use};

use super::table_names::{cell_table, row_table};
use crate::lock::TableName;
use crate::store::{CellChange, CellSwap, Currency};

/// A table with cells.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum CellTable {
    /// One of the service.
    Own(TableName),
    /// One of a user.
    Row(Arc<RowTable>),
}

impl CellTable {
    fn name(&self, keyspace: &Keyspace) -> String {
        match self {
            CellTable::Own(table) => cell_table(keyspace, table),
            CellTable::Row(row) => row_table(&row.name),
        }
    }
}

/// What is asked about cells.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum CellCql {
    /// Cells of a partition by their columns, this many.
    Named(usize, Currency),
    /// Cells of a partition between two columns.
    Between(Currency),
    /// Changes of cells of a partition, each a put or a deletion, with a timestamp.
    Write(Vec<Change>),
    /// The same by a transaction: the condition is on the first one.
    Swap(Condition, Vec<Change>),
    /// Every partition in a range of tokens.
    Partitions,
}

/// A change of one cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Change {
    /// A put, with a TTL; 0: it stays.
    Put,
    /// A deletion.
    Delete,
}

/// The condition of a swap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Condition {
    /// No cell.
    Absent,
    /// A cell with a value.
    Value,
}

impl From<&CellChange> for Change {
    fn from(change: &CellChange) -> Change {
        match change {
            CellChange::Put { .. } => Change::Put,
            CellChange::Delete { .. } => Change::Delete,
        }
    }
}

impl CellCql {
    pub(super) fn swap(swap: &CellSwap) -> CellCql {
        let condition = match swap.expected {
            None => Condition::Absent,
            Some(_) => Condition::Value,
        };
        let changes = std::iter::once(&swap.first).chain(&swap.others);
        CellCql::Swap(condition, changes.map(Change::from).collect())
    }

    /// How it is executed.
    pub(super) fn usage(&self, table: &CellTable) -> Use {
        match (self.usual(), table) {
            (Use::Read, CellTable::Row(row)) => Use::ReadFrom(row.quorum),
            (Use::Write, CellTable::Row(row)) => Use::WriteTo(row.quorum),
            (usual, _) => usual,
        }
    }

    fn usual(&self) -> Use {
        match self {
            CellCql::Named(_, Currency::Settled) | CellCql::Between(Currency::Settled) => {
                Use::SettlingRead
            }
            CellCql::Named(_, Currency::Acknowledged)
            | CellCql::Between(Currency::Acknowledged)
            | CellCql::Partitions => Use::Read,
            CellCql::Write(_) => Use::Write,
            CellCql::Swap(..) => Use::Cas,
        }
    }

    /// Its text.
    pub(super) fn text(&self, keyspace: &Keyspace, table: &CellTable) -> String {
        let table = table.name(keyspace);
        let select = format!(
            "SELECT \"column1\", \"value\", WRITETIME(\"value\") AS \"written\", TTL(\"value\") AS \"left\" FROM {table} \
             WHERE \"key\" = ? AND \"column1\""
        );
        match self {
            CellCql::Named(count, _) => format!("{select} IN ({})", vec!["?"; *count].join(", ")),
            CellCql::Between(_) => format!("{select} >= ? AND \"column1\" < ?"),
            CellCql::Write(changes) => {
                let changes = changes.iter().map(|change| change.text(&table, ""));
                let changes: String = changes.collect();
                format!("BEGIN UNLOGGED BATCH USING TIMESTAMP ? {changes}APPLY BATCH")
            }
            CellCql::Swap(condition, changes) => {
                let condition = match condition {
                    Condition::Absent => " IF \"value\" = null",
                    Condition::Value => " IF \"value\" = ?",
                };
                let conditions = std::iter::once(condition).chain(std::iter::repeat(""));
                let changes = changes.iter().zip(conditions);
                let changes: String = changes
                    .map(|(change, condition)| change.text(&table, condition))
                    .collect();
                format!("BEGIN BATCH {changes}APPLY BATCH")
            }
            CellCql::Partitions => format!(
                "SELECT DISTINCT \"key\" FROM {table} WHERE token(\"key\") > ? AND token(\"key\") <= ?"
            ),
        }
    }
}

impl Change {
    /// A put is an UPDATE: an INSERT would leave a row without a value after its end.
    fn text(self, table: &str, condition: &str) -> String {
        let which = "WHERE \"key\" = ? AND \"column1\" = ?";
        match self {
            Change::Put => {
                format!("UPDATE {table} USING TTL ? SET \"value\" = ? {which}{condition}; ")
            }
            Change::Delete => format!("DELETE FROM {table} {which}{condition}; "),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_swap_has_its_condition_on_its_first_change_only_and_no_timestamp() {
        let changes = vec![Change::Put, Change::Put, Change::Delete];
        let table = CellTable::Own(TableName::default_table());
        let text = |ask: CellCql| ask.text(&Keyspace::default(), &table);
        let swap = text(CellCql::Swap(Condition::Value, changes.clone()));
        let (first, others) = swap.split_once(';').unwrap();
        assert!(first.ends_with(" IF \"value\" = ?"), "{swap}");
        assert!(
            !others.contains(" IF ") && !swap.contains("TIMESTAMP"),
            "{swap}"
        );
        assert_eq!(swap.matches('?').count(), 5 + 4 + 2);
        let write = text(CellCql::Write(changes));
        assert!(
            !write.contains(" IF ") && write.contains("USING TIMESTAMP ? UPDATE"),
            "{write}"
        );
    }
}
