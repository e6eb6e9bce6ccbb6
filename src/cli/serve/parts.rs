//! The parts of a server, made from the configuration: listeners, protection, store, engine, client of other replicas.

use std::fmt::Display;
use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;

use fermata_command::{Failure, exit};
use tokio::net::TcpListener;
use tokio::task::spawn_blocking;

use super::greeting::Greeting;
use super::reload::Watched;
use crate::access::Access;
use crate::cli::cluster;
use crate::cli::replica::Made;
use crate::cli::replica::cassandra::Starting;
use crate::clock::{SystemClock, SystemIds};
use crate::config::{Config, Listen, ListenAt, StoreKind};
use crate::engine::{Engine, NoPeers};
use crate::protocol::LeaderlessTables;
use crate::server::{self, ClientTls, PeerClient, PeerSecret, PeerTls, Protection, ServerListener};
use crate::store::embedded::{EmbeddedOptions, EmbeddedStore};
use crate::store::metrics::StoreMetrics;

/// The configuration is not valid.
pub fn misconfigured(error: impl Display) -> Failure {
    Failure::new(exit::CONFIG, error.to_string())
}

/// The server failed.
pub fn failed(error: impl Display) -> Failure {
    Failure::new(exit::FAILED, error.to_string())
}

fn not_listening(error: impl Display) -> Failure {
    Failure::new(exit::OS, error.to_string())
}

fn no_store(error: impl Display) -> Failure {
    Failure::new(exit::UNAVAILABLE, error.to_string())
}

/// The listeners and their addresses.
pub struct Net {
    pub listeners: Vec<ServerListener>,
    /// Of the listeners over TCP.
    pub addresses: Vec<String>,
    /// Of the others.
    pub sockets: Vec<String>,
    pub peer_listeners: Vec<TcpListener>,
    pub peer_addresses: Vec<String>,
    pub http_listeners: Vec<TcpListener>,
    pub http_addresses: Vec<String>,
}

impl Net {
    pub async fn bind(config: &Config) -> Result<Net, Failure> {
        let (listeners, addresses) = listen(Some(&config.listen)).await?;
        let mut listeners: Vec<ServerListener> =
            listeners.into_iter().map(ServerListener::Tcp).collect();
        let mut sockets = Vec::new();
        for at in config.listen.all() {
            if let ListenAt::Socket(path) = at {
                listeners.push(ServerListener::Unix(
                    server::bind_socket(path, server::SOCKET_MODE)
                        .await
                        .map_err(not_listening)?,
                ));
                sockets.push(at.to_string());
            }
        }
        let (peer_listeners, peer_addresses) = listen(config.peers.listen.as_ref()).await?;
        let (http_listeners, http_addresses) = listen(config.http.listen.as_ref()).await?;
        Ok(Net {
            listeners,
            addresses,
            sockets,
            peer_listeners,
            peer_addresses,
            http_listeners,
            http_addresses,
        })
    }
}

/// Opens the listeners over TCP; with their addresses.
async fn listen(wanted: Option<&Listen>) -> Result<(Vec<TcpListener>, Vec<String>), Failure> {
    let mut listeners = Vec::new();
    let mut addresses = Vec::new();
    for address in wanted.into_iter().flat_map(Listen::addresses) {
        let listener = server::bind(address).await.map_err(not_listening)?;
        let given = listener.local_addr().map_err(not_listening)?;
        listeners.push(listener);
        addresses.push(given.to_string());
    }
    Ok((listeners, addresses))
}

/// The protection of clients: encryption, and the rules for known clients.
pub struct Protected {
    pub tls: Option<ClientTls>,
    pub access: Access,
}

impl Protected {
    /// Reads the files that the configuration names.
    pub fn new(config: &Config) -> Result<Protected, Failure> {
        let tls = config.tls.files().map(ClientTls::read).transpose();
        let policy = config.auth.files().read(config.tls.knows_clients());
        let policy = policy.map_err(misconfigured)?;
        Ok(Protected {
            tls: tls.map_err(|error| misconfigured(format!("tls.{error}")))?,
            access: Access::new(policy),
        })
    }

    /// The files to reload after changes.
    pub fn watched(&self, config: &Config, peers: Option<&PeerClient>) -> Vec<Watched> {
        let mut watched = Vec::new();
        if let (Some(tls), Some(files)) = (&self.tls, config.tls.files()) {
            watched.push(Watched::client_tls(tls.clone(), &files));
        }
        let files = config.auth.files();
        if files.tokens.is_some() {
            watched.push(Watched::tokens(self.access.clone(), &files));
        }
        if files.rules.is_some() {
            let tables = config.table_names();
            watched.push(Watched::rules(self.access.clone(), &files, tables));
        }
        let peer_tls = peers.and_then(PeerClient::tls);
        if let (Some(tls), Some(files)) = (peer_tls, config.peers.tls.files()) {
            watched.push(Watched::peer_tls(tls.clone(), &files));
        }
        watched
    }
}

/// Warns if known clients may do everything.
pub fn warn_where_rules_are_missing(config: &Config) {
    if config.tls.protection(&config.auth).login && config.auth.rules_file.is_none() {
        tracing::warn!(
            "auth.rules_file is not set: every known client may end the locks of others and take backups"
        );
    }
}

