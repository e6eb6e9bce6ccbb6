//! All settings, their defaults, and the checks across them.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::sync::Arc;

use etcetera::BaseStrategy as _;
use fermata_cassandra::{Quorum, RowTable, RowTableName};
use fermata_command::Span;
use serde::{Deserialize, Serialize};
use tracing_subscriber::EnvFilter;

use super::clients::{AuthConfig, ClientTlsConfig};
use super::listen::{Listen, ListenAt};
use super::peers::{PeersConfig, is_host_and_port};
use super::store::{StoreConfig, StoreKind};
use crate::limits::Limits;
use crate::lock::{TableName, TableNameError};
use crate::protocol::{ProtocolKind, ProtocolOptions};
use crate::server::{GRACE, check_listen};

/// All settings.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Addresses and sockets for gRPC.
    pub listen: Listen,
    /// `HOST:PORT` at which clients reach it; by default the first of `listen`.
    pub advertise: Option<String>,
    /// Serve without TLS or without known clients where other machines reach it.
    pub insecure: bool,
    /// Encryption of the connections of clients.
    pub tls: ClientTlsConfig,
    /// Tokens and rules of clients.
    pub auth: AuthConfig,
    /// The directory of the embedded store; by default in the user's data directory.
    pub data_dir: Option<PathBuf>,
    /// The time for open calls after SIGTERM.
    pub shutdown_grace: Span,
    /// The store of states and values.
    pub store: StoreConfig,
    /// Calls between replicas.
    pub peers: PeersConfig,
    /// The limits in force.
    pub limits: Limits,
    /// HTTP for operators: metrics, liveness, readiness, the console.
    pub http: HttpConfig,
    /// Logging.
    pub log: LogConfig,
    /// The export of traces.
    pub traces: TracesConfig,
    /// The commit mode of tables without their own. By default it depends on the store: [`Config::commit`].
    pub commit: Option<Commit>,
    /// The tables; `default` exists whether it is named or not.
    pub tables: BTreeMap<ConfiguredTable, TableConfig>,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            listen: Listen::default(),
            advertise: None,
            insecure: false,
            tls: ClientTlsConfig::default(),
            auth: AuthConfig::default(),
            data_dir: None,
            shutdown_grace: Span::from_duration(GRACE),
            store: StoreConfig::default(),
            peers: PeersConfig::default(),
            limits: Limits::default(),
            http: HttpConfig::default(),
            log: LogConfig::default(),
            traces: TracesConfig::default(),
            commit: None,
            tables: BTreeMap::from([(
                ConfiguredTable(TableName::default_table()),
                TableConfig::default(),
            )]),
        }
    }
}

/// HTTP for operators.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct HttpConfig {
    /// Its addresses; `None` without it.
    pub listen: Option<Listen>,
    /// The page for operators.
    pub console: bool,
}

impl Default for HttpConfig {
    fn default() -> Self {
        HttpConfig {
            listen: None,
            console: true,
        }
    }
}

/// Logging, to stderr.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LogConfig {
    /// The form of a log line.
    pub format: LogFormat,
    /// The logged events: a level, or `target=level` directives with commas.
    pub filter: String,
}

impl Default for LogConfig {
    fn default() -> Self {
        LogConfig {
            format: LogFormat::Text,
            // The driver logs each connection at `info`. Any client can make the HTTP/2 library warn.
            filter: "info,scylla=warn,h2=error".to_owned(),
        }
    }
}

/// The export of traces, by OTLP over gRPC.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TracesConfig {
    /// The collector, `http://HOST:PORT`; `None`: no traces.
    pub endpoint: Option<String>,
    /// Of the calls whose callers did not decide, one in this many is traced.
    pub one_in: NonZeroU32,
}

impl Default for TracesConfig {
    fn default() -> Self {
        TracesConfig {
            endpoint: None,
            one_in: const { NonZeroU32::new(100).unwrap() },
        }
    }
}

