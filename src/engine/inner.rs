//! What all actors of one replica share.

use std::collections::{BTreeSet, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, Semaphore, watch};
use uuid::Uuid;

use super::activity::Activity;
use super::api::EngineError;
use super::clock::{Clock, Ids};
use super::keys::Keys;
use super::leases::Leases;
use super::log_throttle::LogThrottle;
use super::members::Members;
use super::peers::Peers;
use super::remote::RemoteSessions;
use super::wall_check::WallCheck;
use crate::limits::Limits;
use crate::lock::{CoreLimits, ReplicaId, TableName};
use crate::store::{ReplicaRow, Store};

/// What all actors of one replica share.
pub(super) struct Inner {
    pub store: Arc<dyn Store>,
    pub clock: Arc<dyn Clock>,
    pub ids: Arc<dyn Ids>,
    pub replica: ReplicaId,
    /// Its row, as it announced itself.
    pub row: ReplicaRow,
    /// Other replicas may work on the same store.
    pub shared: bool,
    pub tables: BTreeSet<TableName>,
    pub peers: Arc<dyn Peers>,
    pub limits: Limits,
    /// But for the clock: [`Inner::core`].
    pub core: CoreLimits,
    pub keys: Keys,
    pub leases: Arc<Leases>,
    pub members: Members,
    /// Sessions that other replicas keep, and that entries of this one live by.
    pub remote: RemoteSessions,
    /// How many heartbeats were sent.
    pub heartbeats: AtomicU64,
    /// Wakes whoever sends heartbeats: something with a short TTL lives here now.
    pub heartbeat_sooner: Notify,
    /// Wakes whoever looks at the others: one of them may have been silent for long enough.
    pub read_sooner: Notify,
    /// Hand-over requests of other replicas that are worked at.
    pub open_hand_overs: OpenHandOvers,
    /// For each entry that may be being evicted because its session has ended.
    pub evicts: Semaphore,
    /// For each other home that may be being notified of an end at the moment.
    pub telling: Arc<Semaphore>,
    /// Whether this machine's clock agrees with the store's (I2).
    pub wall: WallCheck,
    /// True once the engine stops: waits end, no call is taken.
    pub stopping: watch::Sender<bool>,
    /// True once this replica is fenced: nothing is answered any more (I10).
    pub fenced: watch::Sender<bool>,
    pub counters: Arc<Counters>,
    pub activity: Arc<Activity>,
    /// What the store does to all keys alike must not fill the log.
    pub log_throttles: LogThrottles,
}

/// Hand-over requests that are worked at.
#[derive(Debug, Default)]
pub(super) struct OpenHandOvers(Mutex<HashSet<Uuid>>);

impl OpenHandOvers {
    /// True if nobody works at it yet.
    pub fn begin(&self, id: Uuid) -> bool {
        let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        open.insert(id)
    }

    pub fn end(&self, id: Uuid) {
        let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        open.remove(&id);
    }
}

/// Faults that are met again and again for as long as a store is in trouble.
#[derive(Debug, Default)]
pub(super) struct LogThrottles {
    /// Of changes of keys.
    pub unknown_outcome: LogThrottle,
    /// Of states that are not what is known of their version.
    pub contradiction: LogThrottle,
    /// Of sessions that are to be closed.
    pub not_closed: LogThrottle,
}

/// What the engine counted since the process started, as all replicas that it was.
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
    /// Whether this machine's clock is known to be wrong (I2).
    pub fn is_clock_off(&self) -> bool {
        self.wall.is_off(self.clock.wall_us(), self.clock.boot())
    }

    /// The bounds of the core, as of now.
    pub fn core(&self) -> CoreLimits {
        CoreLimits {
            clock_off: self.is_clock_off(),
            ..self.core.clone()
        }
    }

    /// Whether this replica may still answer (I10).
    pub fn alive(&self) -> Result<(), EngineError> {
        if !self.shared {
            return Ok(());
        }
        if self.leases.is_fenced() {
            self.fence_self();
        }
        match *self.fenced.borrow() {
            true => Err(EngineError::CutOff),
            false => Ok(()),
        }
    }

    /// This replica is fenced.
    pub fn fence_self(&self) {
        let news = |flag: &mut bool| !std::mem::replace(flag, true);
        self.stopping.send_if_modified(news);
        self.fenced.send_if_modified(news);
    }

    /// How long to wait before the given try (0: the first repetition), with jitter: 5 ms doubling up to
    /// 1 s.
    pub fn backoff(&self, tries: u32) -> Duration {
        let span_ms = 5u64.saturating_mul(1 << tries.min(8)).min(1_000);
        Duration::from_millis(span_ms / 2 + self.ids.below(span_ms / 2 + 1))
    }
}
