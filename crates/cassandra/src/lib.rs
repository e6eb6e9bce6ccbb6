//! Access to Apache Cassandra and ScyllaDB, which speak the same protocol: options, connections, prepared statements, and the
//! outcome of each request. Only this crate knows the client libraries.
//!
//! The statements of Fermata and the meaning of their rows are elsewhere: in the store of the server, and in the baseline of
//! the benchmark.

mod driver;
mod fault;
mod options;
mod row_table;
mod value;

pub use driver::{Driver, NextPage, Observer, Order, Statement, StatementKind, TokenRange, Use};
pub use fault::{ConnectFault, Fault};
pub use options::{
    CassandraOptions, CassandraTls, ClientCertificate, Credentials, DriverKind, Keyspace,
    KeyspaceError, Majority, TRANSACTIONS_MAX,
};
pub use row_table::{Quorum, RowTable, RowTableName, RowTableNameError};
pub use value::{ColumnError, Row, Value, present};
