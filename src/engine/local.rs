//! The facts about this replica that its parts share: its id, the time, the other replicas, its lease, its promise, and whether it
//! stops.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use super::api::EngineError;
use crate::clock::{Clock, Ids, Sleep};
use crate::lock::{KeyId, NameHash, ReplicaId};
use crate::membership::{Membership, NotSure, Peer, Presence, Ranked};

/// For how long a process that has the store alone promises a lock by its memory alone: the next one waits for that.
const ALONE_PROMISE: Duration = Duration::from_secs(1);

/// This replica.
pub(super) struct Local {
    pub id: ReplicaId,
    /// Where it runs; empty where that is not configured.
    pub zone: Arc<str>,
    pub clock: Arc<dyn Clock>,
    pub ids: Arc<dyn Ids>,
    /// Who else is there, and whether this one may answer (H2).
    pub membership: Arc<Membership>,
    /// Since when it has the store alone, by CLOCK_BOOTTIME; `None` where other replicas share it.
    alone_since: Option<Duration>,
    /// No fence is below it, whatever the clock says.
    fence_floor_us: u64,
    /// True once everything is taken over that an earlier process left, where it had the store alone.
    pub recovered: watch::Sender<bool>,
    stopping: watch::Sender<bool>,
    ended: watch::Sender<bool>,
}

impl Local {
    pub fn new(
        membership: Arc<Membership>,
        zone: &str,
        clock: Arc<dyn Clock>,
        ids: Arc<dyn Ids>,
        is_alone: bool,
        fence_floor_us: u64,
    ) -> Self {
        Local {
            id: membership.id(),
            zone: zone.into(),
            alone_since: is_alone.then(|| clock.boot()),
            clock,
            ids,
            membership,
            fence_floor_us,
            recovered: watch::Sender::new(!is_alone),
            stopping: watch::Sender::new(false),
            ended: watch::Sender::new(false),
        }
    }

    /// From where on fences are taken now, in microseconds since 1970; `None` while the clock is known to be wrong.
    pub fn fence_clock_us(&self) -> Option<u64> {
        let is_right = !self.membership.clock_off();
        is_right.then(|| self.clock.wall_us().max(self.fence_floor_us))
    }

    /// Whether nobody else shares the store.
    pub fn is_alone(&self) -> bool {
        self.alone_since.is_some()
    }

    /// Waits end, and no call is taken any more.
    pub fn stop(&self) {
        self.stopping.send_replace(true);
    }

    /// It has stopped, or was fenced: its tasks end.
    pub fn end(&self) {
        self.stop();
        self.ended.send_replace(true);
    }

    pub fn is_stopping(&self) -> bool {
        *self.stopping.borrow()
    }

    /// True once [`Local::stop`] was called.
    pub fn stopping(&self) -> watch::Receiver<bool> {
        self.stopping.subscribe()
    }

    /// True once [`Local::end`] was called.
    pub fn ended(&self) -> watch::Receiver<bool> {
        self.ended.subscribe()
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

    /// Until when this replica may answer if no other heartbeat comes through, by CLOCK_BOOTTIME: until then nobody takes
    /// its keys over.
    pub fn sure_until(&self) -> Duration {
        match self.is_alone() {
            true => self.clock.boot().saturating_add(ALONE_PROMISE),
            false => self.membership.sure_until().unwrap_or_default(),
        }
    }

    /// The same, from now on.
    pub fn sure_for(&self) -> Duration {
        self.sure_until().saturating_sub(self.clock.boot())
    }

    /// How long a process that has the store alone waits before it serves a key that the process before it may have promised
    /// by its memory alone.
    pub fn left_of_the_one_before(&self) -> Duration {
        self.alone_since.map_or(Duration::ZERO, |since| {
            (since + ALONE_PROMISE).saturating_sub(self.clock.boot())
        })
    }

    /// For how long a lock may be promised that is safe from expiry for so long, and from a crash of this replica until then
    /// (H7).
    pub fn promise(&self, valid_for: Duration, until: Option<Duration>) -> Duration {
        match until {
            None => valid_for,
            Some(until) => valid_for.min(until.saturating_sub(self.clock.boot())),
        }
    }

    /// Declares another replica down where it is suspected. Whether its row says that it is down, then.
    pub async fn declare_down(&self, id: ReplicaId) -> Result<bool, EngineError> {
        let is_down = self.membership.declare_down(id).await;
        is_down.map_err(EngineError::of_store)
    }

    /// What is known of a replica.
    pub fn presence(&self, id: ReplicaId) -> Presence {
        self.membership.presence(id)
    }

    /// Which replica should be the home of a key that is asked for here.
    pub fn ranked(&self, name: NameHash) -> Ranked {
        self.membership.ranked(name, &self.zone)
    }

    /// Whether that is this one.
    pub fn is_ranked(&self, id: &KeyId) -> bool {
        self.ranked(id.name_hash()) == Ranked::Local
    }

    /// Which other replica should be the home of a key that is used in this zone.
    pub fn next_ranked(&self, id: &KeyId, zone: &str) -> Option<Arc<Peer>> {
        self.membership.next_ranked(id.name_hash(), zone)
    }

    /// Waits before the given try (0: the first repetition), with jitter: 5 ms doubling up to 1 s.
    pub fn back_off(&self, tries: u32) -> Sleep {
        let span_ms = 5u64.saturating_mul(1 << tries.min(8)).min(1_000);
        let span = Duration::from_millis(span_ms / 2 + self.ids.below(span_ms / 2 + 1));
        self.clock.sleep(span)
    }
}