/// The form of a log line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// One line of text an event, coloured on a terminal.
    Text,
    /// One JSON object an event.
    Json,
}

/// The settings of one table.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TableConfig {
    /// Its protocol.
    pub protocol: Protocol,
    /// Values may be read and written in a protocol without a fence.
    pub allow_unfenced: bool,
    /// Its commit mode; by default that of all tables.
    pub commit: Option<Commit>,
    /// The user's table with the rows to lock, `KEYSPACE.TABLE`.
    pub row_table: Option<String>,
    /// The begin of the names of lock columns; by default `_LOCK_`.
    pub lock_prefix: Option<String>,
    /// The nodes that must answer; by default `quorum`.
    pub consistency: Option<RowConsistency>,
}

/// The nodes that must answer, of those that have a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RowConsistency {
    /// A majority of all.
    Quorum,
    /// A majority in the datacenter of the replica: each datacenter locks on its own.
    LocalQuorum,
    /// A majority in each datacenter.
    EachQuorum,
}

impl TableConfig {
    /// The begin of the names of lock columns.
    fn lock_prefix(&self) -> &str {
        self.lock_prefix.as_deref().unwrap_or(LOCK_PREFIX)
    }

    /// Checks the settings of the table of this name.
    fn check(&self, name: &TableName, store: StoreKind, wrong: &mut Vec<String>) {
        let mut fault =
            |setting: &str, why: &str| wrong.push(format!("tables.{name}.{setting} {why}"));
        if *name == TableName::default_table() && self.protocol != Protocol::Home {
            fault(
                "protocol",
                "must be home; configure another table for this protocol",
            );
        }
        let has_fence = matches!(self.protocol, Protocol::Home | Protocol::Music);
        if has_fence && self.allow_unfenced {
            fault(
                "allow_unfenced",
                "is for protocols without a fence; leave it out",
            );
        }
        if self.protocol != Protocol::Home && self.commit.is_some() {
            fault(
                "commit",
                "is for the protocol home; leave it out, or set the protocol to home",
            );
        }
        let is_in_rows = self.protocol == Protocol::ColumnPrefix;
        let of_rows = [
            ("row_table", self.row_table.is_some()),
            ("lock_prefix", self.lock_prefix.is_some()),
            ("consistency", self.consistency.is_some()),
        ];
        for (setting, is_set) in of_rows {
            if is_set && !is_in_rows {
                fault(setting, "is for the protocol column-prefix; leave it out");
            } else if is_set && setting != "lock_prefix" && store == StoreKind::Embedded {
                fault(setting, "is for the store cassandra; leave it out");
            }
        }
        if is_in_rows && store == StoreKind::Cassandra {
            match self
                .row_table
                .as_ref()
                .map(|name| name.parse::<RowTableName>())
            {
                None => fault(
                    "row_table",
                    "must name the table with the rows, KEYSPACE.TABLE",
                ),
                Some(Err(error)) => fault("row_table", &error.to_string()),
                Some(Ok(_)) => {}
            }
        }
        let is_sign = |sign: char| sign.is_ascii_alphanumeric() || "_-.:/".contains(sign);
        if !(1..=LOCK_PREFIX_MAX).contains(&self.lock_prefix().len())
            || !self.lock_prefix().chars().all(is_sign)
        {
            fault(
                "lock_prefix",
                "must have 1 to 32 letters, digits or signs of _ - . : /",
            );
        }
        if "value".starts_with(self.lock_prefix()) {
            fault(
                "lock_prefix",
                "must not be a prefix of value, the column of the guarded value",
            );
        }
    }
}

/// The begin of the names of lock columns by default, as in Astyanax …
const LOCK_PREFIX: &str = "_LOCK_";
/// … and the longest one, in bytes.
const LOCK_PREFIX_MAX: usize = 32;

