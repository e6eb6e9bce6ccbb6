//! The schema: the text of the tables, their making, and their version.

use fermata_cassandra::{CassandraOptions, Driver, Fault, Keyspace, Use, Value};

use super::error::CassandraError;
use super::replication::{self, Copies};
pub use super::replication::{Replication, ReplicationError};
use super::row_table::RowTables;
use super::rows::applied;
use super::statements::{Cql, HAND_OVER_REQUEST_TABLE, REPLICA_TABLE};
use super::table_names::{cell_table, data_table, lock_table, single_table};
use super::tables::{self, TableKind, columns, unreadable};
use crate::lock::TableName;

/// The version of the schema that this program works with.
pub const VERSION: i32 = 7;
/// The row of `schema_version`.
pub(super) const PART: &str = "locks";
/// The row of `schema_version` with the floor of fences: one that no transaction writes.
pub(super) const FENCE_PART: &str = "fences";
/// The keyspace and its tables.
#[derive(Clone, Debug)]
pub struct Schema {
    /// The keyspace.
    pub keyspace: Keyspace,
    /// How many copies; `None` where the keyspace is there already.
    pub replication: Option<Replication>,
    /// The tables whose keys can be locked.
    pub tables: Vec<TableName>,
    /// The tables whose keys have no homes.
    pub cell_tables: Vec<TableName>,
    /// The tables of users with lock columns. They are checked, not made.
    pub row_tables: RowTables,
}

impl Schema {
    /// What makes all of it, in this order. Each can be repeated.
    pub fn statements(&self) -> Vec<String> {
        let keyspace = &self.keyspace;
        let mut statements = Vec::new();
        if let Some(replication) = &self.replication {
            statements.push(format!(
                "CREATE KEYSPACE IF NOT EXISTS \"{keyspace}\" WITH replication = {replication}"
            ));
        }
        let one = |name| single_table(keyspace, name);
        statements.push(format!(
            "CREATE TABLE IF NOT EXISTS {} (\n  \"part\" text PRIMARY KEY,\n  \"version\" int,\n  \"fence_floor\" bigint\n)",
            one("schema_version")
        ));
        statements.push(format!(
            "CREATE TABLE IF NOT EXISTS {} (\n  \"id\" uuid PRIMARY KEY,\n  \"ttl\" int,\n  \
             \"disconnect_grace\" int,\n  \"replica\" uuid,\n  \"epoch\" int,\n  \"open\" boolean,\n  \"identity\" text,\n  \"owner\" text,\n  \
             \"created_at\" timestamp\n) WITH {}",
            one("sessions"),
            TableKind::Sessions.options()
        ));
        // All in one partition, so what is left of deleted rows is kept for hours and not for days. A row that a node
        // brings back after that is still one of a replica that is down or stopped, and is deleted again.
        statements.push(format!(
            "CREATE TABLE IF NOT EXISTS {} (\n  \"part\" text,\n  \"id\" uuid,\n  \"name\" text,\n  \
             \"zone\" text,\n  \"address\" text,\n  \"peer_address\" text,\n  \"version\" text,\n  \
             \"started_at\" timestamp,\n  \"ttl\" int,\n  \"state\" int,\n  \"heartbeat\" bigint,\n  \
             PRIMARY KEY (\"part\", \"id\")\n) WITH {}",
            one(REPLICA_TABLE),
            TableKind::Replicas.options()
        ));
        statements.push(format!(
            "CREATE TABLE IF NOT EXISTS {} (\n  \"home\" uuid,\n  \"table_name\" text,\n  \
             \"key\" text,\n  \"term\" bigint,\n  \"to\" uuid,\n  \
             PRIMARY KEY (\"home\", \"table_name\", \"key\", \"term\", \"to\")\n) WITH {}",
            one(HAND_OVER_REQUEST_TABLE),
            TableKind::HandOverRequests.options()
        ));
        for table in &self.tables {
            statements.push(format!(
                "CREATE TABLE IF NOT EXISTS {} (\n  \"key\" text,\n  \"seq\" bigint,\n  \"mode\" tinyint,\n  \
                 \"tag\" blob,\n  \"session\" uuid,\n  \"ttl\" int,\n  \"identity\" text,\n  \
                 \"owner\" text,\n  \"created_at\" timestamp,\n  \"ended\" blob,\n  \"skip\" blob,\n  \
                 \"format\" tinyint static,\n  \"version\" bigint static,\n  \"home\" uuid static,\n  \
                 \"term\" bigint static,\n  \"next\" bigint static,\n  \"head\" bigint static,\n  \
                 \"grant\" bigint static,\n  \"fence\" bigint static,\n  \"width\" int static,\n  \
                 \"unsynced\" boolean static,\n  \"seq_end\" bigint static,\n  \"fence_end\" bigint static,\n  \
                 \"volatile_end\" bigint static,\n  \"kept\" bigint static,\n  \"first_left\" int static,\n  \
                 \"digest\" bigint static,\n  PRIMARY KEY (\"key\", \"seq\")\n) WITH CLUSTERING ORDER BY \
                 (\"seq\" ASC) AND {}",
                lock_table(keyspace, table),
                TableKind::Locks.options()
            ));
            statements.push(format!(
                "CREATE TABLE IF NOT EXISTS {} (\n  \"key\" text PRIMARY KEY,\n  \"value\" blob,\n  \
                 \"deleted\" boolean\n) WITH {}",
                data_table(keyspace, table),
                TableKind::Data.options()
            ));
        }
        for table in &self.cell_tables {
            statements.push(format!(
                "CREATE TABLE IF NOT EXISTS {} (\n  \"key\" text,\n  \"column1\" text,\n  \"value\" blob,\n  \
                 PRIMARY KEY (\"key\", \"column1\")\n) WITH {}",
                cell_table(keyspace, table),
                TableKind::Cells.options()
            ));
        }
        statements
    }
}

