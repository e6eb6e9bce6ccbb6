//! The tables: their text, how they are made, and which version of them a keyspace has.

use fermata_cassandra::{CassandraOptions, ConnectFault, Driver, Fault, Keyspace, Use, Value};

use super::replication::{self, Copies};
pub use super::replication::{Replication, ReplicationError};
use super::rows::applied;
use super::statements::{
    Cql, HAND_OVER_REQUEST_TABLE, REPLICA_TABLE, data_table, lock_table, single_table,
};
use super::tables::{self, TableKind, columns, unreadable};
use crate::lock::TableName;

/// The version of the schema that this program works with.
pub const VERSION: i32 = 6;
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
        statements
    }
}

/// Why the schema could not be made or looked at.
#[derive(Clone, Debug, thiserror::Error)]
pub enum SchemaError {
    /// A file that the options name cannot be used.
    #[error("{0}")]
    Settings(String),
    /// No node could be reached, or one gave no answer. Repeat: what is there already stays.
    #[error("Cassandra cannot be reached: {0}")]
    Unreachable(String),
    /// The cluster refused, or is not one that is to be trusted.
    #[error("Cassandra refused: {0}")]
    Refused(String),
    /// There is no keyspace, and it was not said how many copies one shall have.
    #[error(
        "there is no keyspace {keyspace}; to make it, say how many copies each datacenter shall have, for \
         instance: --replication {example}"
    )]
    NoKeyspace {
        /// The keyspace.
        keyspace: Keyspace,
        /// What would fit the cluster.
        example: String,
    },
    /// Copies were asked for where there are no nodes.
    #[error("the cluster has no datacenter {name:?}; it has {known}")]
    NoDatacenter {
        /// What was named.
        name: String,
        /// What there is, in words.
        known: String,
    },
    /// Another version of this program made the tables that are there.
    #[error(
        "the keyspace {keyspace} has schema version {found}, and this program works with {VERSION} only; nothing was \
         changed. Run the program that it belongs to, or name another keyspace"
    )]
    OtherVersion {
        /// The keyspace.
        keyspace: Keyspace,
        /// What is there.
        found: i32,
    },
}

impl From<ConnectFault> for SchemaError {
    fn from(fault: ConnectFault) -> SchemaError {
        match fault {
            ConnectFault::Settings(what) => SchemaError::Settings(what),
            ConnectFault::Refused(what) => SchemaError::Refused(what),
            ConnectFault::Unreachable(what) => SchemaError::Unreachable(what),
        }
    }
}

impl From<Fault> for SchemaError {
    fn from(fault: Fault) -> SchemaError {
        match fault {
            Fault::Refused(what) => SchemaError::Refused(what),
            Fault::NotStarted(what) | Fault::Unknown(what) => SchemaError::Unreachable(what),
        }
    }
}

/// Makes what is missing, and waits until all nodes know it. `say` learns of each step. Two may do this at once. A
/// keyspace of another version is left as it is.
pub async fn apply(
    options: &CassandraOptions,
    schema: &Schema,
    say: &(dyn Fn(&str) + Sync),
) -> Result<(), SchemaError> {
    let driver = Driver::connect(options).await?;
    is_ours(version(&driver, &schema.keyspace).await?, &schema.keyspace)?;
    can_be_made(&driver, schema).await?;
    for statement in schema.statements() {
        let name = statement.split([' ', '(']).nth(5).unwrap_or_default();
        say(name);
        driver.change_schema(&statement).await?;
        if statement.starts_with("CREATE KEYSPACE") {
            driver.agree_on_schema().await?;
        }
    }
    driver.agree_on_schema().await?;
    tables::set(&driver, &schema.keyspace, &schema.tables, say).await?;
    note_version(&driver, &schema.keyspace).await
}

/// Whether the tables that are there may be used: of this version, or of one that was not noted yet.
fn is_ours(found: Option<i32>, keyspace: &Keyspace) -> Result<(), SchemaError> {
    match found {
        Some(VERSION) | None => Ok(()),
        Some(found) => Err(SchemaError::OtherVersion {
            keyspace: keyspace.clone(),
            found,
        }),
    }
}

/// Notes the version, once all tables are there, unless somebody else did meanwhile.
async fn note_version(driver: &Driver, keyspace: &Keyspace) -> Result<(), SchemaError> {
    let text = Cql::NoteSchemaVersion.text(keyspace);
    let statement = driver.prepare(Use::Cas, &text).await?;
    let values = [Value::text(PART), Value::Int(VERSION)];
    if applied(driver.execute(&statement, &values).await?)? {
        return Ok(());
    }
    is_ours(version(driver, keyspace).await?, keyspace)
}

/// Says what the cluster would only refuse, in words that tell what to do.
async fn can_be_made(driver: &Driver, schema: &Schema) -> Result<(), SchemaError> {
    let datacenters = driver.datacenters();
    match &schema.replication {
        Some(wanted) => match replication::unknown(wanted, &datacenters) {
            Some(name) => Err(SchemaError::NoDatacenter {
                name: name.to_owned(),
                known: replication::described(&datacenters),
            }),
            None => Ok(()),
        },
        None if Copies::of(driver, &schema.keyspace).await?.is_none() => {
            Err(SchemaError::NoKeyspace {
                keyspace: schema.keyspace.clone(),
                example: replication::example(&datacenters),
            })
        }
        None => Ok(()),
    }
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
    use super::*;

    #[test]
    fn every_statement_can_be_repeated_and_names_no_strategy_unasked() {
        let schema = Schema {
            keyspace: Keyspace::parse("k").unwrap(),
            replication: None,
            tables: vec![TableName::default_table()],
        };
        let statements = schema.statements();
        assert_eq!(statements.len(), 6);
        for statement in statements {
            assert!(statement.contains(" IF NOT EXISTS "), "{statement}");
            assert!(!statement.contains("Strategy"), "{statement}");
        }
    }
}
