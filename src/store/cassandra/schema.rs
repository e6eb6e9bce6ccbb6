//! The tables: their text, how they are made, and which version of them a keyspace has.

use std::fmt;

use super::driver::{Driver, Use};
use super::fault::{ConnectFault, Fault};
use super::migration;
use super::options::{CassandraOptions, Keyspace};
use super::statements::{Ask, QUESTION_TTL_S, data_table, lock_table, single_table};
use super::value::Value;
use crate::lock::TableName;
use crate::store::StoreError;

/// The version of the schema that this program works with.
pub const VERSION: i32 = 2;
/// The row of `schema_version`.
pub(super) const PART: &str = "locks";
/// How long Cassandra keeps what says that a row was deleted, for tables that transactions write, in seconds.
/// Its memory of transactions lives as long, and three hours at least.
pub(super) const GC_GRACE_S: i32 = 10_800;

/// How many copies of the data there are, and where. Named by whoever makes the keyspace: there is no default
/// that would be right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Replication {
    /// So many in each datacenter.
    Datacenters(Vec<(String, u8)>),
    /// So many anywhere, datacenters unseen: for trying things out.
    Simple(u8),
}

/// Why a text is no replication.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not DATACENTER=COPIES[,DATACENTER=COPIES…] nor simple=COPIES")]
pub struct ReplicationError(String);

impl std::str::FromStr for Replication {
    type Err = ReplicationError;

    fn from_str(text: &str) -> Result<Replication, ReplicationError> {
        let wrong = || ReplicationError(text.to_owned());
        let mut datacenters = Vec::new();
        for part in text.split(',') {
            let (name, copies) = part.split_once('=').ok_or_else(wrong)?;
            let copies: u8 = copies.parse().map_err(|_| wrong())?;
            let fits = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'.');
            let known = datacenters.iter().any(|(other, _)| other == name);
            if copies == 0 || name.is_empty() || !name.bytes().all(fits) || known {
                return Err(wrong());
            }
            datacenters.push((name.to_owned(), copies));
        }
        match datacenters.as_slice() {
            [(name, copies)] if name == "simple" => Ok(Replication::Simple(*copies)),
            all if all.iter().any(|(name, _)| name == "simple") => Err(wrong()),
            _ => Ok(Replication::Datacenters(datacenters)),
        }
    }
}

