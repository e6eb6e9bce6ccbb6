//! The parts of a replica, from the configuration.

pub mod cassandra;

use std::sync::Arc;

use crate::clock::{SystemClock, SystemIds};
use crate::config::Config;
use crate::engine::{EngineOptions, Packing, Peers};
use crate::store::Store;

/// The parts of an engine, beside its store.
pub struct Made {
    pub config: Config,
    pub peers: Arc<dyn Peers>,
    /// Its address for gRPC; empty without one.
    pub address: String,
    /// Its address for other replicas; empty without one.
    pub peer_address: String,
}

impl Made {
    /// With this store.
    pub fn options(&self, store: Store) -> EngineOptions {
        EngineOptions {
            store,
            clock: Arc::new(SystemClock),
            ids: Arc::new(SystemIds),
            peers: Arc::clone(&self.peers),
            tables: self.config.home_tables(),
            write_back: self.config.write_back(),
            limits: self.config.limits.clone(),
            name: name(&self.config, &self.address),
            zone: self.config.peers.zone.clone(),
            address: self.address.clone(),
            peer_address: self.peer_address.clone(),
            packing: Packing::default(),
            replica_ttl: self.config.peers.ttl.duration(),
        }
    }
}

/// The configured name, else `HOST:PORT` of its address for clients: it stays over restarts, and differs between the replicas
/// of a host.
pub fn name(config: &Config, address: &str) -> String {
    let configured = &config.peers.name;
    if !configured.is_empty() {
        return configured.clone();
    }
    let host = nix::unistd::gethostname().ok();
    let host = host.and_then(|name| name.into_string().ok());
    let port = address.rsplit(':').next().unwrap_or_default();
    format!("{}:{port}", host.unwrap_or_default())
}
