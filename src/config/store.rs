//! The settings of the stores.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use fermata_cassandra::{DriverKind, Keyspace, KeyspaceError, TRANSACTIONS_MAX};
use fermata_command::Span;
use serde::{Deserialize, Serialize};

use super::listen::Texts;

/// The settings of the stores.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct StoreConfig {
    /// The store in use.
    pub kind: StoreKind,
    /// The embedded store.
    pub embedded: EmbeddedConfig,
    /// Cassandra.
    pub cassandra: CassandraConfig,
}

/// A kind of store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StoreKind {
    /// One file on this machine, for one replica.
    #[default]
    Embedded,
    /// A cluster, for any number of replicas.
    Cassandra,
}

impl StoreKind {
    /// The name in settings and metrics.
    pub fn name(self) -> &'static str {
        match self {
            StoreKind::Embedded => "embedded",
            StoreKind::Cassandra => "cassandra",
        }
    }
}

/// The settings of the embedded store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EmbeddedConfig {
    /// The size of the cache, in MiB.
    pub cache_mib: u32,
}

impl EmbeddedConfig {
    /// The size of the cache, in bytes.
    pub fn cache_bytes(&self) -> usize {
        usize::try_from(u64::from(self.cache_mib) * 1024 * 1024).unwrap_or(usize::MAX)
    }
}

impl Default for EmbeddedConfig {
    fn default() -> Self {
        EmbeddedConfig { cache_mib: 64 }
    }
}

/// The way to Cassandra.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CassandraConfig {
    /// The client library.
    pub driver: DriverName,
    /// The first nodes to ask.
    pub contact_points: ContactPoints,
    /// The keyspace of the tables.
    pub keyspace: KeyspaceName,
    /// The user; without one there is no login.
    pub user: Option<String>,
    /// A file with the password alone; otherwise it is in `FERMATA_CASSANDRA_PASSWORD`.
    pub password_file: Option<PathBuf>,
    /// The datacenter whose nodes are asked before others.
    pub datacenter: Option<String>,
    /// The majority that must agree.
    pub consistency: Consistency,
    /// Connections to each node.
    pub connections_per_node: NonZeroUsize,
    /// The maximum number of lightweight transactions in flight on keys, and on sessions.
    pub transactions_max: NonZeroUsize,
    /// The time for a connection to be made.
    pub connect_timeout: Span,
    /// The time for a request.
    pub request_timeout: Span,
    /// Encryption.
    pub tls: TlsConfig,
}

impl Default for CassandraConfig {
    fn default() -> Self {
        CassandraConfig {
            driver: DriverName::default(),
            contact_points: ContactPoints::default(),
            keyspace: KeyspaceName::default(),
            user: None,
            password_file: None,
            datacenter: None,
            consistency: Consistency::default(),
            connections_per_node: NonZeroUsize::MIN,
            transactions_max: TRANSACTIONS_MAX,
            connect_timeout: Span::from_secs(5),
            request_timeout: Span::from_secs(6),
            tls: TlsConfig::default(),
        }
    }
}

/// A client library, by its name.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DriverName {
    /// The pure Rust one.
    #[default]
    Scylla,
    /// The C++ one.
    CassandraCpp,
}

impl DriverName {
    /// Its kind.
    pub fn kind(self) -> DriverKind {
        match self {
            DriverName::Scylla => DriverKind::Scylla,
            DriverName::CassandraCpp => DriverKind::CassandraCpp,
        }
    }
}

/// Encryption of the way to Cassandra; a CA turns it on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TlsConfig {
    /// The certificates that those of the nodes must be signed by, as PEM.
    pub ca_file: Option<PathBuf>,
    /// The certificate of this client, as PEM.
    pub cert_file: Option<PathBuf>,
    /// Its key, as PEM.
    pub key_file: Option<PathBuf>,
    /// Whether a node's certificate must name the address that it is reached at.
    pub verify_host: bool,
}