/// Makes what is missing, and waits until all nodes know it. `say` learns of each step. Two may do this at once. A
/// keyspace of another version is left as it is.
pub async fn apply(
    options: &CassandraOptions,
    schema: &Schema,
    say: &(dyn Fn(&str) + Sync),
) -> Result<(), CassandraError> {
    let driver = Driver::connect(options).await?;
    is_ours(version(&driver, &schema.keyspace).await?, &schema.keyspace)?;
    if schema.replication.is_none() && Copies::of(&driver, &schema.keyspace).await?.is_none() {
        return Err(CassandraError::NoKeyspace {
            keyspace: schema.keyspace.clone(),
            example: replication::example(&driver.datacenters()),
        });
    }
    for statement in schema.statements() {
        let name = statement.split([' ', '(']).nth(5).unwrap_or_default();
        say(name);
        driver.change_schema(&statement).await?;
        if statement.starts_with("CREATE KEYSPACE") {
            driver.agree_on_schema().await?;
        }
    }
    driver.agree_on_schema().await?;
    let all = tables::all(&schema.tables, &schema.cell_tables);
    tables::set(&driver, &schema.keyspace, all, say).await?;
    note_version(&driver, &schema.keyspace).await
}

/// Whether the tables that are there may be used: of this version, or of one that was not noted yet.
fn is_ours(found: Option<i32>, keyspace: &Keyspace) -> Result<(), CassandraError> {
    match found {
        Some(VERSION) | None => Ok(()),
        Some(found) => Err(CassandraError::OtherSchema {
            keyspace: keyspace.clone(),
            found,
            known: VERSION,
        }),
    }
}

/// Notes the version, once all tables are there, unless somebody else did meanwhile.
async fn note_version(driver: &Driver, keyspace: &Keyspace) -> Result<(), CassandraError> {
    let text = Cql::NoteSchemaVersion.text(keyspace);
    let statement = driver.prepare(Use::Cas, &text).await?;
    let values = [Value::text(PART), Value::Int(VERSION)];
    if applied(driver.execute(&statement, &values).await?)? {
        return Ok(());
    }
    is_ours(version(driver, keyspace).await?, keyspace)
}

/// The version of the schema in a keyspace; `None` where none is noted, or nothing is there.
pub(super) async fn version(driver: &Driver, keyspace: &Keyspace) -> Result<Option<i32>, Fault> {
    if columns(driver, keyspace, "schema_version")
        .await?
        .is_empty()
    {
        return Ok(None);
    }
    let text = Cql::SchemaVersion.text(keyspace);
    let statement = driver.prepare(Use::Read, &text).await?;
    let rows = driver.execute(&statement, &[Value::text(PART)]).await?;
    let found = rows.into_iter().next().map(|mut row| row.int("version"));
    Ok(found.transpose().map_err(unreadable)?.flatten())
}

#[cfg(test)]
mod tests {
    use fermata_cassandra::Order;

    use super::*;
    use crate::store::cassandra::statements::Shape;

    #[test]
    fn statements_name_only_columns_that_the_tables_have() {
        let table = TableName::default_table();
        let schema = Schema {
            keyspace: Keyspace::default(),
            replication: None,
            tables: vec![table.clone()],
            cell_tables: Vec::new(),
            row_tables: RowTables::new(),
        };
        let tables = schema.statements().join("\n");
        let swap = Cql::Swap(table.clone(), Shape::holding(false, 1, 1), Order::First);
        let others = [swap, Cql::AgreeOnMajority, Cql::RaiseFenceFloor];
        for ask in Cql::SHARED
            .into_iter()
            .chain(Cql::of_table(&table))
            .chain(others)
        {
            let text = ask.text(&schema.keyspace);
            for name in text.split('"').skip(1).step_by(2) {
                let is_known = tables.contains(&format!("\"{name}\""));
                let is_made_here = text.contains(&format!("AS \"{name}\""));
                assert!(is_known || is_made_here, "{name}: {text}");
            }
        }
    }

    #[test]
    fn every_statement_can_be_repeated_and_names_no_strategy_unasked() {
        let schema = Schema {
            keyspace: Keyspace::parse("k").unwrap(),
            replication: None,
            tables: vec![TableName::default_table()],
            cell_tables: Vec::new(),
            row_tables: RowTables::new(),
        };
        let statements = schema.statements();
        assert_eq!(statements.len(), 6);
        for statement in statements {
            assert!(statement.contains(" IF NOT EXISTS "), "{statement}");
            assert!(!statement.contains("Strategy"), "{statement}");
        }
    }
}
