//! Every statement of the service: its CQL is written here and in `schema`, nowhere else.
//!
//! Names come from types that cannot carry CQL, and are quoted; values are always bound. Each change of a key is conditional
//! on the version that it follows (I1).

use fermata_cassandra::{Keyspace, Order, Use};

use super::cell_statements::{CellCql, CellTable};
use super::table_names::{data_table, lock_table, single_table};
use crate::lock::TableName;
use crate::store::HAND_OVER_REQUEST_KEPT;

/// Columns of a row of a lock table, in the order in which they are bound.
pub(super) const ROW_COLUMNS: [&str; 10] = [
    "seq",
    "mode",
    "tag",
    "session",
    "ttl",
    "identity",
    "owner",
    "created_at",
    "ended",
    "skip",
];

/// Columns that all rows of a key share, in the order in which they are bound.
pub(super) const SHARED_COLUMNS: [&str; 16] = [
    "format",
    "version",
    "home",
    "term",
    "next",
    "head",
    "grant",
    "fence",
    "width",
    "unsynced",
    "seq_end",
    "fence_end",
    "volatile_end",
    "kept",
    "first_left",
    "digest",
];

/// The columns of a session, its id last.
pub(super) const SESSION_COLUMNS: [&str; 9] = [
    "ttl",
    "disconnect_grace",
    "replica",
    "epoch",
    "open",
    "identity",
    "owner",
    "created_at",
    "id",
];

/// What is read of a replica: its id, what it is announced with, and its latest heartbeat.
pub(super) const REPLICA_COLUMNS: [&str; 10] = [
    "id",
    "name",
    "zone",
    "address",
    "peer_address",
    "version",
    "started_at",
    "ttl",
    "state",
    "heartbeat",
];

/// The table of the replicas.
pub(super) const REPLICA_TABLE: &str = "membership";

/// The table of the hand-over requests.
pub(super) const HAND_OVER_REQUEST_TABLE: &str = "hand_over_requests";

/// The columns of a hand-over request, in the order in which they are bound: who is asked, and what. All are its key.
pub(super) const HAND_OVER_REQUEST_COLUMNS: [&str; 5] = ["home", "table_name", "key", "term", "to"];

/// The size of a conditional batch. Only powers of two (and 0), so that few statements are prepared; what is
/// left is filled with repetitions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    /// The key is new.
    pub new: bool,
    /// Rows written.
    pub rows: usize,
    /// Ranges deleted.
    pub ranges: usize,
}

impl Shape {
    /// The smallest that holds this much.
    pub(super) fn holding(new: bool, rows: usize, ranges: usize) -> Shape {
        let size = |wanted: usize| match wanted {
            0 => 0,
            some => some.next_power_of_two(),
        };
        Shape {
            new,
            rows: size(rows),
            ranges: size(ranges),
        }
    }

    /// Those of nearly all changes: a new key, with its first entry or without, and up to four rows of another one.
    pub(super) fn usual() -> impl Iterator<Item = Shape> {
        let new = [2, 4].map(|rows| Shape::holding(true, rows, 0));
        let others =
            [0, 1, 2, 4].map(|rows| [0, 1].map(|ranges| Shape::holding(false, rows, ranges)));
        new.into_iter().chain(others.into_iter().flatten())
    }
}