/// The protocol of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Protocol {
    /// One replica at a time decides for a key.
    #[default]
    Home,
    /// Without homes: MUSIC on lightweight transactions.
    Music,
    /// Without homes and transactions: Lamport's bakery.
    Bakery,
    /// Without homes and transactions: lock columns beside the data of a row.
    ColumnPrefix,
}

/// The time of a commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Commit {
    /// Before the answer.
    WriteThrough,
    /// After the answer, which comes from memory.
    WriteBack,
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

/// No data directory was named, and the user has none.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the data directory has no default, because HOME is not set; name one (--data-dir DIR)")]
pub struct NoDataDir;

impl Config {
    /// The directory of the embedded store: by default `fermata` in `$XDG_DATA_HOME` or `~/.local/share`.
    pub fn data_dir(&self) -> Result<PathBuf, NoDataDir> {
        if let Some(dir) = &self.data_dir {
            return Ok(dir.clone());
        }
        // The library would fall back to /etc/passwd: a service without HOME would write to an unexpected directory.
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

    /// The tables whose keys have homes.
    pub fn home_tables(&self) -> Vec<TableName> {
        let leaderless = self.leaderless_tables();
        let mut names = self.table_names();
        names.retain(|name| !leaderless.contains_key(name));
        names
    }

    /// The tables without homes, with their protocols.
    pub fn leaderless_tables(&self) -> BTreeMap<TableName, ProtocolOptions> {
        let leaderless = self.tables.iter().filter_map(|(name, table)| {
            let kind = match table.protocol {
                Protocol::Home => return None,
                Protocol::Music => ProtocolKind::Music,
                Protocol::Bakery => ProtocolKind::Bakery,
                Protocol::ColumnPrefix => ProtocolKind::ColumnPrefix,
            };
            let options = ProtocolOptions {
                kind,
                allow_unfenced: table.allow_unfenced,
                lock_prefix: table.lock_prefix().to_owned(),
            };
            Some((name.0.clone(), options))
        });
        leaderless.collect()
    }

    /// The tables with cells of their own.
    pub fn cell_tables(&self) -> Vec<TableName> {
        let tables = self.leaderless_tables().into_iter();
        let has_cells = tables.filter(|(_, options)| options.kind != ProtocolKind::ColumnPrefix);
        has_cells.map(|(name, _)| name).collect()
    }

    /// The tables of users with lock columns.
    pub fn row_tables(&self) -> BTreeMap<TableName, Arc<RowTable>> {
        let named = self.tables.iter().filter_map(|(name, table)| {
            let row = table.row_table.as_ref()?.parse().ok()?;
            let quorum = match table.consistency {
                None | Some(RowConsistency::Quorum) => Quorum::All,
                Some(RowConsistency::LocalQuorum) => Quorum::Local,
                Some(RowConsistency::EachQuorum) => Quorum::Each,
            };
            Some((name.0.clone(), Arc::new(RowTable { name: row, quorum })))
        });
        named.collect()
    }

    /// The protocol of each table, with the settings that all replicas must share.
    pub fn protocols(&self) -> Vec<(TableName, String)> {
        let homes = self.home_tables().into_iter();
        let homes = homes.map(|name| (name, "home".to_owned()));
        let rows = self.row_tables();
        let leaderless = self.leaderless_tables().into_iter();
        let leaderless = leaderless.map(|(name, options)| {
            let kind = options.kind.name();
            let protocol = match rows.get(&name) {
                Some(row) => {
                    format!(
                        "{kind} with row_table {}, lock_prefix {}, consistency {}",
                        row.name,
                        options.lock_prefix,
                        match row.quorum {
                            Quorum::All => "quorum",
                            Quorum::Local => "local_quorum",
                            Quorum::Each => "each_quorum",
                        }
                    )
                }
                None => kind.to_owned(),
            };
            (name, protocol)
        });
        homes.chain(leaderless).collect()
    }

    /// The commit mode of tables without their own. By default write-back on Cassandra, where a commit is a lightweight
    /// transaction, and write-through on the embedded store, where it is one sync of a disk.
    pub fn commit(&self) -> Commit {
        self.commit.unwrap_or(match self.store.kind {
            StoreKind::Embedded => Commit::WriteThrough,
            StoreKind::Cassandra => Commit::WriteBack,
        })
    }

    /// The tables with write-back.
    pub fn write_back(&self) -> BTreeSet<TableName> {
        let names = self.home_tables().into_iter();
        let is_write_back = |name: &TableName| {
            let table = self.tables.get(&ConfiguredTable(name.clone()));
            let commit = table.and_then(|table| table.commit);
            commit.unwrap_or(self.commit()) == Commit::WriteBack
        };
        names.filter(is_write_back).collect()
    }

    /// Checks that the settings agree with each other and with this machine. Lists all faults, with the names of settings.
    pub fn check(&self) -> Result<(), Vec<String>> {
        let mut wrong = self.limits.check().err().unwrap_or_default();
        for address in self.listen.addresses() {
            let protection = self.tls.protection(&self.auth);
            if let Err(error) = check_listen(address, protection, self.insecure) {
                wrong.push(format!("listen: {error}"));
            }
        }
        if self
            .advertise
            .as_deref()
            .is_some_and(|at| !is_host_and_port(at))
        {
            wrong.push("advertise must be HOST:PORT".to_owned());
        }
        self.tls.check(&self.auth, &mut wrong);
        self.store.check(&mut wrong);
        for (name, table) in &self.tables {
            table.check(&name.0, self.store.kind, &mut wrong);
            let same = |(other, one): &(&ConfiguredTable, &TableConfig)| {
                *other < name && one.row_table.is_some() && one.row_table == table.row_table
            };
            if let Some((other, _)) = self.tables.iter().find(same) {
                wrong.push(format!(
                    "tables.{}.row_table is that of tables.{} as well; name it in one of them",
                    name.0, other.0
                ));
            }
        }
        if self.store.kind == StoreKind::Cassandra {
            wrong.extend(self.limits.check_shared().err());
        }
        self.peers.check(self.store.kind, self.insecure, &mut wrong);
        let is_named = !self.peers.name.is_empty() || self.listen.addresses().next().is_some();
        if self.store.kind == StoreKind::Cassandra && !is_named {
            wrong.push(
                "peers.name: a replica without an address in `listen` needs a name of its own"
                    .to_owned(),
            );
        }
        if self.shutdown_grace > Span::from_secs(3600) {
            wrong.push("shutdown_grace must be at most 1h".to_owned());
        }
        let http = self.http.listen.iter().flat_map(Listen::all);
        if let Some(at) = http
            .into_iter()
            .find(|at| matches!(at, ListenAt::Socket(_)))
        {
            wrong.push(format!("http.listen: {at} is a socket; write IP:PORT"));
        }
        if let Some(endpoint) = &self.traces.endpoint {
            let uri = endpoint.parse::<http::Uri>().ok();
            let is_plain =
                |uri: http::Uri| uri.scheme_str() == Some("http") && uri.host().is_some();
            if !uri.is_some_and(is_plain) {
                wrong.push(format!(
                    "traces.endpoint: {endpoint:?} is not http://HOST:PORT; spans go unencrypted to a collector nearby"
                ));
            }
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

    /// Checks the settings of the cluster alone, for `fermata schema`.
    pub fn check_cluster(&self) -> Result<(), Vec<String>> {
        let mut wrong = Vec::new();
        let cassandra = &self.store.cassandra;
        if cassandra.contact_points.0.is_empty() {
            wrong.push(
                "store.cassandra.contact_points: name at least one node of the cluster (--contact-points)"
                    .to_owned(),
            );
        }
        cassandra.check(&mut wrong);
        if wrong.is_empty() { Ok(()) } else { Err(wrong) }
    }
}
