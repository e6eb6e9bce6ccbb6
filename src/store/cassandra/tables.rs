//! The options of the tables: those of new tables, and the deviations of existing ones.

use fermata_cassandra::{ColumnError, Driver, Fault, Keyspace, Use, Value};

use super::statements::{Cql, HAND_OVER_REQUEST_TABLE, REPLICA_TABLE};
use super::table_names::single_table;
use crate::lock::TableName;
use crate::store::{HAND_OVER_REQUEST_KEPT, StoreError};

/// How long Cassandra keeps what says that a row was deleted, for tables that transactions write, in seconds.
/// Its memory of transactions lives as long, and three hours at least.
const GC_GRACE_S: i32 = 10_800;

/// After so long without an answer of a node a coordinator asks another one as well. As shipped it is what 99 of 100
/// reads of the table take, which grows with each read that waits for a node that hangs.
///
/// More than a read across sites takes (80 ms as measured), so that it is not sent in vain, and less than the 300 ms after
/// which the driver asks another coordinator.
const SPECULATIVE_RETRY_MS: u32 = 100;

/// A kind of table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TableKind {
    Locks,
    Data,
    Cells,
    Sessions,
    Replicas,
    HandOverRequests,
}

/// An option of a table that is not as it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Difference {
    /// As the table has it.
    pub is: String,
    /// As it should be, as CQL.
    pub wanted: String,
    /// What comes of it.
    pub why: &'static str,
    /// Locks would not be safe with it.
    pub is_unsafe: bool,
}

/// The options that a table has; `None` for those that the cluster does not know.
#[derive(Clone, Debug, Default)]
pub(super) struct TableOptions {
    pub table: String,
    gc_grace_seconds: Option<i32>,
    default_time_to_live: Option<i32>,
    speculative_retry: Option<String>,
    read_repair: Option<String>,
}

impl TableKind {
    /// How long Cassandra keeps what says that something was deleted, where that matters.
    fn gc_grace_s(self) -> Option<u64> {
        match self {
            TableKind::Locks | TableKind::Cells | TableKind::Sessions => {
                Some(GC_GRACE_S.unsigned_abs().into())
            }
            // All in one partition: what is left of deleted rows is kept for hours and not for days.
            TableKind::Replicas => Some(GC_GRACE_S.unsigned_abs().into()),
            // What expires cannot come back, and what was deleted and comes back expires: no need to keep the traces.
            TableKind::HandOverRequests => Some(HAND_OVER_REQUEST_KEPT.as_secs()),
            TableKind::Data => None,
        }
    }

    /// What a table is made with, as CQL behind `WITH`.
    ///
    /// `read_repair` stays at BLOCKING, which is what Cassandra makes and ScyllaDB, which has no such option, does.
    pub fn options(self) -> String {
        let grace = self.gc_grace_s();
        let grace = grace.map(|seconds| format!("gc_grace_seconds = {seconds} AND "));
        format!("{}{}", grace.unwrap_or_default(), speculative_retry())
    }

    /// What is not as it should be.
    pub fn differences(self, found: &TableOptions) -> Vec<Difference> {
        let mut differences = Vec::new();
        let mut differs = |is: String, wanted: String, why, is_unsafe| {
            differences.push(Difference {
                is,
                wanted,
                why,
                is_unsafe,
            });
        };
        if let (TableKind::Locks | TableKind::Cells | TableKind::Sessions, Some(grace)) =
            (self, found.gc_grace_seconds)
            && grace < GC_GRACE_S
        {
            let wanted = format!("gc_grace_seconds = {GC_GRACE_S}");
            let why = "deleted rows may come back from the memory of transactions";
            differs(format!("gc_grace_seconds = {grace}"), wanted, why, true);
        }
        if let Some(ttl) = found.default_time_to_live.filter(|ttl| *ttl != 0) {
            let wanted = "default_time_to_live = 0".to_owned();
            let why = "rows of locks that are held would vanish";
            differs(format!("default_time_to_live = {ttl}"), wanted, why, true);
        }
        if let Some(repair) = found.read_repair.as_ref().filter(|r| *r != "BLOCKING") {
            let wanted = "read_repair = 'BLOCKING'".to_owned();
            let why = "a later read may miss a value that an earlier one returned";
            differs(format!("read_repair = '{repair}'"), wanted, why, true);
        }
        if let Some(retry) = found.speculative_retry.as_ref().filter(|r| !is_soon(r)) {
            let why = "while a node hangs, keys with a copy on it stand still";
            let is = format!("speculative_retry = '{retry}'");
            differs(is, speculative_retry(), why, false);
        }
        differences
    }
}

fn speculative_retry() -> String {
    format!("speculative_retry = '{SPECULATIVE_RETRY_MS}ms'")
}

/// Whether another node is asked after a fixed time, however long reads of the table took. (ScyllaDB shows `100.00ms`.)
fn is_soon(retry: &str) -> bool {
    let retry = retry.to_ascii_lowercase();
    retry == "always" || retry.ends_with("ms")
}

