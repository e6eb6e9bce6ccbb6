//! The store on Apache Cassandra (and ScyllaDB, which speaks the same protocol).
//!
//! Each data table has a lock table, written by lightweight transactions only; the value of a key is written
//! plainly at QUORUM with the timestamps of its holder's fence. `statements` and `schema` hold all CQL of the
//! service, `baseline` that of what it is measured against; `driver` all there is of the driver; `codec` and
//! `change` turn states into rows, `rows` reads and swaps them. No rules of the lock live here.

pub mod baseline;
mod change;
mod codec;
mod digest;
mod driver;
mod fault;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
mod hand_over_requests;
pub mod health;
mod in_doubt;
mod migration;
mod options;
mod replicas;
mod replication;
mod rows;
mod scan;
pub mod schema;
mod sessions;
mod skip;
mod statements;
mod tables;
mod tls;
mod value;

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use async_trait::async_trait;

use self::driver::{Driver, NextPage, Statement};
use self::fault::{ConnectFault, Fault};
use self::health::Finding;
use self::in_doubt::InDoubtSwaps;
pub use self::options::{
    CassandraOptions, CassandraTls, ClientCertificate, Credentials, Keyspace, KeyspaceError,
    Majority,
};
use self::rows::{Asks, Rows};
use self::scan::Unreadable;
use self::schema::{Schema, SchemaError};
use self::statements::Ask;
use self::value::{Row, Value, present};
use super::{
    Cell, HandOverRequest, Listed, ReplicaRow, SessionRow, SessionSwap, Store, StoreCounts,
    StoreError, Swap, Written,
};
use crate::lock::{Key, KeyId, ReplicaId, SessionId, State, TableName};

/// Why the store could not be opened.
#[derive(Debug, Clone, thiserror::Error)]
pub enum OpenError {
    /// A file that the options name cannot be used.
    #[error("{0}")]
    Settings(String),
    /// A node was reached, but would not admit us, or is not one that is to be trusted.
    #[error("Cassandra refused: {0}")]
    Refused(String),
    /// No node could be reached. Repeat later.
    #[error("Cassandra cannot be reached: {0}")]
    Unreachable(String),
    /// The keyspace has no tables of ours.
    #[error("the keyspace {keyspace} has no tables of Fermata; make them: fermata schema apply")]
    NoSchema {
        /// The keyspace.
        keyspace: Keyspace,
    },
    /// The tables are those of an earlier version of this program.
    #[error(
        "the keyspace {keyspace} has schema version {found}, and this program needs {known}; migrate it: \
         fermata schema apply"
    )]
    OldSchema {
        /// The keyspace.
        keyspace: Keyspace,
        /// What is there.
        found: i32,
        /// What this program works with.
        known: i32,
    },
    /// The tables are those of another version of this program.
    #[error("the keyspace {keyspace} has schema version {found}; this program knows {known}")]
    OtherSchema {
        /// The keyspace.
        keyspace: Keyspace,
        /// What is there.
        found: i32,
        /// What this program works with.
        known: i32,
    },
}

impl From<ConnectFault> for OpenError {
    fn from(fault: ConnectFault) -> OpenError {
        match fault {
            ConnectFault::Settings(what) => OpenError::Settings(what),
            ConnectFault::Refused(what) => OpenError::Refused(what),
            ConnectFault::Unreachable(what) => OpenError::Unreachable(what),
        }
    }
}

/// A [`Store`] in a keyspace of a cluster, shared by any number of processes.
#[derive(Debug)]
pub struct CassandraStore {
    driver: Driver,
    keyspace: Keyspace,
    page_rows: u16,
    in_doubt: InDoubtSwaps,
    unreadable: Unreadable,
    statements: Mutex<HashMap<Ask, Statement>>,
}

impl CassandraStore {
    /// Connects, and sees that the schema is the one that this program works with.
    pub async fn open(options: CassandraOptions) -> Result<CassandraStore, OpenError> {
        let driver = Driver::connect_soon(&options).await?;
        let keyspace = options.keyspace.clone();
        let store = CassandraStore {
            driver,
            keyspace: options.keyspace,
            page_rows: options.page_rows,
            in_doubt: InDoubtSwaps::default(),
            unreadable: Unreadable::default(),
            statements: Mutex::new(HashMap::new()),
        };
        match schema::version(&store.driver, &keyspace).await {
            Ok(Some(schema::VERSION)) => Ok(store),
            Ok(Some(found)) => {
                let known = schema::VERSION;
                Err(match found < known {
                    true => OpenError::OldSchema {
                        keyspace,
                        found,
                        known,
                    },
                    false => OpenError::OtherSchema {
                        keyspace,
                        found,
                        known,
                    },
                })
            }
            Ok(None) => Err(OpenError::NoSchema { keyspace }),
            Err(Fault::Refused(what)) => Err(OpenError::Refused(what)),
            Err(Fault::NotStarted(what) | Fault::Unknown(what)) => {
                Err(OpenError::Unreachable(what))
            }
        }
    }

