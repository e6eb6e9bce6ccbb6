//! The options of a connection to a cluster.

use std::fmt;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

/// As many lightweight transactions as one process has in flight at once, where it is not said.
pub const TRANSACTIONS_MAX: NonZeroUsize = NonZeroUsize::MIN.saturating_add(255);

/// The name of a keyspace: 1 to 48 ASCII letters, digits or `_`, a letter first.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Keyspace(String);

/// Why a text names no keyspace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a keyspace is 1 to 48 ASCII letters, digits or '_', a letter first")]
pub struct KeyspaceError;

impl Keyspace {
    /// Checks a text.
    pub fn parse(text: &str) -> Result<Keyspace, KeyspaceError> {
        let first_ok = text.bytes().next().is_some_and(|b| b.is_ascii_alphabetic());
        let rest_ok = text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
        match first_ok && rest_ok && text.len() <= 48 {
            true => Ok(Keyspace(text.to_owned())),
            false => Err(KeyspaceError),
        }
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Default for Keyspace {
    /// `fermata`.
    fn default() -> Keyspace {
        Keyspace("fermata".to_owned())
    }
}

impl std::str::FromStr for Keyspace {
    type Err = KeyspaceError;

    fn from_str(text: &str) -> Result<Keyspace, KeyspaceError> {
        Keyspace::parse(text)
    }
}

impl fmt::Display for Keyspace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Which client library reaches the cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DriverKind {
    /// The `scylla` crate, which is always there.
    #[default]
    Scylla,
    /// The C++ driver, by way of the `cassandra-cpp` crate; only in programs that were built with the feature of that name.
    CassandraCpp,
}

impl DriverKind {
    /// Whether this program was built with it.
    pub fn is_built_in(self) -> bool {
        self == DriverKind::Scylla || cfg!(feature = "cassandra-cpp")
    }
}

/// Whose majority must agree. Nothing weaker can be chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Majority {
    /// Of all replicas, wherever they are: QUORUM and SERIAL.
    #[default]
    Everywhere,
    /// Of those of one datacenter, LOCAL_QUORUM and LOCAL_SERIAL: only for a keyspace that lives in one. With
    /// more, each would lock on its own.
    OneDatacenter,
}

/// A user of the cluster.
#[derive(Clone)]
pub struct Credentials {
    /// The name.
    pub user: String,
    /// The password; shown nowhere.
    pub password: String,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials")
            .field("user", &self.user)
            .finish_non_exhaustive()
    }
}

/// How connections are encrypted, and who is trusted. The files are PEM, and read when connecting.
#[derive(Clone, Debug)]
pub struct CassandraTls {
    /// The certificates of those who may have signed the nodes' certificates.
    pub ca_file: PathBuf,
    /// Who to be, where the nodes ask for a certificate as well.
    pub client: Option<ClientCertificate>,
    /// Whether a node's certificate must be for the IP address that it is reached at. Without it any
    /// certificate of that CA will do, and whoever has one can pass for a node.
    pub verify_host: bool,
}

/// A certificate of ours.
#[derive(Clone, Debug)]
pub struct ClientCertificate {
    /// The certificate, and those between it and the CA if there are any.
    pub certificate_file: PathBuf,
    /// Its private key.
    pub key_file: PathBuf,
}

/// How a cluster is reached.
#[derive(Clone, Debug)]
pub struct CassandraOptions {
    /// By which client library.
    pub driver: DriverKind,
    /// Nodes to ask first, as `host` or `host:port` (9042).
    pub contact_points: Vec<String>,
    /// Where the tables are.
    pub keyspace: Keyspace,
    /// Who to be; `None` where the cluster asks nobody.
    pub credentials: Option<Credentials>,
    /// How connections are encrypted; `None` where they are not.
    pub tls: Option<CassandraTls>,
    /// The datacenter whose nodes are asked before others.
    pub datacenter: Option<String>,
    /// Whose majority must agree.
    pub majority: Majority,
    /// Of the nodes of a partition, in an order of their own, the one at this position, counted round and round, is asked first,
    /// as long as few requests are in flight. Processes with consecutive numbers have each another one.
    pub preferred_node: u64,
    /// Connections to each node.
    pub connections_per_node: NonZeroUsize,
    /// How many hedged lightweight transactions are in flight at once, and how many others; more wait their turn, for
    /// `request_timeout` at most. The limit falls, down to 32, while the nodes are overloaded.
    pub transactions_max: NonZeroUsize,
    /// How long a connection may take to be made.
    pub connect_timeout: Duration,
    /// How long a request may take. Must be more than the cluster's `cas_contention_timeout` and
    /// `write_request_timeout` together (3.8 s as shipped), so that the cluster gives up first.
    pub request_timeout: Duration,
    /// How many rows one answer may have.
    pub page_rows: u16,
}

impl CassandraOptions {
    /// The usual ones, for these nodes and this keyspace.
    pub fn new(contact_points: Vec<String>, keyspace: Keyspace) -> CassandraOptions {
        CassandraOptions {
            driver: DriverKind::default(),
            contact_points,
            keyspace,
            credentials: None,
            tls: None,
            datacenter: None,
            majority: Majority::default(),
            preferred_node: 0,
            connections_per_node: NonZeroUsize::MIN,
            transactions_max: TRANSACTIONS_MAX,
            connect_timeout: Duration::from_secs(5),
            request_timeout: Duration::from_secs(6),
            page_rows: 2_000,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_keyspace_cannot_carry_cql() {
        for good in ["fermata", "F", "a_1", &"k".repeat(48)] {
            assert!(Keyspace::parse(good).is_ok(), "{good}");
        }
        for bad in ["", "1a", "_a", "a-b", "a\"b", "a b", "ü", &"k".repeat(49)] {
            assert!(Keyspace::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_password_is_not_shown() {
        let credentials = Credentials {
            user: "u".to_owned(),
            password: "secret".to_owned(),
        };
        assert!(!format!("{credentials:?}").contains("secret"));
    }
}
