//! The parts of a server, put together as the configuration says: listeners, store, engine, the way to others.

use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;

use tokio::net::TcpListener;
use tokio::task::spawn_blocking;

use super::{ServeError, greeting};
use crate::cli::cluster;
use crate::cli::replica::Made;
use crate::cli::replica::cassandra::Starting;
use crate::config::{Config, Listen, StoreKind};
use crate::engine::{Engine, NoPeers};
use crate::server::{self, PeerClient, PeerSecret, PeerTls};
use crate::store::embedded::{EmbeddedOptions, EmbeddedStore};

/// The listeners, and where they are.
pub struct Net {
    pub listeners: Vec<TcpListener>,
    pub addresses: Vec<String>,
    pub peer_listeners: Vec<TcpListener>,
    pub peer_addresses: Vec<String>,
}

impl Net {
    pub async fn bind(config: &Config) -> Result<Net, ServeError> {
        let (listeners, addresses) = listen(Some(&config.listen), config.insecure).await?;
        let (peer_listeners, peer_addresses) = listen(
            config.peers.listen.as_ref(),
            config.peers.may_be_reached(config.insecure),
        )
        .await?;
        Ok(Net {
            listeners,
            addresses,
            peer_listeners,
            peer_addresses,
        })
    }
}

/// Opens the listeners; with where they are.
async fn listen(
    wanted: Option<&Listen>,
    insecure: bool,
) -> Result<(Vec<TcpListener>, Vec<String>), ServeError> {
    let mut listeners = Vec::new();
    let mut addresses = Vec::new();
    for &address in wanted.map_or(&[][..], Listen::addresses) {
        let listener = server::bind(address, insecure).await?;
        let given = listener.local_addr().map_err(|source| ServeError::System {
            what: "find out which port was given",
            source,
        })?;
        listeners.push(listener);
        addresses.push(given.to_string());
    }
    Ok((listeners, addresses))
}

/// What the configuration names, read before anything is opened.
pub enum Prepared {
    Embedded(EmbeddedOptions, PathBuf),
    Cassandra(Box<Starting>, Option<Arc<PeerClient>>),
}

/// What runs below the server.
pub struct Started {
    pub engine: Engine,
    pub embedded: Option<Arc<EmbeddedStore>>,
    pub peers: Option<Arc<PeerClient>>,
    /// What is left to do while it serves already.
    pub later: Pin<Box<dyn Future<Output = ()>>>,
}

impl Prepared {
    pub fn new(config: &Config) -> Result<Prepared, ServeError> {
        Ok(match config.store.kind {
            StoreKind::Embedded => {
                let directory = config.data_dir()?;
                let options = EmbeddedOptions {
                    directory: directory.clone(),
                    cache_bytes: config.store.embedded.cache_bytes(),
                };
                Prepared::Embedded(options, directory)
            }
            StoreKind::Cassandra => {
                let client = match &config.peers.secret_file {
                    Some(path) => {
                        let secret = PeerSecret::parse(&cluster::file("peers.secret_file", path)?)?;
                        let client = PeerClient::new(secret, &config.limits);
                        let tls = config.peers.tls.files();
                        let tls = tls.map(|files| PeerTls::read(&files)).transpose()?;
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

    /// Starts what must be there before anybody is served.
    pub async fn start(self, config: Config, net: &Net) -> Result<Started, ServeError> {
        let addresses = net.addresses.clone();
        let mut made = made(config, net);
        match self {
            Prepared::Embedded(options, directory) => {
                // After a crash this reads the whole file.
                let store = spawn_blocking(|| EmbeddedStore::open(options)).await??;
                let store = Arc::new(store);
                let engine = Engine::start(made.options(store.store())).await?;
                let replica = engine.replica();
                Ok(Started {
                    engine,
                    embedded: Some(store),
                    peers: None,
                    later: Box::pin(async move {
                        let location = format!("data in {} (embedded store)", directory.display());
                        greeting::serving(&location, replica, &addresses);
                    }),
                })
            }
            Prepared::Cassandra(starting, client) => {
                if made.config.peers.listen.is_none() {
                    tracing::warn!(
                        "peers.listen is not set: other replicas cannot pass calls on to this one, and ask it \
                         through Cassandra, which takes up to some seconds a call"
                    );
                }
                let (tables, limits) = (made.config.table_names(), made.config.limits.clone());
                let engine = Engine::waiting(tables, limits, NOT_YET);
                if let Some(client) = &client {
                    made.peers = client.clone();
                }
                let begun = engine.clone();
                Ok(Started {
                    engine,
                    embedded: None,
                    peers: client,
                    later: Box::pin(async move {
                        starting.run(&begun, |store| made.options(store)).await;
                        let location = starting.location();
                        greeting::serving(&location, begun.replica(), &addresses);
                    }),
                })
            }
        }
    }
}

/// What a call is told while Cassandra is waited for.
const NOT_YET: &str =
    "this replica waits for Cassandra, or for its tables; its log says what is missing";

/// What an engine that listens there is made of.
fn made(config: Config, net: &Net) -> Made {
    let first = |addresses: &[String]| addresses.first().cloned().unwrap_or_default();
    let advertise = config.peers.advertise.clone();
    Made {
        peers: Arc::new(NoPeers),
        address: first(&net.addresses),
        peer_address: advertise.unwrap_or_else(|| first(&net.peer_addresses)),
        config,
    }
}
