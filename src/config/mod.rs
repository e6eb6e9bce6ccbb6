//! The configuration of `serve`: a file, environment variables and flags, from low to high
//! precedence, read once into types that cannot be wrong.
//!
//! Every setting has a default, so an empty configuration serves. What each setting does, for people,
//! is in `docs/configuration.md`; a test holds that page to what is here. Nothing here opens, binds
//! or starts anything.

mod clients;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
mod load;
mod overlooked;
mod peers;
mod store;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use etcetera::BaseStrategy as _;
pub use fermata_command::{Span, SpanError};
use serde::de::{Error as _, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use tracing_subscriber::EnvFilter;

pub use clients::{AuthConfig, ClientTlsConfig};
pub use load::{Flag, Problem, Problems, Sources};
pub use peers::{PeersConfig, PeersTlsConfig};
pub use store::{
    CassandraConfig, Consistency, ContactPoints, DriverName, EmbeddedConfig, KeyspaceName,
    StoreConfig, StoreKind, TlsConfig,
};

use self::store::NO_NODE;
use crate::limits::Limits;
use crate::lock::{TableName, TableNameError};
use crate::server::check_listen;

/// All settings.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Where to serve gRPC.
    pub listen: Listen,
    /// Serve without TLS, or to everybody, where others can reach it.
    pub insecure: bool,
    /// How connections of clients are encrypted.
    pub tls: ClientTlsConfig,
    /// Who clients are, and what they may do.
    pub auth: AuthConfig,
    /// The directory of the embedded store; the user's data directory where absent.
    pub data_dir: Option<PathBuf>,
    /// How long open calls may take to end after SIGTERM, before their connections are dropped.
    pub shutdown_grace: Span,
    /// Where states and data are kept.
    pub store: StoreConfig,
    /// How replicas reach each other.
    pub peers: PeersConfig,
    /// The limits in force.
    pub limits: Limits,
    /// What is logged, and how.
    pub log: LogConfig,
    /// When what is decided about a key is committed, where its table does not say; where this is absent,
    /// [`Config::commit`] goes by the store.
    pub commit: Option<Commit>,
    /// The tables; `default` exists whether it is named or not.
    pub tables: BTreeMap<ConfiguredTable, TableConfig>,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            listen: Listen::default(),
            insecure: false,
            tls: ClientTlsConfig::default(),
            auth: AuthConfig::default(),
            data_dir: None,
            shutdown_grace: Span::from_secs(10),
            store: StoreConfig::default(),
            peers: PeersConfig::default(),
            limits: Limits::default(),
            log: LogConfig::default(),
            commit: None,
            tables: BTreeMap::from([(
                ConfiguredTable(TableName::default_table()),
                TableConfig::default(),
            )]),
        }
    }
}

/// What is logged, and how. Logs go to stderr.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LogConfig {
    /// For people or for machines.
    pub format: LogFormat,
    /// Which events: a level, or `target=level` directives with commas between.
    pub filter: String,
}

impl Default for LogConfig {
    fn default() -> Self {
        LogConfig {
            format: LogFormat::Text,
            // What the driver says at `info` of each connection tells an operator nothing.
            filter: "info,scylla=warn".to_owned(),
        }
    }
}

/// How a log line looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", rename_all = "lowercase")]
pub enum LogFormat {
    /// One line of text an event, coloured on a terminal.
    Text,
    /// One JSON object an event.
    Json,
}

impl TryFrom<String> for LogFormat {
    type Error = String;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        match text.as_str() {
            "text" => Ok(LogFormat::Text),
            "json" => Ok(LogFormat::Json),
            _ => Err(format!("{text:?} is no log format; write text or json")),
        }
    }
}

/// The settings of one table.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TableConfig {
    /// When what is decided about its keys is committed; as for all tables where absent.
    pub commit: Option<Commit>,
}