    /// Whether the cluster and the tables are as they must be, by the connection of this store; see
    /// [`health::check`].
    pub async fn check(
        &self,
        options: &CassandraOptions,
        schema: &Schema,
        apply: &str,
    ) -> Result<Vec<Finding>, SchemaError> {
        health::look(&self.driver, options, schema, apply).await
    }

    /// The prepared statement of what is asked.
    async fn statement(&self, ask: Ask) -> Result<Statement, Fault> {
        let known = {
            let statements = self.statements.lock();
            let statements = statements.unwrap_or_else(PoisonError::into_inner);
            statements.get(&ask).cloned()
        };
        if let Some(known) = known {
            return Ok(known);
        }
        let text = ask.text(&self.keyspace);
        let statement = self.driver.prepare(ask.usage(), &text).await?;
        let mut statements = self
            .statements
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        statements.insert(ask, statement.clone());
        Ok(statement)
    }

    /// Asks what has one page for an answer.
    async fn ask(&self, ask: Ask, values: &[Value]) -> Result<Vec<Row>, Fault> {
        let statement = self.statement(ask).await?;
        self.driver.execute(&statement, values).await
    }

    /// Asks for a lightweight transaction; whether its condition held.
    async fn ask_if(&self, ask: Ask, values: &[Value]) -> Result<bool, Fault> {
        rows::applied(self.ask(ask, values).await?)
    }

    /// The rows of a key.
    fn rows<'a>(&'a self, id: &'a KeyId) -> Rows<'a, CassandraStore> {
        Rows {
            asks: self,
            in_doubt: &self.in_doubt,
            page_rows: self.page_rows,
            id,
        }
    }
}

impl Asks for CassandraStore {
    type More = NextPage;

    async fn ask(&self, ask: Ask, values: &[Value]) -> Result<Vec<Row>, Fault> {
        CassandraStore::ask(self, ask, values).await
    }

    async fn page(
        &self,
        ask: Ask,
        values: &[Value],
        page_rows: i32,
        from: Option<NextPage>,
    ) -> Result<(Vec<Row>, Option<NextPage>), Fault> {
        let statement = self.statement(ask).await?;
        self.driver.page(&statement, values, page_rows, from).await
    }
}

/// Two days: ScyllaDB refuses timestamps from three days ahead of its clock on, and what is written further ahead than
/// this cannot be overwritten by anybody else for as long (I3).
const AHEAD_US_MAX: u64 = 2 * 24 * 3_600 * 1_000_000;