/// What is asked of the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Cql {
    /// Compare-and-swap of a state, and which of them are sent first where not all can be at once.
    Swap(TableName, Shape, Order),
    /// The row at seq 0 of a key, and what its rows share, as a majority has it.
    First(TableName),
    /// The same, after what is in flight was settled.
    FirstSettled(TableName),
    /// The rows of a key from a seq on, the newest first.
    EntryRows(TableName),
    /// Of every key in a range of tokens: what its rows share.
    Keys(TableName),
    /// The value of a key.
    ReadData(TableName),
    /// Write of a value with its timestamp.
    WriteData(TableName),
    /// Cells of a table.
    Cells(CellTable, CellCql),
    /// The row of a session, after what is in flight was settled.
    LoadSession,
    /// The row of a new session.
    OpenSession,
    /// Compare-and-swap of the row of a session.
    SwapSession,
    /// Delete the row of a session that is closed.
    ForgetSession,
    /// Every session in a range of tokens.
    Sessions,
    /// The row of a new replica, but for its heartbeats; where there is none with a state.
    Announce,
    /// Write of a heartbeat, with its number for a timestamp.
    Heartbeat,
    /// Compare-and-swap of the state of a replica.
    SwapState,
    /// Delete the row of a replica that is not up.
    ForgetReplica,
    /// Delete what heartbeats left of a row that has no state.
    ForgetHalfReplica,
    /// The rows of all replicas.
    Replicas,
    /// The consistency of all replicas, unless it is written already.
    AgreeOnMajority,
    /// The consistency of all replicas.
    Majority,
    /// Write of a hand-over request.
    RequestHandOver,
    /// The hand-over requests to a replica.
    HandOverRequests,
    /// Delete a hand-over request.
    ForgetHandOverRequest,
    /// The time by the clock of the node that answers.
    Clock,
    /// The version of the schema.
    SchemaVersion,
    /// The names of a table's columns.
    Columns,
    /// Below what no fence is; of a keyspace that was restored.
    FenceFloor,
    /// The same, written with itself for a timestamp: the highest one stays.
    RaiseFenceFloor,
    /// The same, written.
    NoteSchemaVersion,
}

fn quoted(columns: &[&str]) -> String {
    let quoted: Vec<_> = columns.iter().map(|c| format!("\"{c}\"")).collect();
    quoted.join(", ")
}

fn assigned(columns: &[&str]) -> String {
    let assigned: Vec<_> = columns.iter().map(|c| format!("\"{c}\" = ?")).collect();
    assigned.join(", ")
}

fn marks(count: usize) -> String {
    vec!["?"; count].join(", ")
}

impl Cql {
    /// All that a replica asks for and that is about no table of locks.
    pub(super) const SHARED: [Cql; 15] = [
        Cql::LoadSession,
        Cql::OpenSession,
        Cql::SwapSession,
        Cql::ForgetSession,
        Cql::Sessions,
        Cql::Announce,
        Cql::Heartbeat,
        Cql::SwapState,
        Cql::ForgetReplica,
        Cql::ForgetHalfReplica,
        Cql::Replicas,
        Cql::RequestHandOver,
        Cql::HandOverRequests,
        Cql::ForgetHandOverRequest,
        Cql::Clock,
    ];

    /// All that is about a table of locks, but for its changes.
    pub(super) fn of_table(table: &TableName) -> [Cql; 6] {
        let table = || table.clone();
        [
            Cql::First(table()),
            Cql::FirstSettled(table()),
            Cql::EntryRows(table()),
            Cql::Keys(table()),
            Cql::ReadData(table()),
            Cql::WriteData(table()),
        ]
    }

    /// What is prepared of it: the order changes nothing of that.
    pub(super) fn prepared(self) -> Cql {
        match self {
            Cql::Swap(table, shape, _) => Cql::Swap(table, shape, Order::First),
            other => other,
        }
    }

    /// How it is executed.
    pub(super) fn usage(&self) -> Use {
        match self {
            Cql::Swap(_, _, order) => Use::HedgedCas(*order),
            Cql::Cells(table, ask) => ask.usage(table),
            Cql::OpenSession
            | Cql::SwapSession
            | Cql::ForgetSession
            | Cql::Announce
            | Cql::SwapState
            | Cql::ForgetReplica
            | Cql::ForgetHalfReplica
            | Cql::NoteSchemaVersion => Use::Cas,
            Cql::AgreeOnMajority => Use::CasEverywhere,
            Cql::Majority => Use::ReadEverywhere,
            Cql::FirstSettled(_) => Use::SettlingRead,
            Cql::LoadSession => Use::SerialRead,
            Cql::First(_)
            | Cql::EntryRows(_)
            | Cql::Keys(_)
            | Cql::ReadData(_)
            | Cql::Sessions
            | Cql::Replicas
            | Cql::HandOverRequests
            | Cql::Clock
            | Cql::Columns
            | Cql::FenceFloor
            | Cql::SchemaVersion => Use::Read,
            Cql::WriteData(_)
            | Cql::Heartbeat
            | Cql::RaiseFenceFloor
            | Cql::RequestHandOver
            | Cql::ForgetHandOverRequest => Use::Write,
        }
    }