/// When what is decided about a key is committed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", rename_all = "kebab-case")]
pub enum Commit {
    /// Before it is answered.
    WriteThrough,
    /// Later: it is answered from memory.
    WriteBack,
}

impl TryFrom<String> for Commit {
    type Error = String;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        match text.as_str() {
            "write-through" => Ok(Commit::WriteThrough),
            "write-back" => Ok(Commit::WriteBack),
            _ => Err(format!(
                "{text:?} is no way to commit; write write-through or write-back"
            )),
        }
    }
}

/// The name of a configured table.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ConfiguredTable(pub TableName);

impl TryFrom<String> for ConfiguredTable {
    type Error = TableNameError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        TableName::parse(&text).map(ConfiguredTable)
    }
}

impl From<ConfiguredTable> for String {
    fn from(table: ConfiguredTable) -> Self {
        table.0.as_str().to_owned()
    }
}

/// Where to listen, at least at one address or socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listen(Vec<ListenAt>);

/// One of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ListenAt {
    /// Over TCP.
    Address(SocketAddr),
    /// On a Unix socket.
    Socket(PathBuf),
}

impl fmt::Display for ListenAt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ListenAt::Address(address) => address.fmt(f),
            ListenAt::Socket(path) => write!(f, "{SOCKET}{}", path.display()),
        }
    }
}

/// How a Unix socket is written.
const SOCKET: &str = "unix:";

impl Listen {
    /// The port of Fermata where none is named.
    pub const PORT: u16 = 7450;

    /// All of them, in the order in which they were given.
    pub fn all(&self) -> &[ListenAt] {
        &self.0
    }

    /// Those over TCP, in the order in which they were given.
    pub fn addresses(&self) -> impl Iterator<Item = SocketAddr> {
        self.0.iter().filter_map(|at| match at {
            ListenAt::Address(address) => Some(*address),
            ListenAt::Socket(_) => None,
        })
    }

    fn parse<'a>(texts: impl IntoIterator<Item = &'a str>) -> Result<Listen, String> {
        let mut addresses = Vec::new();
        for text in texts {
            if let Some(path) = text.strip_prefix(SOCKET) {
                if !path.starts_with('/') {
                    return Err(format!(
                        "{text:?} is no socket; write unix:/PATH, from the root on"
                    ));
                }
                addresses.push(ListenAt::Socket(path.into()));
                continue;
            }
            let address: SocketAddr = text.parse().map_err(|_| {
                format!(
                    "{text:?} is no address; write IP:PORT, such as 127.0.0.1:7450 or [::1]:0, or unix:/PATH for a socket"
                )
            })?;
            addresses.push(ListenAt::Address(address));
        }
        if addresses.is_empty() {
            return Err("name at least one address".to_owned());
        }
        Ok(Listen(addresses))
    }
}

impl Default for Listen {
    fn default() -> Self {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, Self::PORT));
        Listen(vec![ListenAt::Address(address)])
    }
}

impl Serialize for Listen {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter().map(ListenAt::to_string))
    }
}

impl<'de> Deserialize<'de> for Listen {
    /// A list, or one text with commas between the addresses (as environment variables need it).
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Addresses;

        impl<'de> Visitor<'de> for Addresses {
            type Value = Listen;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an address, or a list of addresses")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Listen, E> {
                Listen::parse(text.split(',').map(str::trim)).map_err(E::custom)
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Listen, A::Error> {
                let mut texts: Vec<String> = Vec::new();
                while let Some(text) = seq.next_element()? {
                    texts.push(text);
                }
                Listen::parse(texts.iter().map(String::as_str)).map_err(A::Error::custom)
            }
        }

        deserializer.deserialize_any(Addresses)
    }
}

/// No data directory was named, and the user has none.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("name a data directory (--data-dir DIR): the user has no default one, HOME is not set")]
pub struct NoDataDir;