impl Default for TlsConfig {
    fn default() -> Self {
        TlsConfig {
            ca_file: None,
            cert_file: None,
            key_file: None,
            verify_host: true,
        }
    }
}

/// The majority that must agree. Nothing weaker keeps two holders apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Consistency {
    /// Of all copies: QUORUM and SERIAL.
    #[default]
    Quorum,
    /// Of the copies in one datacenter: LOCAL_QUORUM and LOCAL_SERIAL.
    LocalQuorum,
}

/// The name of a keyspace.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct KeyspaceName(pub Keyspace);

impl TryFrom<String> for KeyspaceName {
    type Error = KeyspaceError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        Keyspace::parse(&text).map(KeyspaceName)
    }
}

impl From<KeyspaceName> for String {
    fn from(name: KeyspaceName) -> Self {
        name.0.as_str().to_owned()
    }
}

/// Nodes, as `HOST` or `HOST:PORT`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(try_from = "Texts")]
pub struct ContactPoints(pub Vec<String>);

impl TryFrom<Texts> for ContactPoints {
    type Error = String;

    fn try_from(texts: Texts) -> Result<ContactPoints, String> {
        let is_node = |text: &str| {
            !text.is_empty() && !text.contains(|c: char| c.is_whitespace() || c == '/')
        };
        let points = texts.all();
        match points.iter().find(|text| !is_node(text)) {
            Some(text) => Err(format!("{text:?} is not a node; write HOST or HOST:PORT")),
            None => Ok(ContactPoints(points)),
        }
    }
}

impl StoreConfig {
    /// Adds the faults, with the names of settings.
    pub(super) fn check(&self, wrong: &mut Vec<String>) {
        if self.embedded.cache_mib == 0 {
            wrong.push("store.embedded.cache_mib must be at least 1".to_owned());
        }
        match (self.kind, self.cassandra.contact_points.0.is_empty()) {
            (StoreKind::Cassandra, true) => wrong.push(
                "store.cassandra.contact_points: name at least one node of the cluster".to_owned(),
            ),
            (StoreKind::Embedded, false) => wrong.push(
                "store.cassandra.contact_points is set, but store.kind is embedded; set store.kind to cassandra"
                    .to_owned(),
            ),
            (StoreKind::Cassandra, false) | (StoreKind::Embedded, true) => {}
        }
        self.cassandra.check(wrong);
    }
}

impl CassandraConfig {
    /// Adds the faults, with the names of settings.
    pub(super) fn check(&self, wrong: &mut Vec<String>) {
        let mut need = |good: bool, what: &str| {
            if !good {
                wrong.push(format!("store.cassandra.{what}"));
            }
        };
        need(
            self.user.is_some() || self.password_file.is_none(),
            "password_file: name the user (store.cassandra.user) as well",
        );
        need(
            self.driver.kind().is_built_in(),
            "driver: this program was built without cassandra-cpp; build it with the cargo feature of that name, \
             or set scylla",
        );
        need(
            self.connections_per_node.get() <= 128,
            "connections_per_node must be at most 128",
        );
        need(
            self.transactions_max.get() <= 65_536,
            "transactions_max must be at most 65536",
        );
        let spans = Span::from_millis(100)..=Span::from_secs(300);
        need(
            spans.contains(&self.connect_timeout),
            "connect_timeout must be 100ms to 5m",
        );
        need(
            spans.contains(&self.request_timeout),
            "request_timeout must be 100ms to 5m",
        );
        need(
            self.consistency == Consistency::Quorum || self.datacenter.is_some(),
            "consistency: local_quorum needs store.cassandra.datacenter, the same for all replicas; otherwise each \
             datacenter would lock on its own",
        );
        let tls = &self.tls;
        need(
            tls.cert_file.is_some() == tls.key_file.is_some(),
            "tls.cert_file and store.cassandra.tls.key_file must be set together",
        );
        need(
            tls.ca_file.is_some() || (tls.cert_file.is_none() && tls.verify_host),
            "tls.ca_file is not set, so the connections are not encrypted, and the other tls settings have no effect",
        );
    }
}