    /// Its name in traces.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Cql::Swap(..) => "swap key",
            Cql::First(_) => "read key",
            Cql::FirstSettled(_) => "read key, settled",
            Cql::EntryRows(_) => "read entries",
            Cql::Keys(_) => "scan keys",
            Cql::ReadData(_) => "read value",
            Cql::WriteData(_) => "write value",
            Cql::Cells(..) => "cells",
            Cql::LoadSession => "read session",
            Cql::OpenSession | Cql::SwapSession | Cql::ForgetSession => "swap session",
            Cql::Sessions => "scan sessions",
            Cql::RequestHandOver | Cql::HandOverRequests | Cql::ForgetHandOverRequest => {
                "hand-over"
            }
            Cql::Announce
            | Cql::Heartbeat
            | Cql::SwapState
            | Cql::ForgetReplica
            | Cql::ForgetHalfReplica
            | Cql::Replicas
            | Cql::AgreeOnMajority
            | Cql::Majority
            | Cql::Clock => "replicas",
            Cql::SchemaVersion
            | Cql::Columns
            | Cql::FenceFloor
            | Cql::RaiseFenceFloor
            | Cql::NoteSchemaVersion => "schema",
        }
    }

    /// Whether it is about what replicas share: each other, hand-over requests, a clock.
    pub(super) fn is_of_cluster(&self) -> bool {
        matches!(
            self,
            Cql::Announce
                | Cql::Heartbeat
                | Cql::SwapState
                | Cql::ForgetReplica
                | Cql::ForgetHalfReplica
                | Cql::Replicas
                | Cql::AgreeOnMajority
                | Cql::Majority
                | Cql::RequestHandOver
                | Cql::HandOverRequests
                | Cql::ForgetHandOverRequest
                | Cql::Clock
        )
    }

    /// Its text.
    pub fn text(&self, keyspace: &Keyspace) -> String {
        let sessions = single_table(keyspace, "sessions");
        let replicas = single_table(keyspace, REPLICA_TABLE);
        let hand_over_requests = single_table(keyspace, HAND_OVER_REQUEST_TABLE);
        let versions = single_table(keyspace, "schema_version");
        let shared = quoted(&SHARED_COLUMNS);
        match self {
            Cql::Swap(table, shape, _) => swap(&lock_table(keyspace, table), *shape),
            Cql::First(table) | Cql::FirstSettled(table) => format!(
                "SELECT {shared}, \"ended\", \"skip\" FROM {} WHERE \"key\" = ? AND \"seq\" = ?",
                lock_table(keyspace, table)
            ),
            Cql::EntryRows(table) => format!(
                "SELECT \"version\", {} FROM {} WHERE \"key\" = ? AND \"seq\" >= ? ORDER BY \"seq\" DESC",
                quoted(&ROW_COLUMNS[..8]),
                lock_table(keyspace, table)
            ),
            Cql::Keys(table) => format!(
                "SELECT DISTINCT \"key\", \"head\", \"next\", \"home\" FROM {} \
                 WHERE token(\"key\") > ? AND token(\"key\") <= ?",
                lock_table(keyspace, table)
            ),
            Cql::ReadData(table) => format!(
                "SELECT \"value\", \"deleted\", WRITETIME(\"value\") AS \"written\" FROM {} WHERE \"key\" = ?",
                data_table(keyspace, table)
            ),
            Cql::WriteData(table) => format!(
                "INSERT INTO {} (\"key\", \"value\", \"deleted\") VALUES (?, ?, ?) USING TIMESTAMP ?",
                data_table(keyspace, table)
            ),
            Cql::Cells(table, ask) => ask.text(keyspace, table),
            Cql::LoadSession => format!(
                "SELECT {} FROM {sessions} WHERE \"id\" = ?",
                quoted(&SESSION_COLUMNS)
            ),
            Cql::OpenSession => format!(
                "INSERT INTO {sessions} ({}) VALUES ({}) IF NOT EXISTS",
                quoted(&SESSION_COLUMNS),
                marks(SESSION_COLUMNS.len())
            ),
            Cql::SwapSession => format!(
                "UPDATE {sessions} SET {} WHERE \"id\" = ? IF \"epoch\" = ?",
                assigned(&SESSION_COLUMNS[..8])
            ),
            Cql::ForgetSession => {
                format!("DELETE FROM {sessions} WHERE \"id\" = ? IF \"open\" = ?")
            }
            Cql::Sessions => format!(
                "SELECT {} FROM {sessions} WHERE token(\"id\") > ? AND token(\"id\") <= ?",
                quoted(&SESSION_COLUMNS)
            ),
            // A cell is written by transactions or plainly, never by both: their timestamps have nothing to do with each
            // other. By transactions all of a row but `heartbeat`, whose timestamp is its number, so that no clock orders
            // heartbeats. A deletion, by a transaction, is above all of them.
            Cql::Announce => format!(
                "UPDATE {replicas} SET {} WHERE \"part\" = ? AND \"id\" = ? IF \"state\" = null",
                // In the order in which they are bound: all but the id and the heartbeat.
                assigned(&REPLICA_COLUMNS[1..9])
            ),
            Cql::Heartbeat => format!(
                "UPDATE {replicas} USING TIMESTAMP ? SET \"heartbeat\" = ? WHERE \"part\" = ? AND \"id\" = ?"
            ),
            Cql::SwapState => format!(
                "UPDATE {replicas} SET \"state\" = ? WHERE \"part\" = ? AND \"id\" = ? IF \"state\" = ?"
            ),
            Cql::ForgetReplica => {
                format!("DELETE FROM {replicas} WHERE \"part\" = ? AND \"id\" = ? IF \"state\" < ?")
            }
            Cql::ForgetHalfReplica => format!(
                "DELETE FROM {replicas} WHERE \"part\" = ? AND \"id\" = ? IF \"state\" = null"
            ),
            Cql::Replicas => format!(
                "SELECT {} FROM {replicas} WHERE \"part\" = ?",
                quoted(&REPLICA_COLUMNS)
            ),
            Cql::AgreeOnMajority => format!(
                "INSERT INTO {replicas} (\"part\", \"id\", \"name\", \"zone\") VALUES (?, ?, ?, ?) IF NOT EXISTS"
            ),
            Cql::Majority => format!(
                "SELECT \"name\", \"zone\" FROM {replicas} WHERE \"part\" = ? AND \"id\" = ?"
            ),
            Cql::RequestHandOver => format!(
                "INSERT INTO {hand_over_requests} ({}) VALUES ({}) USING TTL {}",
                quoted(&HAND_OVER_REQUEST_COLUMNS),
                marks(HAND_OVER_REQUEST_COLUMNS.len()),
                HAND_OVER_REQUEST_KEPT.as_secs()
            ),
            Cql::HandOverRequests => format!(
                "SELECT {} FROM {hand_over_requests} WHERE \"home\" = ?",
                quoted(&HAND_OVER_REQUEST_COLUMNS[1..])
            ),
            Cql::ForgetHandOverRequest => format!(
                "DELETE FROM {hand_over_requests} WHERE {}",
                HAND_OVER_REQUEST_COLUMNS
                    .map(|c| format!("\"{c}\" = ?"))
                    .join(" AND ")
            ),
            Cql::Clock => "SELECT now() AS \"now\" FROM system.local".to_owned(),
            Cql::SchemaVersion => format!("SELECT \"version\" FROM {versions} WHERE \"part\" = ?"),
            Cql::Columns => "SELECT column_name FROM system_schema.columns \
                             WHERE keyspace_name = ? AND table_name = ?"
                .to_owned(),
            Cql::FenceFloor => {
                format!("SELECT \"fence_floor\" FROM {versions} WHERE \"part\" = ?")
            }
            Cql::RaiseFenceFloor => format!(
                "INSERT INTO {versions} (\"part\", \"fence_floor\") VALUES (?, ?) USING TIMESTAMP ?"
            ),
            Cql::NoteSchemaVersion => format!(
                "INSERT INTO {versions} (\"part\", \"version\") VALUES (?, ?) IF NOT EXISTS"
            ),
        }
    }
}

