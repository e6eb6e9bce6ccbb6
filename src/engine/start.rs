//! How a replica starts.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::alarms;
use super::api::EngineError;
use super::clock::{Clock, Ids};
use super::inner::{Counters, Inner};
use super::keys::Keys;
use super::leases::Leases;
use super::recover::recover;
use super::{Engine, wall_ms};
use crate::limits::Limits;
use crate::lock::{ReplicaId, TableName};
use crate::store::{ReplicaRow, Store, StoreError};

/// What an engine is made of.
pub struct EngineOptions {
    /// Where states and data are kept.
    pub store: Arc<dyn Store>,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Ids.
    pub ids: Arc<dyn Ids>,
    /// The tables besides `default`.
    pub tables: Vec<TableName>,
    /// The limits in force.
    pub limits: Limits,
    /// Where this replica serves gRPC, for operators.
    pub address: String,
}

impl Engine {
    /// Starts a replica: announces it, takes over what older ones left, and begins to watch leases.
    /// What went wrong is of the store; nothing is served then.
    pub async fn start(options: EngineOptions) -> Result<Engine, EngineError> {
        let replica = ReplicaId(options.ids.uuid());
        let mut tables: BTreeSet<TableName> = options.tables.into_iter().collect();
        tables.insert(TableName::default_table());
        let leases = Leases::new(Arc::clone(&options.clock), options.limits.sessions_max);
        let inner = Arc::new(Inner {
            replica,
            tables,
            core: options.limits.core(),
            keys: Keys::new(),
            leases: Arc::new(leases),
            stopping: tokio::sync::watch::Sender::new(false),
            counters: Counters::default(),
            store: options.store,
            clock: options.clock,
            ids: options.ids,
            limits: options.limits,
        });
        let row = ReplicaRow {
            id: replica,
            address: options.address,
            peer_address: String::new(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            started_at_ms: wall_ms(&inner),
            beat: 0,
            stopped: false,
        };
        let unavailable = |error: StoreError| EngineError::Unavailable(error.to_string());
        inner
            .store
            .announce_replica(&row)
            .await
            .map_err(unavailable)?;
        tokio::spawn(alarms::run(Arc::clone(&inner)));
        if inner.store.is_exclusive() {
            let recovered = recover(&inner).await.inspect_err(|_| {
                // Nobody gets this engine, so nobody else can end its tasks.
                inner.stopping.send_replace(true);
            })?;
            tracing::info!(
                keys = recovered.keys,
                sessions = recovered.sessions,
                "took over what the last process left"
            );
        }
        Ok(Engine { inner })
    }
}