/// The tables that have options of ours, by their names: these, and those that there is one of.
pub(super) fn all(tables: &[TableName], cell_tables: &[TableName]) -> Vec<(String, TableKind)> {
    let mut all = vec![
        ("sessions".to_owned(), TableKind::Sessions),
        (REPLICA_TABLE.to_owned(), TableKind::Replicas),
        (
            HAND_OVER_REQUEST_TABLE.to_owned(),
            TableKind::HandOverRequests,
        ),
    ];
    for table in tables {
        all.push((format!("lock_{table}"), TableKind::Locks));
        all.push((format!("data_{table}"), TableKind::Data));
    }
    for table in cell_tables {
        all.push((format!("cells_{table}"), TableKind::Cells));
    }
    all
}

/// The tables that there are, with their options.
pub(super) async fn found(
    driver: &Driver,
    keyspace: &Keyspace,
) -> Result<Vec<TableOptions>, Fault> {
    let system = Keyspace::parse("system_schema").map_err(|e| Fault::Refused(e.to_string()))?;
    let known = columns(driver, &system, "tables").await?;
    let mut wanted = vec!["table_name"];
    let options = [
        "gc_grace_seconds",
        "default_time_to_live",
        "speculative_retry",
        "read_repair",
    ];
    let is_known = |option: &&str| known.iter().any(|name| name == option);
    wanted.extend(options.into_iter().filter(is_known));
    let text = format!(
        "SELECT {} FROM system_schema.tables WHERE keyspace_name = ?",
        wanted.join(", ")
    );
    let statement = driver.prepare(Use::Read, &text).await?;
    let values = [Value::text(keyspace.as_str())];
    let rows = driver.execute(&statement, &values).await?;
    let decoded = rows.into_iter().map(|mut row| {
        Ok(TableOptions {
            table: row.text("table_name")?.unwrap_or_default(),
            gc_grace_seconds: row.int("gc_grace_seconds")?,
            default_time_to_live: row.int("default_time_to_live")?,
            speculative_retry: row.text("speculative_retry")?,
            read_repair: row.text("read_repair")?,
        })
    });
    let decoded: Result<_, ColumnError> = decoded.collect();
    decoded.map_err(unreadable)
}

/// The columns that a table has; none where there is no table.
pub(super) async fn columns(
    driver: &Driver,
    keyspace: &Keyspace,
    table: &str,
) -> Result<Vec<String>, Fault> {
    let text = Cql::Columns.text(keyspace);
    let statement = driver.prepare(Use::Read, &text).await?;
    let values = [Value::text(keyspace.as_str()), Value::text(table)];
    let mut columns = Vec::new();
    for mut row in driver.execute(&statement, &values).await? {
        columns.extend(row.text("column_name").map_err(unreadable)?);
    }
    Ok(columns)
}

pub(super) fn unreadable(error: ColumnError) -> Fault {
    Fault::Refused(StoreError::from(error).to_string())
}

/// Sets the options of tables that were made with others.
pub(super) async fn set(
    driver: &Driver,
    keyspace: &Keyspace,
    all: Vec<(String, TableKind)>,
    say: &(dyn Fn(&str) + Sync),
) -> Result<(), Fault> {
    let found = found(driver, keyspace).await?;
    for (name, kind) in all {
        let Some(table) = found.iter().find(|one| one.table == name) else {
            continue;
        };
        let wanted: Vec<String> = kind
            .differences(table)
            .into_iter()
            .map(|difference| difference.wanted)
            .collect();
        if wanted.is_empty() {
            continue;
        }
        let (table, wanted) = (single_table(keyspace, &name), wanted.join(" AND "));
        say(&format!("{table}: {wanted}"));
        let text = format!("ALTER TABLE {table} WITH {wanted}");
        driver.change_schema(&text).await?;
        driver.agree_on_schema().await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn differ(
        kind: TableKind,
        grace: i32,
        retry: &str,
        repair: Option<&str>,
    ) -> Vec<(String, bool)> {
        let found = TableOptions {
            table: "t".to_owned(),
            gc_grace_seconds: Some(grace),
            default_time_to_live: Some(0),
            speculative_retry: Some(retry.to_owned()),
            read_repair: repair.map(str::to_owned),
        };
        let differences = kind.differences(&found).into_iter();
        differences.map(|d| (d.wanted, d.is_unsafe)).collect()
    }

    #[test]
    fn tables_as_they_are_made_are_good_on_both_kinds_of_clusters() {
        assert_eq!(
            differ(TableKind::Locks, 10_800, "100ms", Some("BLOCKING")),
            []
        );
        assert_eq!(differ(TableKind::Locks, 864_000, "100.00ms", None), []);
        assert_eq!(
            differ(TableKind::Data, 864_000, "ALWAYS", Some("BLOCKING")),
            []
        );
        assert_eq!(differ(TableKind::HandOverRequests, 20, "50ms", None), []);
    }

    #[test]
    fn what_makes_locks_unsafe_is_told_from_what_makes_them_slow() {
        let slow = ("speculative_retry = '100ms'".to_owned(), false);
        for retry in ["99p", "99PERCENTILE", "NONE", "99.0PERCENTILE"] {
            let found = differ(TableKind::Replicas, 864_000, retry, Some("BLOCKING"));
            assert_eq!(found, std::slice::from_ref(&slow), "{retry}");
        }
        let found = differ(TableKind::Sessions, 60, "100ms", Some("NONE"));
        let wanted = ["gc_grace_seconds = 10800", "read_repair = 'BLOCKING'"];
        assert_eq!(found, wanted.map(|wanted| (wanted.to_owned(), true)));
    }
}