/// Warns if other machines reach the service without protection.
pub fn warn_where_it_is_insecure(config: &Config) {
    let protection = config.tls.protection(&config.auth);
    if config.insecure && config.listen.addresses().any(|at| !at.ip().is_loopback()) {
        let open = match (protection.tls, protection.login) {
            (true, true) => return,
            (true, false) => "every caller may do everything",
            (false, true) => "the network can read everything, tokens too",
            (false, false) => "every caller may do everything, and the network can read everything",
        };
        tracing::warn!("insecure is set: {open}");
    }
}

/// The store of the configuration. Its files are read before anything is opened.
pub enum Prepared {
    Embedded(EmbeddedOptions, PathBuf),
    Cassandra(Box<Starting>, Option<Arc<PeerClient>>),
}

/// The running parts below the server.
pub struct Started {
    pub engine: Engine,
    pub leaderless: LeaderlessTables,
    pub embedded: Option<Arc<EmbeddedStore>>,
    pub peers: Option<Arc<PeerClient>>,
    /// The rest of the start, done while it serves.
    pub later: Pin<Box<dyn Future<Output = ()>>>,
}

impl Prepared {
    pub fn new(config: &Config) -> Result<Prepared, Failure> {
        Ok(match config.store.kind {
            StoreKind::Embedded => {
                let directory = config.data_dir().map_err(misconfigured)?;
                let options = EmbeddedOptions {
                    cache_bytes: config.store.embedded.cache_bytes(),
                    ..EmbeddedOptions::new(directory.clone())
                };
                Prepared::Embedded(options, directory)
            }
            StoreKind::Cassandra => {
                let client = match &config.peers.secret_file {
                    Some(path) => {
                        let secret = cluster::file("peers.secret_file", path)?;
                        let secret = PeerSecret::parse(&secret).map_err(|error| {
                            misconfigured(format!("peers.secret_file: {error}"))
                        })?;
                        let client = PeerClient::new(secret, &config.limits);
                        let tls = config.peers.tls.files();
                        let tls = tls.map(|files| PeerTls::read(&files)).transpose();
                        let tls =
                            tls.map_err(|error| misconfigured(format!("peers.tls.{error}")))?;
                        Some(Arc::new(match tls {
                            Some(tls) => client.with_tls(tls),
                            None => client,
                        }))
                    }
                    None => None,
                };
                Prepared::Cassandra(Box::new(Starting::new(config)?), client)
            }
        })
    }

    /// Starts the parts that the server needs.
    pub async fn start(
        self,
        config: Config,
        net: &Net,
        metrics: StoreMetrics,
        greeting: Greeting,
    ) -> Result<Started, Failure> {
        let at: Vec<String> = net.addresses.iter().chain(&net.sockets).cloned().collect();
        let is_open = config.tls.protection(&config.auth) == Protection::NONE;
        let leaderless = LeaderlessTables::new(
            config.leaderless_tables(),
            config.limits.clone(),
            Arc::new(SystemClock),
            Arc::new(SystemIds),
        );
        let mut made = made(config, net);
        match self {
            Prepared::Embedded(options, directory) => {
                let options = EmbeddedOptions { metrics, ..options };
                // After a crash this reads the whole file.
                let store = spawn_blocking(|| EmbeddedStore::open(options)).await;
                let store = Arc::new(store.map_err(failed)?.map_err(no_store)?);
                leaderless.begin(store.cells());
                let engine = Engine::start(made.options(store.store())).await;
                let engine = engine
                    .map_err(|error| no_store(format!("the store cannot be used: {error}")))?;
                let replica = engine.replica();
                let kind = match store.is_new() {
                    true => "embedded store, new",
                    false => "embedded store",
                };
                Ok(Started {
                    engine,
                    leaderless,
                    embedded: Some(store),
                    peers: None,
                    later: Box::pin(async move {
                        let location = format!("data in {} ({kind})", directory.display());
                        greeting.serving(&location, replica, &at, is_open);
                    }),
                })
            }
            Prepared::Cassandra(starting, client) => {
                if made.config.peers.listen.is_none() {
                    tracing::warn!(
                        "peers.listen is not set: other replicas cannot pass calls on to this one. They request its keys \
                         through Cassandra instead, which can take some seconds a call"
                    );
                }
                let (tables, limits) = (made.config.home_tables(), made.config.limits.clone());
                let engine = Engine::waiting(tables, limits, NOT_YET);
                if let Some(client) = &client {
                    made.peers = client.clone();
                }
                let begun = engine.clone();
                let later = leaderless.clone();
                Ok(Started {
                    engine,
                    leaderless,
                    embedded: None,
                    peers: client,
                    later: Box::pin(async move {
                        starting
                            .run(&begun, &later, &metrics, |store| made.options(store))
                            .await;
                        let location = starting.location();
                        greeting.serving(&location, begun.replica(), &at, is_open);
                    }),
                })
            }
        }
    }
}

/// The answer to calls before the engine has its store.
const NOT_YET: &str = "this replica waits for Cassandra or its tables; its log has the reason";

/// The parts of an engine, beside its store.
fn made(config: Config, net: &Net) -> Made {
    let first = |addresses: &[String]| addresses.first().cloned().unwrap_or_default();
    let (advertise, to_peers) = (config.advertise.clone(), config.peers.advertise.clone());
    Made {
        peers: Arc::new(NoPeers),
        address: advertise.unwrap_or_else(|| first(&net.addresses)),
        peer_address: to_peers.unwrap_or_else(|| first(&net.peer_addresses)),
        config,
    }
}
