//! Bringing the tables of an earlier version up to date, and noting which version they have.
//!
//! Versions are steps forward only. Each step can be repeated and be taken by two at once: it looks at what
//! is missing, and whoever comes second finds nothing to do. The version is noted last.

use super::driver::{Driver, Use};
use super::fault::Fault;
use super::options::Keyspace;
use super::schema::{PART, Schema, SchemaError, VERSION, columns, version};
use super::statements::{Ask, single_table};
use super::value::Value;

/// The columns that came with version 2, in the table of sessions.
const SESSIONS_2: [(&str, &str); 1] = [("disconnect_grace", "int")];
/// And in the tables of locks.
const LOCKS_2: [(&str, &str); 1] = [("digest", "bigint static")];
/// The table in which replicas were listed before version 3. One that runs and writes heartbeats there ends itself
/// without it.
const REPLICAS_UNTIL_2: &str = "replicas";
/// How often the note of the version is tried, while others write theirs.
const TRIES_MAX: usize = 8;

/// Adds what tables of earlier versions lack, once all tables are there, and notes the version.
pub(super) async fn finish(
    driver: &Driver,
    schema: &Schema,
    say: &(dyn Fn(&str) + Sync),
) -> Result<(), SchemaError> {
    let keyspace = &schema.keyspace;
    for _ in 0..TRIES_MAX {
        let found = version(driver, keyspace).await?;
        match found {
            // Columns join within a version until it is released.
            Some(VERSION) => {
                return add_columns_2(driver, schema, say).await;
            }
            Some(found) if found > VERSION => {
                let keyspace = keyspace.clone();
                return Err(SchemaError::Newer { keyspace, found });
            }
            // Where none is noted, the tables may be those that an earlier program began to make.
            Some(_) | None => {}
        }
        add_columns_2(driver, schema, say).await?;
        drop_table(driver, keyspace, REPLICAS_UNTIL_2, say).await?;
        note(driver, keyspace, found).await?;
    }
    Err(SchemaError::Unreachable(format!(
        "the version was changed by others during each of {TRIES_MAX} tries"
    )))
}

/// Drops a table that no version needs any more, if it is there.
async fn drop_table(
    driver: &Driver,
    keyspace: &Keyspace,
    table: &str,
    say: &(dyn Fn(&str) + Sync),
) -> Result<(), SchemaError> {
    if columns(driver, keyspace, table).await?.is_empty() {
        return Ok(());
    }
    let table = single_table(keyspace, table);
    say(&format!("{table}: dropped"));
    driver
        .change_schema(&format!("DROP TABLE IF EXISTS {table}"))
        .await?;
    Ok(driver.agree_on_schema().await?)
}

/// Adds what tables of earlier versions, or of the first days of this one, lack.
async fn add_columns_2(
    driver: &Driver,
    schema: &Schema,
    say: &(dyn Fn(&str) + Sync),
) -> Result<(), SchemaError> {
    let keyspace = &schema.keyspace;
    for table in &schema.tables {
        let table = format!("lock_{table}");
        add_columns(driver, keyspace, &table, &LOCKS_2, say).await?;
    }
    add_columns(driver, keyspace, "sessions", &SESSIONS_2, say).await
}

/// Adds those columns of a table that it does not have, and waits until all nodes know them.
async fn add_columns(
    driver: &Driver,
    keyspace: &Keyspace,
    table: &str,
    wanted: &[(&str, &str)],
    say: &(dyn Fn(&str) + Sync),
) -> Result<(), SchemaError> {
    let lacking = lacking(driver, keyspace, table, wanted).await?;
    if lacking.is_empty() {
        return Ok(());
    }
    let table_name = single_table(keyspace, table);
    say(&format!("{table_name}: {}", lacking.join(", ")));
    let text = format!("ALTER TABLE {table_name} ADD ({})", lacking.join(", "));
    let added = driver.change_schema(&text).await;
    driver.agree_on_schema().await?;
    match added {
        Ok(()) => Ok(()),
        // Refused, as it is if another one was faster: what counts is whether they are there.
        Err(refused) => match self::lacking(driver, keyspace, table, wanted).await? {
            none if none.is_empty() => Ok(()),
            _ => Err(refused.into()),
        },
    }
}

/// `"name" type` of those columns that the table does not have.
async fn lacking(
    driver: &Driver,
    keyspace: &Keyspace,
    table: &str,
    wanted: &[(&str, &str)],
) -> Result<Vec<String>, Fault> {
    let there = columns(driver, keyspace, table).await?;
    Ok(wanted
        .iter()
        .filter(|(name, _)| !there.iter().any(|other| other == name))
        .map(|(name, kind)| format!("\"{name}\" {kind}"))
        .collect())
}

/// Notes the version, if the one that was found is still the one that is noted.
async fn note(driver: &Driver, keyspace: &Keyspace, found: Option<i32>) -> Result<(), Fault> {
    let (ask, values) = match found {
        None => (
            Ask::NoteSchemaVersion,
            vec![Value::text(PART), Value::Int(VERSION)],
        ),
        Some(found) => (
            Ask::RaiseSchemaVersion,
            vec![Value::Int(VERSION), Value::text(PART), Value::Int(found)],
        ),
    };
    let statement = driver.prepare(Use::Cas, &ask.text(keyspace)).await?;
    driver.execute(&statement, &values).await.map(drop)
}