#[async_trait]
impl Store for CassandraStore {
    fn kind(&self) -> &'static str {
        "cassandra"
    }

    fn counts(&self) -> StoreCounts {
        self.driver.counts()
    }

    fn ready(&self) -> Result<(), StoreError> {
        match self.driver.is_connected() {
            true => Ok(()),
            false => Err(StoreError::Unavailable("no node is connected".to_owned())),
        }
    }

    fn is_exclusive(&self) -> bool {
        false
    }

    async fn load(&self, id: &KeyId) -> Result<Option<State>, StoreError> {
        self.rows(id).state().await
    }

    async fn load_settled(&self, id: &KeyId) -> Result<Option<State>, StoreError> {
        self.rows(id).settled().await
    }

    async fn compare_and_swap(&self, id: &KeyId, old: &State, new: &State) -> Swap {
        debug_assert_eq!(new.version, old.version + 1, "one version a change");
        debug_assert_eq!(new.check(), Ok(()), "what is written must read back");
        self.rows(id).swap(old, new).await
    }

    async fn read_data(&self, id: &KeyId) -> Result<Option<Cell>, StoreError> {
        let values = [Value::text(id.key.as_str())];
        let rows = self.ask(Ask::ReadData(id.table.clone()), &values).await?;
        let Some(mut row) = rows.into_iter().next() else {
            return Ok(None);
        };
        let value = row.blob("value")?;
        let deleted = row.boolean("deleted")?.unwrap_or(false);
        let Some(value) = value else {
            return Ok(None);
        };
        let timestamp = codec::number(present(row.bigint("written")?, "written")?)?;
        Ok(Some(Cell {
            value: (!deleted).then_some(value),
            timestamp,
        }))
    }

    async fn write_data(&self, id: &KeyId, cell: Cell) -> Written {
        let timestamp = match codec::bigint(cell.timestamp) {
            Ok(timestamp) => timestamp,
            Err(error) => return Written::NotStarted(error),
        };
        // A deleted value is a live marker: no purged tombstone can bring the old value back.
        let is_deleted = cell.value.is_none();
        let values = [
            Value::text(id.key.as_str()),
            Value::Blob(cell.value.unwrap_or_default()),
            Value::Boolean(is_deleted),
            Value::BigInt(timestamp),
        ];
        match self.ask(Ask::WriteData(id.table.clone()), &values).await {
            Ok(_) => Written::Done,
            Err(fault) if fault.is_unknown() => Written::Unknown(fault.into()),
            Err(fault) => Written::NotStarted(fault.into()),
        }
    }

    async fn list_live(
        &self,
        table: &TableName,
        after: Option<&Key>,
        limit: usize,
    ) -> Result<Vec<Listed>, StoreError> {
        self.live(table, after, limit).await
    }

    async fn each_live(
        &self,
        table: &TableName,
        look: &(dyn Fn(Listed) + Sync),
    ) -> Result<(), StoreError> {
        self.all_live(table, look).await
    }

    async fn each_session(&self, look: &(dyn Fn(SessionRow) + Sync)) -> Result<(), StoreError> {
        self.all_sessions(look).await
    }

    async fn load_session(&self, id: SessionId) -> Result<Option<SessionRow>, StoreError> {
        self.session(id).await
    }

    async fn swap_session(&self, expected: u32, row: &SessionRow) -> SessionSwap {
        match self.change_session(expected, row).await {
            Ok(true) => SessionSwap::Applied,
            Ok(false) => match self.session(row.id).await {
                Ok(session) => SessionSwap::Conflict(session),
                Err(error) => SessionSwap::NotStarted(error),
            },
            Err(fault) if fault.is_unknown() => SessionSwap::Unknown(fault.into()),
            Err(fault) => SessionSwap::NotStarted(fault.into()),
        }
    }

    async fn forget_session(&self, id: SessionId) -> Result<(), StoreError> {
        let values = [Value::Uuid(id.0), Value::Boolean(false)];
        self.ask_if(Ask::ForgetSession, &values).await?;
        Ok(())
    }

    async fn list_sessions(
        &self,
        after: Option<SessionId>,
        limit: usize,
    ) -> Result<Vec<SessionRow>, StoreError> {
        self.sessions(after, limit).await
    }

    async fn announce_replica(&self, row: &ReplicaRow) -> Result<(), StoreError> {
        self.announce(row).await
    }

    async fn list_replicas(&self) -> Result<Vec<ReplicaRow>, StoreError> {
        self.replicas().await
    }

    async fn heartbeat(
        &self,
        id: ReplicaId,
        heartbeat: u64,
        stopped: bool,
    ) -> Result<(), StoreError> {
        self.write_heartbeat(id, heartbeat, stopped).await
    }

    async fn forget_replica(&self, id: ReplicaId) -> Result<(), StoreError> {
        self.delete_replica(id).await
    }

    async fn request_hand_over(&self, request: &HandOverRequest) -> Result<(), StoreError> {
        self.put_hand_over_request(request).await
    }

    async fn hand_over_requests(
        &self,
        home: ReplicaId,
    ) -> Result<Vec<HandOverRequest>, StoreError> {
        self.open_hand_over_requests(home).await
    }

    async fn agree_to_hand_over(&self, request: &HandOverRequest) -> Result<(), StoreError> {
        self.write_hand_over(request, true).await
    }

    async fn decline_hand_over(&self, request: &HandOverRequest) -> Result<(), StoreError> {
        self.write_hand_over(request, false).await
    }

    async fn hand_over_agreed(
        &self,
        request: &HandOverRequest,
    ) -> Result<Option<bool>, StoreError> {
        self.read_hand_over(request).await
    }

    fn ahead_us_max(&self) -> Option<u64> {
        Some(AHEAD_US_MAX)
    }

    async fn clock_us(&self) -> Result<Option<u64>, StoreError> {
        self.clock().await.map(Some)
    }
}
