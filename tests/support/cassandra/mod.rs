//! Real Cassandra nodes on loopback, without containers: for tests, and for `cargo run --example cassandra`.
//!
//! One cluster a user and machine: who comes first starts it, who comes meanwhile shares it, and it ends
//! when the last one is gone, whatever that costs one its lock. What lives here starts and ends processes; it
//! speaks no CQL. A test takes [`for_tests::cluster`].
#![allow(
    dead_code,
    unused_imports,
    reason = "each program that includes this uses a part of it"
)]

mod cluster;
pub mod for_tests;
mod lone;
mod node;
mod tools;

pub use cluster::{Cluster, NodeStatus, down, nodetool, signal, start_node, status};
pub use lone::Lone;
pub use nix::sys::signal::Signal;
pub use node::{CommitLog, Network, Purpose, own_group};
pub use tools::{Tools, cache_directory};

use std::path::PathBuf;
use std::time::Duration;

/// The version of Cassandra that is run.
pub const VERSION: &str = "5.0.8";
/// How many nodes a cluster may have.
pub const NODES_MAX: usize = 3;

/// Why there is no cluster.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// This machine lacks something.
    #[error("{0}")]
    Missing(String),
    /// The jars could not be fetched.
    #[error("Maven could not fetch the jars of Cassandra {VERSION}:\n{0}")]
    Fetch(String),
    /// Something else listens where a node would.
    #[error("{0} is in use by another program; a node of Cassandra would listen there")]
    AddressInUse(String),
    /// Another cluster of ours runs.
    #[error(
        "a cluster of {running} nodes is running, and {wanted} are wanted; end it first: cargo run --example cassandra -- down"
    )]
    OtherSize {
        /// How many nodes run.
        running: usize,
        /// How many are wanted.
        wanted: usize,
    },
    /// Another cluster of ours runs somewhere else.
    #[error(
        "a cluster is running on this machine where another network is wanted (sites or not); end it first: \
         cargo run --example cassandra -- down"
    )]
    OtherNetwork,
    /// Some nodes run, and somebody uses them.
    #[error(
        "only {running} nodes of the cluster are running; end it first: cargo run --example cassandra -- down"
    )]
    Incomplete {
        /// How many nodes run.
        running: usize,
    },
    /// A cluster of ours runs where none may.
    #[error(
        "somebody keeps a cluster of {running} nodes running; end it first: cargo run --example cassandra -- down"
    )]
    InUse {
        /// How many nodes run.
        running: usize,
    },
    /// A node ended while it started.
    #[error("node {node} ended while it started; the end of its log:\n{log}")]
    Crashed {
        /// Its number, from 1.
        node: usize,
        /// The end of its log.
        log: String,
    },
    /// It took too long.
    #[error("{what} took longer than {} s; logs are in {}", .after.as_secs(), .logs.display())]
    TooSlow {
        /// What did.
        what: String,
        /// The limit.
        after: Duration,
        /// Where to look.
        logs: PathBuf,
    },
    /// Nodes answer, and some do not take all others for up.
    #[error("nodes did not see each other within {} s; logs are in {}", .after.as_secs(), .logs.display())]
    Blind {
        /// The limit.
        after: Duration,
        /// Where to look.
        logs: PathBuf,
    },
    /// There is no such node.
    #[error("there is no running node {0}")]
    NoSuchNode(usize),
    /// The system refused.
    #[error("{what}: {source}")]
    Io {
        /// What was being done.
        what: String,
        /// What the system said.
        source: std::io::Error,
    },
}

impl ClusterError {
    fn io(what: impl std::fmt::Display) -> impl FnOnce(std::io::Error) -> ClusterError {
        let what = what.to_string();
        move |source| ClusterError::Io { what, source }
    }
}
