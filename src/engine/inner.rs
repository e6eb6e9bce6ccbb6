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
use super::complaint::Complaint;
use super::keys::Keys;
use super::leases::Leases;
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
    /// Sessions that other replicas keep, and that places of this one live by.
    pub remote: RemoteSessions,
    /// How many beats were sent.
    pub beats: AtomicU64,
    /// Wakes whoever beats: something with a short TTL lives here now.
    pub beat_sooner: Notify,
    /// Wakes whoever looks at the others: one of them may have been silent for long enough.
    pub look_sooner: Notify,
    /// Questions of other replicas that are worked at.
    pub asked: Asked,
    /// For each place that may be being evicted because its session is over.
    pub evicts: Semaphore,
    /// For each other home that may be being told of an end at the moment.
    pub telling: Arc<Semaphore>,
    /// Whether this machine's clock agrees with the store's (I2).
    pub wall: WallCheck,
    /// True once the engine stops: waits end, no call is taken.
    pub stopping: watch::Sender<bool>,
    /// True once this replica is over: nothing is answered any more (I10).
    pub dead: watch::Sender<bool>,
    pub counters: Arc<Counters>,
    pub activity: Arc<Activity>,
    /// What the store does to all keys alike must not fill the log.
    pub complaints: Complaints,
}

/// Questions that are worked at.
#[derive(Debug, Default)]
pub(super) struct Asked(Mutex<HashSet<Uuid>>);

impl Asked {
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
pub(super) struct Complaints {
    /// Of changes of keys.
    pub unknown_outcome: Complaint,
    /// Of states that are not what is known of their version.
    pub contradiction: Complaint,
    /// Of sessions that are to be closed.
    pub not_closed: Complaint,
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
        if self.leases.is_dead() {
            self.die();
        }
        match *self.dead.borrow() {
            true => Err(EngineError::CutOff),
            false => Ok(()),
        }
    }

    /// This replica is over.
    pub fn die(&self) {
        let news = |flag: &mut bool| !std::mem::replace(flag, true);
        self.stopping.send_if_modified(news);
        self.dead.send_if_modified(news);
    }

    /// How long to wait before the given try (0: the first repetition), with jitter: 5 ms doubling up to
    /// 1 s.
    pub fn backoff(&self, tries: u32) -> Duration {
        let span_ms = 5u64.saturating_mul(1 << tries.min(8)).min(1_000);
        Duration::from_millis(span_ms / 2 + self.ids.below(span_ms / 2 + 1))
    }
}