impl fmt::Display for Replication {
    /// As CQL.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Replication::Simple(copies) => {
                write!(
                    f,
                    "{{'class': 'SimpleStrategy', 'replication_factor': {copies}}}"
                )
            }
            Replication::Datacenters(datacenters) => {
                f.write_str("{'class': 'NetworkTopologyStrategy'")?;
                for (name, copies) in datacenters {
                    write!(f, ", '{name}': {copies}")?;
                }
                f.write_str("}")
            }
        }
    }
}

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
            "CREATE TABLE IF NOT EXISTS {} (\n  \"part\" text PRIMARY KEY,\n  \"version\" int\n)",
            one("schema_version")
        ));
        statements.push(format!(
            "CREATE TABLE IF NOT EXISTS {} (\n  \"id\" uuid PRIMARY KEY,\n  \"ttl\" int,\n  \"replica\" uuid,\n  \
             \"epoch\" int,\n  \"open\" boolean,\n  \"identity\" text,\n  \"owner\" text,\n  \
             \"created_at\" timestamp\n) WITH gc_grace_seconds = {GC_GRACE_S}",
            one("sessions")
        ));
        statements.push(format!(
            "CREATE TABLE IF NOT EXISTS {} (\n  \"id\" uuid PRIMARY KEY,\n  \"address\" text,\n  \
             \"peer_address\" text,\n  \"version\" text,\n  \"started_at\" timestamp,\n  \
             \"ttl\" int,\n  \"beat\" bigint,\n  \"stopped\" boolean\n)",
            one("replicas")
        ));
        // Nothing in it is ever deleted, and what expires cannot come back: no need to keep the traces.
        statements.push(format!(
            "CREATE TABLE IF NOT EXISTS {} (\n  \"home\" uuid,\n  \"id\" uuid,\n  \
             \"table_name\" text,\n  \"key\" text,\n  \"seq\" bigint,\n  \"fence\" bigint,\n  \
             \"epoch\" int,\n  \"session\" uuid,\n  \"consented\" boolean,\n  \
             PRIMARY KEY (\"home\", \"id\")\n) WITH gc_grace_seconds = {QUESTION_TTL_S}",
            one("questions")
        ));
        for table in &self.tables {
            statements.push(format!(
                "CREATE TABLE IF NOT EXISTS {} (\n  \"key\" text,\n  \"seq\" bigint,\n  \"mode\" tinyint,\n  \
                 \"request_id\" uuid,\n  \"session\" uuid,\n  \"ttl\" int,\n  \"epoch\" int,\n  \
                 \"home\" uuid,\n  \"identity\" text,\n  \"owner\" text,\n  \"created_at\" timestamp,\n  \
                 \"ended\" blob,\n  \"skip\" blob,\n  \"format\" tinyint static,\n  \
                 \"version\" bigint static,\n  \"next\" bigint static,\n  \"head\" bigint static,\n  \
                 \"grant\" bigint static,\n  \"fence\" bigint static,\n  \"width\" int static,\n  \
                 \"unsynced\" boolean static,\n  PRIMARY KEY (\"key\", \"seq\")\n) WITH CLUSTERING ORDER BY \
                 (\"seq\" ASC) AND gc_grace_seconds = {GC_GRACE_S}",
                lock_table(keyspace, table)
            ));
            statements.push(format!(
                "CREATE TABLE IF NOT EXISTS {} (\n  \"key\" text PRIMARY KEY,\n  \"value\" blob,\n  \
                 \"deleted\" boolean\n)",
                data_table(keyspace, table)
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
    /// A later version of this program made it.
    #[error(
        "the keyspace {keyspace} has schema version {found}, and this program knows {VERSION}; nothing was changed"
    )]
    Newer {
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

/// Makes what is missing, brings what an earlier version made up to date, and waits until all nodes know it.
/// `say` hears of each step. Two may do this at once.
pub async fn apply(
    options: &CassandraOptions,
    schema: &Schema,
    say: &(dyn Fn(&str) + Sync),
) -> Result<(), SchemaError> {
    let driver = Driver::connect(options).await?;
    if let Some(found) = version(&driver, &schema.keyspace).await?
        && found > VERSION
    {
        let keyspace = schema.keyspace.clone();
        return Err(SchemaError::Newer { keyspace, found });
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
    migration::finish(&driver, &schema.keyspace, say).await
}

/// The version of the schema in a keyspace; `None` where none is noted, or nothing is there.
pub(super) async fn version(driver: &Driver, keyspace: &Keyspace) -> Result<Option<i32>, Fault> {
    if columns(driver, keyspace, "schema_version")
        .await?
        .is_empty()
    {
        return Ok(None);
    }
    let text = Ask::SchemaVersion.text(keyspace);
    let statement = driver.prepare(Use::Read, &text).await?;
    let rows = driver.execute(&statement, &[Value::text(PART)]).await?;
    let found = rows.into_iter().next().map(|mut row| row.int("version"));
    Ok(found.transpose().map_err(unreadable)?.flatten())
}

/// The columns that a table has; none where there is no table.
pub(super) async fn columns(
    driver: &Driver,
    keyspace: &Keyspace,
    table: &str,
) -> Result<Vec<String>, Fault> {
    let text = Ask::Columns.text(keyspace);
    let statement = driver.prepare(Use::Read, &text).await?;
    let values = [Value::text(keyspace.as_str()), Value::text(table)];
    let mut columns = Vec::new();
    for mut row in driver.execute(&statement, &values).await? {
        columns.extend(row.text("column_name").map_err(unreadable)?);
    }
    Ok(columns)
}

fn unreadable(error: StoreError) -> Fault {
    Fault::Refused(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replication_is_named_and_cannot_carry_cql() {
        let parsed = |text: &str| text.parse::<Replication>().map(|r| r.to_string());
        assert_eq!(
            parsed("dc1=3,eu-west=2").as_deref(),
            Ok("{'class': 'NetworkTopologyStrategy', 'dc1': 3, 'eu-west': 2}")
        );
        assert_eq!(
            parsed("simple=1").as_deref(),
            Ok("{'class': 'SimpleStrategy', 'replication_factor': 1}")
        );
        for bad in [
            "",
            "3",
            "dc1=0",
            "dc1=x",
            "a=1,a=2",
            "simple=1,a=1",
            "a'=1",
            "=1",
            "a=1,",
        ] {
            assert!(parsed(bad).is_err(), "{bad}");
        }
    }

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
