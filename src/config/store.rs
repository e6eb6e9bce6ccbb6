//! The settings of the stores.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use fermata_cassandra::{DriverKind, Keyspace, KeyspaceError, TRANSACTIONS_MAX};
use serde::de::{Error as _, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use super::Span;

/// The settings of the stores.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct StoreConfig {
    /// Which one is used.
    pub kind: StoreKind,
    /// The embedded store.
    pub embedded: EmbeddedConfig,
    /// Cassandra.
    pub cassandra: CassandraConfig,
}

/// A kind of store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(try_from = "String", rename_all = "lowercase")]
pub enum StoreKind {
    /// One file on this machine, for one replica.
    #[default]
    Embedded,
    /// A cluster, for any number of replicas.
    Cassandra,
}

impl TryFrom<String> for StoreKind {
    type Error = String;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        match text.as_str() {
            "embedded" => Ok(StoreKind::Embedded),
            "cassandra" => Ok(StoreKind::Cassandra),
            _ => Err(format!("{text:?} is no store; write embedded or cassandra")),
        }
    }
}

/// The settings of the embedded store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EmbeddedConfig {
    /// How much of the file to keep in memory, in MiB.
    pub cache_mib: u32,
}

impl EmbeddedConfig {
    /// The largest cache, in MiB.
    const CACHE_MIB_MAX: u32 = 1024 * 1024;

    /// How much of the file to keep in memory, in bytes.
    pub fn cache_bytes(&self) -> usize {
        usize::try_from(u64::from(self.cache_mib) * 1024 * 1024).unwrap_or(usize::MAX)
    }
}

impl Default for EmbeddedConfig {
    fn default() -> Self {
        EmbeddedConfig { cache_mib: 64 }
    }
}

/// How Cassandra is reached.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CassandraConfig {
    /// By which client library.
    pub driver: DriverName,
    /// Nodes to ask first.
    pub contact_points: ContactPoints,
    /// Where the tables are.
    pub keyspace: KeyspaceName,
    /// Who to be; nobody where absent.
    pub user: Option<String>,
    /// A file with nothing but the password; else it is in `FERMATA_CASSANDRA_PASSWORD`.
    pub password_file: Option<PathBuf>,
    /// The datacenter whose nodes are asked before others.
    pub datacenter: Option<String>,
    /// Whose majority must agree.
    pub consistency: Consistency,
    /// Connections to each node.
    pub connections_per_node: NonZeroUsize,
    /// How many lightweight transactions of this replica on keys are in flight at once, and how many on sessions.
    pub transactions_max: NonZeroUsize,
    /// How long a connection may take to be made.
    pub connect_timeout: Span,
    /// How long a request may take.
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
    /// What it names.
    pub fn kind(self) -> DriverKind {
        match self {
            DriverName::Scylla => DriverKind::Scylla,
            DriverName::CassandraCpp => DriverKind::CassandraCpp,
        }
    }
}

/// How the way to Cassandra is encrypted: it is where there is a CA.
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

/// Whose majority must agree. Nothing weaker keeps two holders apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(try_from = "String", rename_all = "snake_case")]
pub enum Consistency {
    /// Of all copies: QUORUM and SERIAL.
    #[default]
    Quorum,
    /// Of the copies in one datacenter: LOCAL_QUORUM and LOCAL_SERIAL.
    LocalQuorum,
}

impl TryFrom<String> for Consistency {
    type Error = String;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        match text.to_ascii_lowercase().as_str() {
            "quorum" => Ok(Consistency::Quorum),
            "local_quorum" => Ok(Consistency::LocalQuorum),
            _ => Err(format!(
                "{text:?} would not keep two holders apart; write quorum or local_quorum"
            )),
        }
    }
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
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[serde(transparent)]
pub struct ContactPoints(pub Vec<String>);

impl ContactPoints {
    fn of<'a>(texts: impl IntoIterator<Item = &'a str>) -> Result<ContactPoints, String> {
        let mut points = Vec::new();
        for text in texts {
            let text = text.trim();
            let good = !text.is_empty() && !text.contains(|c: char| c.is_whitespace() || c == '/');
            match good {
                true => points.push(text.to_owned()),
                false => return Err(format!("{text:?} is no node; write HOST or HOST:PORT")),
            }
        }
        Ok(ContactPoints(points))
    }
}

impl<'de> Deserialize<'de> for ContactPoints {
    /// A list, or one text with commas between the nodes (as environment variables need it).
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Points;

        impl<'de> Visitor<'de> for Points {
            type Value = ContactPoints;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a node, or a list of nodes")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<ContactPoints, E> {
                ContactPoints::of(text.split(',')).map_err(E::custom)
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<ContactPoints, A::Error> {
                let mut texts: Vec<String> = Vec::new();
                while let Some(text) = seq.next_element()? {
                    texts.push(text);
                }
                ContactPoints::of(texts.iter().map(String::as_str)).map_err(A::Error::custom)
            }
        }

        deserializer.deserialize_any(Points)
    }
}

/// What is wrong where the cluster is to be found by nobody.
pub(super) const NO_NODE: &str =
    "store.cassandra.contact_points: name at least one node of the cluster";

impl StoreConfig {
    /// What does not fit together, in words that name the settings.
    pub(super) fn check(&self, wrong: &mut Vec<String>) {
        let cache_mib = self.embedded.cache_mib;
        if !(1..=EmbeddedConfig::CACHE_MIB_MAX).contains(&cache_mib) {
            wrong.push(format!(
                "store.embedded.cache_mib must be 1 to {}",
                EmbeddedConfig::CACHE_MIB_MAX
            ));
        }
        match (self.kind, self.cassandra.contact_points.0.is_empty()) {
            (StoreKind::Cassandra, true) => wrong.push(NO_NODE.to_owned()),
            (StoreKind::Embedded, false) => wrong.push(
                "store.cassandra.contact_points: nodes are named, and store.kind is embedded; set it to \
                 cassandra"
                    .to_owned(),
            ),
            (StoreKind::Cassandra, false) | (StoreKind::Embedded, true) => {}
        }
        self.cassandra.check(wrong);
    }
}

impl CassandraConfig {
    /// The same.
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
            "consistency: with local_quorum name the datacenter (store.cassandra.datacenter), the same for all replicas: each \
             datacenter would lock on its own",
        );
        let tls = &self.tls;
        need(
            tls.cert_file.is_some() == tls.key_file.is_some(),
            "tls.cert_file and store.cassandra.tls.key_file belong together",
        );
        need(
            tls.ca_file.is_some() || (tls.cert_file.is_none() && tls.verify_host),
            "tls.ca_file is not set, so there is no encryption at all",
        );
    }
}