impl Config {
    /// The directory of the embedded store: the one named, else `fermata` in the user's data directory
    /// (`$XDG_DATA_HOME`, or `~/.local/share`).
    pub fn data_dir(&self) -> Result<PathBuf, NoDataDir> {
        if let Some(dir) = &self.data_dir {
            return Ok(dir.clone());
        }
        // The library would fall back to /etc/passwd: a service whose HOME was taken away on purpose
        // would then write where nobody looks for it.
        if std::env::var_os("HOME").is_none_or(|home| home.is_empty()) {
            return Err(NoDataDir);
        }
        let base = etcetera::choose_base_strategy().map_err(|_| NoDataDir)?;
        Ok(base.data_dir().join("fermata"))
    }

    /// The tables, `default` among them.
    pub fn table_names(&self) -> Vec<TableName> {
        let mut names: Vec<TableName> = self.tables.keys().map(|t| t.0.clone()).collect();
        if !names.contains(&TableName::default_table()) {
            names.insert(0, TableName::default_table());
        }
        names
    }

    /// When what is decided about a key is committed, where its table does not say: unless set, later on Cassandra,
    /// where a commit is a lightweight transaction, and before it is answered on the embedded store, where it is one sync
    /// of a disk.
    pub fn commit(&self) -> Commit {
        self.commit.unwrap_or(match self.store.kind {
            StoreKind::Embedded => Commit::WriteThrough,
            StoreKind::Cassandra => Commit::WriteBack,
        })
    }

    /// The tables whose keys are answered from memory.
    pub fn write_back(&self) -> BTreeSet<TableName> {
        let names = self.table_names().into_iter();
        let is_write_back = |name: &TableName| {
            let table = self.tables.get(&ConfiguredTable(name.clone()));
            let commit = table.and_then(|table| table.commit);
            commit.unwrap_or(self.commit()) == Commit::WriteBack
        };
        names.filter(is_write_back).collect()
    }

    /// Whether the settings agree with each other and with this machine: everything that is wrong, at
    /// once, in words that name the settings.
    pub fn check(&self) -> Result<(), Vec<String>> {
        let mut wrong = self.limits.check().err().unwrap_or_default();
        for address in self.listen.addresses() {
            let protection = self.tls.protection(&self.auth);
            if let Err(error) = check_listen(address, protection, self.insecure) {
                wrong.push(format!("listen: {error}"));
            }
        }
        self.tls.check(&self.auth, &mut wrong);
        self.store.check(&mut wrong);
        if self.store.kind == StoreKind::Cassandra {
            wrong.extend(self.limits.check_shared().err());
        }
        self.peers.check(self.store.kind, self.insecure, &mut wrong);
        let is_named = !self.peers.name.is_empty() || self.listen.addresses().next().is_some();
        if self.store.kind == StoreKind::Cassandra && !is_named {
            wrong.push(
                "peers.name: without an address in `listen` each replica needs a name of its own"
                    .to_owned(),
            );
        }
        if self.shutdown_grace > Span::from_secs(3600) {
            wrong.push("shutdown_grace must be at most 1h".to_owned());
        }
        if let Err(error) = EnvFilter::builder().parse(&self.log.filter) {
            wrong.push(format!("log.filter: {error}"));
        }
        if self.store.kind == StoreKind::Embedded
            && let Err(error) = self.data_dir()
        {
            wrong.push(format!("data_dir: {error}"));
        }
        if wrong.is_empty() { Ok(()) } else { Err(wrong) }
    }

    /// Whether the cluster can be looked for, whatever else is set: what `fermata schema` needs.
    pub fn check_cluster(&self) -> Result<(), Vec<String>> {
        let mut wrong = Vec::new();
        let cassandra = &self.store.cassandra;
        if cassandra.contact_points.0.is_empty() {
            wrong.push(format!("{NO_NODE} (--contact-points)"));
        }
        cassandra.check(&mut wrong);
        if wrong.is_empty() { Ok(()) } else { Err(wrong) }
    }
}
