//! Errors of a keyspace: it cannot be opened, checked, or made.

use fermata_cassandra::{ConnectFault, Fault, Keyspace};

use crate::lock::TableName;

/// Why a keyspace could not be opened, or its schema not be made or checked. Nothing was changed; all of it can be repeated.
#[derive(Debug, Clone, thiserror::Error)]
pub enum CassandraError {
    /// A file that the options name cannot be used.
    #[error("{0}")]
    Settings(String),
    /// A node refused, or is not to be trusted.
    #[error("Cassandra refused: {0}")]
    Refused(String),
    /// No node could be reached, or one gave no answer. Repeat later.
    #[error("Cassandra cannot be reached: {0}")]
    Unreachable(String),
    /// The keyspace has no tables of ours.
    #[error("the keyspace {keyspace} has no tables of Fermata; make them: fermata schema apply")]
    NoSchema {
        /// The keyspace.
        keyspace: Keyspace,
    },
    /// Another version of this program made the tables.
    #[error(
        "the keyspace {keyspace} has schema version {found}, but this program works with {known} only; nothing was changed. \
         Run the fermata of that schema version, or name another keyspace"
    )]
    OtherSchema {
        /// The keyspace.
        keyspace: Keyspace,
        /// The version of its tables.
        found: i32,
        /// The version of this program.
        known: i32,
    },
    /// There is no keyspace, and no number of copies was named to make one.
    #[error(
        "there is no keyspace {keyspace}; to make it, name the number of copies in each datacenter, for instance: \
         --replication {example}"
    )]
    NoKeyspace {
        /// The keyspace.
        keyspace: Keyspace,
        /// A replication that fits the cluster.
        example: String,
    },
    /// Replicas with another setting use the keyspace.
    #[error(
        "the replicas of the keyspace {keyspace} use consistency {stored}, but this one is set to {configured}: set \
         store.cassandra.consistency (--consistency) and store.cassandra.datacenter (--datacenter) like theirs. To change the \
         consistency of all, stop all replicas, then run in cqlsh: DELETE FROM \"{keyspace}\".membership WHERE part = \
         'majority' AND id = 00000000-0000-0000-0000-000000000000 IF EXISTS"
    )]
    OtherMajority {
        /// The keyspace.
        keyspace: Keyspace,
        /// The setting of the others.
        stored: String,
        /// The setting of this one.
        configured: String,
    },
    /// Replicas with another setting serve the table.
    #[error(
        "the replicas of the keyspace {keyspace} serve the table {table} by the protocol {stored}, but this one is set to \
         {configured}: set tables.{table} like theirs. To change the protocol for all, stop all replicas, wait for the \
         longest TTL, then run in cqlsh: DELETE FROM \"{keyspace}\".membership WHERE part = 'protocol/{table}' AND id = \
         00000000-0000-0000-0000-000000000000 IF EXISTS. Locks and values do not move"
    )]
    OtherProtocol {
        /// The keyspace.
        keyspace: Keyspace,
        /// The table.
        table: TableName,
        /// The setting of the others.
        stored: String,
        /// The setting of this one.
        configured: String,
    },
}

impl From<ConnectFault> for CassandraError {
    fn from(fault: ConnectFault) -> CassandraError {
        match fault {
            ConnectFault::Settings(what) => CassandraError::Settings(what),
            ConnectFault::Refused(what) => CassandraError::Refused(what),
            ConnectFault::Unreachable(what) => CassandraError::Unreachable(what),
        }
    }
}

impl From<Fault> for CassandraError {
    fn from(fault: Fault) -> CassandraError {
        match fault {
            Fault::Refused(what) => CassandraError::Refused(what),
            Fault::NotStarted(what) | Fault::Unknown(what) => CassandraError::Unreachable(what),
        }
    }
}
