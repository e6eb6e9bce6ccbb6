//! The store on Apache Cassandra (and ScyllaDB, which speaks the same protocol).
//!
//! Each data table has a lock table, written by lightweight transactions only; the value of a key is written
//! without a transaction, at QUORUM, with timestamps from the holder's fence. `statements` and `schema` hold all CQL; the driver is in
//! [`fermata_cassandra`]; `codec` and `change` turn states into rows, `rows` reads and swaps them. `keys`, `data`,
//! `sessions` and `shared` implement [`Store`]. No rules of the lock live here.

mod cell_statements;
mod cells;
mod change;
mod codec;
mod data;
mod digest;
mod error;
mod hand_over_requests;
pub mod health;
mod in_doubt;
mod keys;
mod majority;
mod protocols;
mod replicas;
mod replication;
mod restored;
mod row_table;
mod rows;
mod scan;
pub mod schema;
mod sessions;
mod shared;
mod skip;
mod statements;
mod table_names;
mod tables;
#[cfg(any(test, fuzzing))]
pub(crate) mod tests;

/// How states become statements, and what the answers mean: for tests in which modelled nodes answer.
#[doc(hidden)]
pub mod modelled {
    pub use super::change::Change;
    pub use super::in_doubt::InDoubtSwaps;
    pub use super::rows::{Asks, Rows};
    pub use super::statements::Cql;
}

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use fermata_cassandra::{
    ColumnError, Driver, Fault, NextPage, Observer, Order, Row, Statement, StatementKind, Value,
};
use futures_util::StreamExt as _;
use parking_lot::Mutex;
use tracing::field::Empty;
use tracing::{Instrument as _, Span};

pub use error::CassandraError;
pub use fermata_cassandra::{
    CassandraOptions, CassandraTls, ClientCertificate, Credentials, DriverKind, Keyspace,
    KeyspaceError, Majority, Quorum, RowTable,
};
pub use restored::{RestoredError, restored};
pub use row_table::RowTables;

use self::health::Finding;
use self::in_doubt::InDoubtSwaps;
use self::rows::{Asks, Rows};
use self::schema::Schema;
use self::statements::{Cql, Shape};
use super::metrics::{DataOf, Failure, Operation, StoreMetrics};
use super::{CellStore, Store, StoreCounts, StoreError, StoreHealth, Swap};
use crate::lock::{KeyId, TableName};
use crate::log_throttle::LogThrottle;
use crate::trace::{self, TARGET};

impl From<Fault> for StoreError {
    fn from(fault: Fault) -> StoreError {
        StoreError::Unavailable(fault.to_string())
    }
}

impl From<ColumnError> for StoreError {
    fn from(error: ColumnError) -> StoreError {
        StoreError::Damaged(error.to_string())
    }
}

impl<T> From<Fault> for Swap<T> {
    fn from(fault: Fault) -> Swap<T> {
        match fault.is_unknown() {
            true => Swap::Unknown(fault.into()),
            false => Swap::NotStarted(fault.into()),
        }
    }
}

/// A [`Store`] in a keyspace of a cluster, shared by any number of processes.
#[derive(Debug)]
pub struct CassandraStore {
    driver: Driver,
    /// What replicas share has connections of its own: no heartbeat waits behind values (H2).
    cluster: Driver,
    metrics: StoreMetrics,
    keyspace: Keyspace,
    majority: Majority,
    datacenter: Option<String>,
    page_rows: u16,
    in_doubt: InDoubtSwaps,
    unreadable: LogThrottle,
    statements: Mutex<HashMap<Cql, Statement>>,
    /// The tables of users.
    row_tables: RowTables,
}

/// How long a request about what replicas share may take at a node.
const CLUSTER_REQUEST_TIMEOUT: Duration = Duration::from_millis(1_500);
/// How many statements are prepared, and keys of a page loaded, at once: few beside the transactions of clients.
const AT_ONCE: usize = 16;