/// One statement for the whole batch, so that it goes to a node that has the key.
fn swap(table: &str, shape: Shape) -> String {
    let condition = match shape.new {
        true => "null",
        false => "?",
    };
    let mut text = format!(
        "BEGIN BATCH UPDATE {table} SET {} WHERE \"key\" = ? IF \"version\" = {condition};",
        assigned(&SHARED_COLUMNS)
    );
    for _ in 0..shape.rows {
        text.push_str(&format!(
            " INSERT INTO {table} (\"key\", {}) VALUES ({});",
            quoted(&ROW_COLUMNS),
            marks(1 + ROW_COLUMNS.len())
        ));
    }
    for _ in 0..shape.ranges {
        text.push_str(&format!(
            " DELETE FROM {table} WHERE \"key\" = ? AND \"seq\" > ? AND \"seq\" < ?;"
        ));
    }
    text.push_str(" APPLY BATCH");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_has_a_mark_for_every_value_and_no_value() {
        for (new, rows, ranges) in [(true, 3, 0), (false, 0, 1), (false, 256, 2)] {
            let shape = Shape::holding(new, rows, ranges);
            let table = TableName::default_table();
            let keyspace = Keyspace::parse("k").unwrap();
            let text = Cql::Swap(table, shape, Order::First).text(&keyspace);
            let values = SHARED_COLUMNS.len() + 1 + usize::from(!new);
            let rows = shape.rows * (1 + ROW_COLUMNS.len());
            let marks = text.matches('?').count();
            assert_eq!(marks, values + rows + shape.ranges * 3, "{text}");
            assert!(!text.contains('\''), "{text}");
        }
    }

    #[test]
    fn what_carries_its_own_timestamp_says_so() {
        let keyspace = Keyspace::parse("k").unwrap();
        let data = Cql::WriteData(TableName::default_table());
        for ask in [data, Cql::Heartbeat] {
            assert_eq!(ask.usage(), Use::Write);
            let text = ask.text(&keyspace);
            assert!(text.contains(" USING TIMESTAMP ?"), "{text}");
        }
    }

    #[test]
    fn a_hand_over_request_expires() {
        let text = Cql::RequestHandOver.text(&Keyspace::parse("k").unwrap());
        assert!(text.ends_with(" USING TTL 20"), "{text}");
    }

    /// Else the clock of a coordinator would decide which of the two stands.
    #[test]
    fn the_state_of_a_replica_is_written_by_transactions_only_and_its_heartbeat_plainly_only() {
        let keyspace = Keyspace::parse("k").unwrap();
        let transactions = [
            Cql::Announce,
            Cql::SwapState,
            Cql::ForgetReplica,
            Cql::ForgetHalfReplica,
        ];
        for ask in transactions {
            assert_eq!(ask.usage(), Use::Cas);
            let text = ask.text(&keyspace);
            assert!(text.contains(" IF \"state\" "), "{text}");
            assert!(!text.contains("TIMESTAMP"), "{text}");
            assert!(!text.contains("heartbeat"), "{text}");
        }
        let heartbeat = Cql::Heartbeat.text(&keyspace);
        assert!(!heartbeat.contains("state"), "{heartbeat}");
    }

    #[test]
    fn what_a_grant_rests_on_is_read_from_a_majority_and_in_doubt_serially() {
        let table = TableName::default_table;
        for ask in [Cql::First(table()), Cql::EntryRows(table())] {
            assert_eq!(ask.usage(), Use::Read);
        }
        // Sessions do not wait behind keys in doubt.
        assert_eq!(Cql::FirstSettled(table()).usage(), Use::SettlingRead);
        assert_eq!(Cql::LoadSession.usage(), Use::SerialRead);
    }

    #[test]
    fn shapes_are_few() {
        let shapes: std::collections::HashSet<_> = (0..=256)
            .map(|rows| Shape::holding(false, rows, 0))
            .collect();
        assert_eq!(shapes.len(), 10);
    }
}
