//! How Fermata reaches Apache Cassandra (and ScyllaDB, which speaks the same protocol): by which options, over which
//! connections, with which statements, and what became of a request. Only here is it known which driver that is.
//!
//! What is asked, and what the rows mean, is said elsewhere: in the store of the server, and in the benchmark's
//! baseline. No CQL of theirs lives here.

mod driver;
mod fault;
mod options;
mod value;

pub use driver::{Driver, KnownNode, NextPage, Order, Sent, Setting, Statement, TokenRange, Use};
pub use fault::{ConnectFault, Fault};
pub use options::{
    CassandraOptions, CassandraTls, ClientCertificate, Credentials, DriverKind, Keyspace,
    KeyspaceError, Majority, TRANSACTIONS_MAX,
};
pub use value::{ColumnError, Row, Value, present};