impl CassandraStore {
    /// Connects, and sees that the schema is the one that this program works with.
    pub async fn open(options: CassandraOptions) -> Result<CassandraStore, CassandraError> {
        CassandraStore::open_counted(options, StoreMetrics::default()).await
    }

    /// The same, with its statements counted there.
    pub async fn open_counted(
        options: CassandraOptions,
        metrics: StoreMetrics,
    ) -> Result<CassandraStore, CassandraError> {
        let few = CassandraOptions {
            connections_per_node: NonZeroUsize::MIN,
            // What replicas share is little, and waits for nothing.
            transactions_max: NonZeroUsize::MAX,
            // Replicas give up sooner than others: only what timed out before that tells which node hangs.
            request_timeout: options.request_timeout.min(CLUSTER_REQUEST_TIMEOUT),
            ..options.clone()
        };
        let (driver, cluster) =
            tokio::try_join!(Driver::connect_soon(&options), Driver::connect_soon(&few))?;
        let keyspace = options.keyspace.clone();
        let counted = |data| {
            Arc::new(CountedStatements {
                data,
                metrics: metrics.clone(),
            })
        };
        let store = CassandraStore {
            driver: driver.observed_by(counted(DataOf::Locks)),
            cluster: cluster.observed_by(counted(DataOf::Replicas)),
            metrics,
            keyspace: options.keyspace,
            majority: options.majority,
            datacenter: options.datacenter,
            page_rows: options.page_rows,
            in_doubt: InDoubtSwaps::default(),
            unreadable: LogThrottle::default(),
            statements: Mutex::new(HashMap::new()),
            row_tables: RowTables::new(),
        };
        match schema::version(&store.driver, &keyspace).await {
            Ok(Some(schema::VERSION)) => Ok(store),
            Ok(Some(found)) => Err(CassandraError::OtherSchema {
                keyspace,
                found,
                known: schema::VERSION,
            }),
            Ok(None) => Err(CassandraError::NoSchema { keyspace }),
            Err(fault) => Err(fault.into()),
        }
    }

    /// With the cells of these tables in rows of users.
    #[must_use]
    pub fn with_row_tables(self, row_tables: RowTables) -> CassandraStore {
        CassandraStore { row_tables, ..self }
    }

    /// Handles of it. Who opened it goes on to need it itself.
    pub fn store(self: &Arc<Self>) -> Store {
        Store {
            kind: "cassandra",
            health: Arc::clone(self) as _,
            keys: Arc::clone(self) as _,
            data: Arc::clone(self) as _,
            sessions: Arc::clone(self) as _,
            backups: None,
            cluster: Some(Arc::clone(self) as _),
        }
    }

    /// Its cells.
    pub fn cells(self: &Arc<Self>) -> Arc<dyn CellStore> {
        Arc::clone(self) as _
    }

    /// Whether the cluster and the tables are as they must be, by the connection of this store; see
    /// [`health::check`].
    pub async fn check(
        &self,
        options: &CassandraOptions,
        schema: &Schema,
        apply: &str,
    ) -> Result<Vec<Finding>, CassandraError> {
        health::look(&self.driver, options, schema, apply).await
    }

    /// Prepares what may be asked of these tables, and of what replicas share: preparing waits for all nodes that are
    /// connected, so later one that hangs would be in the way. What cannot be prepared now is when it is asked for.
    pub async fn prepare_ahead(&self, tables: &[TableName]) {
        let shapes = Shape::usual().flat_map(|shape| {
            let swap = move |table: &TableName| Cql::Swap(table.clone(), shape, Order::First);
            tables.iter().map(swap)
        });
        let asks = Cql::SHARED
            .into_iter()
            .chain(tables.iter().flat_map(Cql::of_table));
        let asks: Vec<Cql> = asks.chain(shapes).collect();
        let prepared = futures_util::stream::iter(asks).map(|ask| self.statement(ask));
        let failed = prepared
            .buffer_unordered(AT_ONCE)
            .filter_map(|prepared| std::future::ready(prepared.err()));
        let failed: Vec<Fault> = failed.collect().await;
        if let Some(first) = failed.first() {
            tracing::debug!(count = failed.len(), %first, "cannot prepare statements in advance");
        }
    }

