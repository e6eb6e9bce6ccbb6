//! What all actors of one replica share.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::watch;

use super::api::EngineError;
use super::clock::{Clock, Ids};
use super::keys::Keys;
use super::leases::Leases;
use super::peers::Peers;
use crate::limits::Limits;
use crate::lock::{CoreLimits, ReplicaId, TableName};
use crate::store::Store;

/// What all actors of one replica share.
pub(super) struct Inner {
    pub store: Arc<dyn Store>,
    pub clock: Arc<dyn Clock>,
    pub ids: Arc<dyn Ids>,
    pub replica: ReplicaId,
    pub tables: BTreeSet<TableName>,
    pub peers: Arc<dyn Peers>,
    pub limits: Limits,
    pub core: CoreLimits,
    pub keys: Keys,
    pub leases: Arc<Leases>,
    /// True once the engine stops: waits end, no call is taken.
    pub stopping: watch::Sender<bool>,
    pub counters: Counters,
}

/// What the engine counted since it started.
#[derive(Debug, Default)]
pub(super) struct Counters {
    /// Compare-and-swaps that took effect.
    pub swaps: AtomicU64,
    /// Commands in them.
    pub commands: AtomicU64,
    /// Compare-and-swaps that met another state.
    pub conflicts: AtomicU64,
    /// Compare-and-swaps of unknown outcome.
    pub unknown: AtomicU64,
}

impl Counters {
    pub fn add(counter: &AtomicU64, n: usize) {
        counter.fetch_add(n as u64, Ordering::Relaxed);
    }
}

impl Inner {
    /// Whether this replica may still answer.
    pub fn alive(&self) -> Result<(), EngineError> {
        Ok(())
    }

    /// How long to wait before the given try (0: the first repetition), with jitter: 5 ms doubling up to
    /// 1 s.
    pub fn backoff(&self, tries: u32) -> Duration {
        let span_ms = 5u64.saturating_mul(1 << tries.min(8)).min(1_000);
        Duration::from_millis(span_ms / 2 + self.ids.below(span_ms / 2 + 1))
    }
}
