//! How a replica starts, stops, and starts anew.

use std::collections::BTreeSet;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use super::alarms;
use super::api::EngineError;
use super::clock::{Clock, Ids};
use super::inner::{Counters, Inner};
use super::keys::Keys;
use super::leases::Leases;
use super::peers::Peers;
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
    /// How other replicas are called.
    pub peers: Arc<dyn Peers>,
    /// The tables besides `default`.
    pub tables: Vec<TableName>,
    /// The limits in force.
    pub limits: Limits,
    /// Where this replica serves gRPC, for operators.
    pub address: String,
    /// Where it takes calls of other replicas; empty where there are none.
    pub peer_address: String,
    /// A replica without a beat for this long is down (I10).
    pub replica_ttl: Duration,
}

/// The replica TTL unless configured.
pub const REPLICA_TTL: Duration = Duration::from_secs(10);

/// What stays the same for as long as the process runs, and the replica that it is now.
pub(super) struct Shared {
    pub limits: Limits,
    pub tables: BTreeSet<TableName>,
    current: RwLock<Current>,
}

enum Current {
    /// No replica yet; why not.
    Waiting(String),
    Serving(Arc<Inner>),
    Stopped(Option<Arc<Inner>>),
}

impl Shared {
    fn set(&self, next: Current) {
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        // Whoever stops the engine stops all that it may become.
        if !matches!(*current, Current::Stopped(_)) {
            *current = next;
        }
    }

    pub(super) fn stop(&self) {
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        let last = match &*current {
            Current::Waiting(_) => None,
            Current::Serving(inner) => Some(Arc::clone(inner)),
            Current::Stopped(_) => return,
        };
        if let Some(inner) = &last {
            inner.stopping.send_replace(true);
        }
        *current = Current::Stopped(last);
    }
}

impl Engine {
    /// An engine that waits to be started: calls fail with `Unavailable` and this reason.
    pub fn waiting(tables: Vec<TableName>, limits: Limits, why: &str) -> Engine {
        let mut tables: BTreeSet<TableName> = tables.into_iter().collect();
        tables.insert(TableName::default_table());
        Engine {
            shared: Arc::new(Shared {
                limits,
                tables,
                current: RwLock::new(Current::Waiting(why.to_owned())),
            }),
        }
    }

    /// The replica that this is now.
    pub(super) fn inner(&self) -> Result<Arc<Inner>, EngineError> {
        let current = self
            .shared
            .current
            .read()
            .unwrap_or_else(PoisonError::into_inner);
        match &*current {
            Current::Waiting(why) => Err(EngineError::Unavailable(why.clone())),
            Current::Serving(inner) => {
                inner.alive()?;
                Ok(Arc::clone(inner))
            }
            Current::Stopped(_) => Err(EngineError::Stopping),
        }
    }

    /// Starts a replica: announces it, takes over what older ones left, and begins to watch leases.
    /// What went wrong is of the store; nothing is served then.
    pub async fn start(options: EngineOptions) -> Result<Engine, EngineError> {
        let engine = Engine::waiting(
            options.tables.clone(),
            options.limits.clone(),
            "this replica is starting",
        );
        engine.begin(options).await?;
        Ok(engine)
    }

    /// Starts an engine that waits. Its tables and limits stay the ones that it was made with.
    pub async fn begin(&self, options: EngineOptions) -> Result<(), EngineError> {
        let inner = self.live(&options).await?;
        self.shared.set(Current::Serving(inner));
        Ok(())
    }

    async fn live(&self, options: &EngineOptions) -> Result<Arc<Inner>, EngineError> {
        let replica = ReplicaId(options.ids.uuid());
        let limits = self.shared.limits.clone();
        let leases = Leases::new(Arc::clone(&options.clock), limits.sessions_max);
        let inner = Arc::new(Inner {
            replica,
            tables: self.shared.tables.clone(),
            core: limits.core(),
            keys: Keys::new(),
            leases: Arc::new(leases),
            stopping: tokio::sync::watch::Sender::new(false),
            counters: Counters::default(),
            store: Arc::clone(&options.store),
            clock: Arc::clone(&options.clock),
            ids: Arc::clone(&options.ids),
            peers: Arc::clone(&options.peers),
            limits,
        });
        let row = ReplicaRow {
            id: replica,
            address: options.address.clone(),
            peer_address: options.peer_address.clone(),
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
                // Nobody gets this replica, so nobody else can end its tasks.
                inner.stopping.send_replace(true);
            })?;
            tracing::info!(
                keys = recovered.keys,
                sessions = recovered.sessions,
                "took over what the last process left"
            );
        }
        Ok(inner)
    }

    /// After [`Engine::stop`]: finishes what is under way and tells the others that this replica is gone, so
    /// that they take its places over at once. To be called last, when all calls were answered.
    pub async fn hand_over(&self) {}
}
