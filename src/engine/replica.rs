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
use super::packing::Packing;
use super::peers::Peers;
use super::requests::Requests;
use super::sessions::Sessions;
use super::time::Time;
use super::values::Values;
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
    pub zone: Arc<str>,
    /// When it began, by CLOCK_BOOTTIME.
    pub began: Duration,
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
    pub values: Values,
    /// When keys to which nothing happens are packed.
    pub packing: Packing,
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

/// After this a holder becomes durable, or after four times of what a commit takes, whichever is longer; and after so much
/// more as more commits are on their way, so that slow sections make no storm of them.
const KEEP_AFTER: Duration = Duration::from_millis(100);
/// The most that a slow commit makes of it: its time counts what it waited behind others.
const KEEP_AFTER_COMMITS_MAX: Duration = Duration::from_secs(2);
/// For how long a process that has the store alone promises a lock by its memory alone: the next one waits for that.
const ALONE_PROMISE: Duration = Duration::from_secs(1);
/// So many on their way make it twice as long.
const COMMITS_AT_ONCE: u64 = 64;

/// How long after it was told a holder becomes durable (H5), where a commit takes so long and so many are on their way.
fn keep_after(commit: Duration, open: u64) -> Duration {
    let usual = commit.saturating_mul(4).min(KEEP_AFTER_COMMITS_MAX);
    let usual = usual.max(KEEP_AFTER);
    let more = u32::try_from(open / COMMITS_AT_ONCE).unwrap_or(u32::MAX);
    usual.saturating_mul(more.saturating_add(1))
}

impl Replica {
    /// How the keys of this table are committed.
    pub fn commit_rules(&self, table: &TableName) -> CommitRules {
        let commit = Duration::from_micros(self.counters.commit_us.load(Ordering::Relaxed));
        CommitRules {
            mode: match self.is_write_back(table) {
                true => CommitMode::WriteBack(Reserve::default()),
                false => CommitMode::WriteThrough,
            },
            keep_after: keep_after(commit, self.counters.open.load(Ordering::Relaxed)),
        }
    }

    /// Whether homes of keys of this table decide in memory, ahead of the row.
    pub fn is_write_back(&self, table: &TableName) -> bool {
        self.write_back.contains(table)
    }

    /// For how long this replica may answer if no other heartbeat comes through: until then nobody takes its keys over.
    pub fn sure_for(&self) -> Duration {
        self.sure_until().saturating_sub(self.clock.boot())
    }

    /// The same, by CLOCK_BOOTTIME.
    pub fn sure_until(&self) -> Duration {
        match self.store.cluster {
            Some(_) => self.membership.sure_until().unwrap_or_default(),
            None => self.clock.boot().saturating_add(ALONE_PROMISE),
        }
    }

    /// How long a process that has the store alone waits before it serves a key that the process before it may have promised
    /// by its memory alone.
    pub fn left_of_the_one_before(&self) -> Duration {
        match self.store.cluster {
            Some(_) => Duration::ZERO,
            None => (self.began + ALONE_PROMISE).saturating_sub(self.clock.boot()),
        }
    }

    /// For how long a lock may be promised that is safe from expiry for so long, and from a crash of this replica until then
    /// (H7).
    pub fn promise(&self, valid_for: Duration, until: Option<Duration>) -> Duration {
        match until {
            None => valid_for,
            Some(until) => valid_for.min(until.saturating_sub(self.clock.boot())),
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
        self.membership.ranked(id.name_hash(), &self.zone) == Ranked::Local
    }

    /// How long to wait before the given try (0: the first repetition), with jitter: 5 ms doubling up to
    /// 1 s.
    pub fn backoff(&self, tries: u32) -> Duration {
        let span_ms = 5u64.saturating_mul(1 << tries.min(8)).min(1_000);
        Duration::from_millis(span_ms / 2 + self.ids.below(span_ms / 2 + 1))
    }

    /// Tells the other replicas that a session has ended. Best effort.
    pub fn notify_session_ended(&self, session: SessionId) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_more_commits_are_on_their_way_the_longer_a_holder_stays_volatile() {
        let ms = Duration::from_millis;
        assert_eq!(keep_after(ms(5), 0), ms(100));
        assert_eq!(keep_after(ms(50), 63), ms(200));
        assert_eq!(keep_after(ms(50), 64), ms(400));
        assert_eq!(keep_after(ms(5), 6_400), ms(10_100));
        assert_eq!(keep_after(ms(19_000), 0), ms(2_000));
        let longest = keep_after(Duration::MAX, u64::MAX);
        assert!(longest >= Duration::from_secs(3_600), "{longest:?}");
    }
}
