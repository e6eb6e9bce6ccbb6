//! What a replica is made of, as the configuration says: for `serve`, and for a benchmark that runs one of its own.

pub mod cassandra;

use std::sync::Arc;

use crate::clock::{SystemClock, SystemIds};
use crate::config::Config;
use crate::engine::{EngineOptions, Peers};
use crate::store::Store;

/// What an engine is made of beside its store.
pub struct Made {
    pub config: Config,
    pub peers: Arc<dyn Peers>,
    /// Where it serves gRPC; empty where it does not.
    pub address: String,
    /// Where it takes calls of other replicas; empty where it does not.
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
            tables: self.config.table_names(),
            limits: self.config.limits.clone(),
            name: self.config.peers.name.clone(),
            zone: self.config.peers.zone.clone(),
            address: self.address.clone(),
            peer_address: self.peer_address.clone(),
            replica_ttl: self.config.peers.ttl.duration(),
        }
    }
}
