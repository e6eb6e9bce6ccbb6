//! One replica: what all that serves under one id shares.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::watch;

use super::activity::Activity;
use super::api::EngineError;
use super::counters::Counters;
use super::keys::Keys;
use super::peers::Peers;
use super::requests::Requests;
use super::sessions::Sessions;
use super::time::Time;
use crate::clock::{Clock, Ids};
use crate::key::machine::{CommitRules, KeyLimits};
use crate::key::{CommitMode, Reserve};
use crate::limits::Limits;
use crate::lock::{KeyId, ReplicaId, SessionId, TableName};
use crate::log_throttle::LogThrottle;
use crate::membership::{Membership, NotSure, Ranked};
use crate::store::{ReplicaRow, Store};

/// What all that serves under one id shares.
pub(super) struct Replica {
    pub id: ReplicaId,
    /// Its row, as it announced itself.
    pub row: ReplicaRow,
    /// Where it runs.
    pub zone: String,
    pub tables: BTreeSet<TableName>,
    /// Those whose keys are answered from memory, and committed later (H5).
    pub write_back: BTreeSet<TableName>,
    pub limits: Limits,
    pub key_limits: KeyLimits,
    pub store: Store,
    pub clock: Arc<dyn Clock>,
    pub ids: Arc<dyn Ids>,
    pub peers: Arc<dyn Peers>,
    /// Who else is there, and whether this one may answer (H2).
    pub membership: Arc<Membership>,
    pub time: Arc<Time>,
    pub keys: Keys,
    pub sessions: Arc<Sessions>,
    /// Keys that are asked for through the store.
    pub requests: Requests,
    /// True once the engine stops: waits end, no call is taken.
    pub stopping: watch::Sender<bool>,
    /// True once this replica has ended, fenced or stopped: its tasks end.
    pub ended: watch::Sender<bool>,
    pub counters: Arc<Counters>,
    pub activity: Arc<Activity>,
    /// When the alarms were looked at last, in milliseconds of CLOCK_BOOTTIME: the process moves.
    pub moved: Arc<AtomicU64>,
    /// What the store does to all keys alike must not fill the log.
    pub log_throttles: EngineLogThrottles,
}

/// Faults that are met again and again for as long as a store is in trouble.
#[derive(Debug, Default)]
pub(super) struct EngineLogThrottles {
    /// Of changes of keys.
    pub unknown_outcome: LogThrottle,
    /// Of sessions that are to be closed.
    pub not_closed: LogThrottle,
}

/// After this a holder becomes durable, or after four times of what a commit takes, whichever is longer.
const KEEP_AFTER: Duration = Duration::from_millis(100);

impl Replica {
    /// How the keys of this table are committed.
    pub fn commit_rules(&self, table: &TableName) -> CommitRules {
        let commit = Duration::from_micros(self.counters.commit_us.load(Ordering::Relaxed));
        CommitRules {
            mode: match self.is_write_back(table) {
                true => CommitMode::WriteBack(Reserve::default()),
                false => CommitMode::WriteThrough,
            },
            keep_after: KEEP_AFTER.max(commit * 4),
        }
    }

    /// Whether homes of keys of this table decide in memory, ahead of the row.
    pub fn is_write_back(&self, table: &TableName) -> bool {
        self.write_back.contains(table) && self.store.cluster.is_some()
    }

    /// For how long this replica may answer if no other heartbeat comes through: until then nobody takes its keys over.
    pub fn sure_for(&self) -> Duration {
        let until = self.membership.sure_until().unwrap_or_default();
        until.saturating_sub(self.clock.boot())
    }

    /// For how long a lock may be promised that is safe from expiry for so long: one that a crash of this replica would end,
    /// no longer than nobody takes its keys over (H7).
    pub fn promise(&self, valid_for: Duration, durable: bool) -> Duration {
        match durable {
            true => valid_for,
            false => valid_for.min(self.sure_for()),
        }
    }

    /// Whether this replica may answer now (H2). Asked after the store's acknowledgement, and before anybody hears of it.
    pub fn sure(&self) -> Result<(), EngineError> {
        self.membership
            .is_sure()
            .map_err(|not_sure| match not_sure {
                NotSure::Silent => EngineError::Silent,
                NotSure::Fenced => EngineError::Fenced,
                NotSure::Stopped => EngineError::Stopping,
            })
    }

    /// Declares another replica down where it is suspected. Whether its row says that it is down, then.
    pub async fn declare_down(&self, id: ReplicaId) -> Result<bool, EngineError> {
        let is_down = self.membership.declare_down(id).await;
        is_down.map_err(EngineError::of_store)
    }

    /// Whether this replica should be the home of a key.
    pub fn is_ranked(&self, id: &KeyId) -> bool {
        self.membership.ranked(id, &self.zone) == Ranked::Local
    }

    /// How long to wait before the given try (0: the first repetition), with jitter: 5 ms doubling up to
    /// 1 s.
    pub fn backoff(&self, tries: u32) -> Duration {
        let span_ms = 5u64.saturating_mul(1 << tries.min(8)).min(1_000);
        Duration::from_millis(span_ms / 2 + self.ids.below(span_ms / 2 + 1))
    }

    /// Tells the other replicas that a session has ended. Best effort.
    pub fn tell_session_ended(&self, session: SessionId) {
        for peer in self.membership.peers() {
            self.peers.session_ended(&peer, session);
        }
    }
}

/// The process moves.
pub(super) fn note_moved(moved: &AtomicU64, clock: &dyn Clock) {
    let now = u64::try_from(clock.boot().as_millis()).unwrap_or(u64::MAX);
    moved.store(now, Ordering::Relaxed);
}