    /// Whose connections take it.
    fn driver_of(&self, ask: &Cql) -> &Driver {
        match ask.is_of_cluster() {
            true => &self.cluster,
            false => &self.driver,
        }
    }

    /// The prepared statement of what is asked.
    async fn statement(&self, ask: Cql) -> Result<Statement, Fault> {
        let usage = ask.usage();
        let ask = ask.prepared();
        let known = self.statements.lock().get(&ask).cloned();
        if let Some(known) = known {
            return Ok(known.used_as(usage));
        }
        let text = ask.text(&self.keyspace);
        let statement = self.driver_of(&ask).prepare(usage, &text).await?;
        self.statements.lock().insert(ask, statement.clone());
        Ok(statement)
    }

    /// Asks what has one page for an answer.
    async fn ask(&self, ask: Cql, values: &[Value]) -> Result<Vec<Row>, Fault> {
        let driver = self.driver_of(&ask);
        let span = statement_span(&ask);
        let executed = async {
            let statement = self.statement(ask).await?;
            driver.execute(&statement, values).await
        };
        executed.instrument(span).await
    }

    /// Asks for a lightweight transaction; whether its condition held.
    async fn ask_if(&self, ask: Cql, values: &[Value]) -> Result<bool, Fault> {
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

    async fn ask(&self, ask: Cql, values: &[Value]) -> Result<Vec<Row>, Fault> {
        CassandraStore::ask(self, ask, values).await
    }

    async fn page(
        &self,
        ask: Cql,
        values: &[Value],
        page_rows: i32,
        from: Option<NextPage>,
    ) -> Result<(Vec<Row>, Option<NextPage>), Fault> {
        let driver = self.driver_of(&ask);
        let span = statement_span(&ask);
        let executed = async {
            let statement = self.statement(ask).await?;
            driver.page(&statement, values, page_rows, from).await
        };
        executed.instrument(span).await
    }
}

impl StoreHealth for CassandraStore {
    fn ready(&self) -> Result<(), StoreError> {
        match self.driver.is_connected() {
            true => Ok(()),
            false => Err(StoreError::Unavailable("no node is connected".to_owned())),
        }
    }

    fn counts(&self) -> StoreCounts {
        self.metrics.counts()
    }
}

/// The span of a statement; of one that no call caused, none.
fn statement_span(ask: &Cql) -> Span {
    match trace::is_active() {
        false => Span::none(),
        true => {
            let span = tracing::debug_span!(
                target: TARGET, "statement", otel.kind = "client", otel.name = Empty, db.system.name = "cassandra",
            );
            if !span.is_disabled() {
                span.record("otel.name", ask.name());
            }
            span
        }
    }
}

/// Counts the statements of one driver.
#[derive(Debug)]
struct CountedStatements {
    data: DataOf,
    metrics: StoreMetrics,
}

fn operation(kind: StatementKind) -> Operation {
    match kind {
        StatementKind::Read => Operation::Read,
        StatementKind::Write => Operation::Write,
        StatementKind::Transaction => Operation::Transaction,
    }
}

impl Observer for CountedStatements {
    fn sent(&self, kind: StatementKind) {
        self.metrics.sent(self.data, operation(kind));
    }

    fn ended(&self, kind: StatementKind, took: Duration, fault: Option<&Fault>) {
        let failure = fault.map(|fault| match fault.is_unknown() {
            true => Failure::Unknown,
            false => Failure::NotStarted,
        });
        self.metrics
            .ended(self.data, operation(kind), took, failure);
    }
}
