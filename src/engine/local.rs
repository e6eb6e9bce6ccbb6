//! The facts about this replica that its parts share: its id, the time, the other replicas, its lease, its promise, and whether it
//! stops.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use super::api::EngineError;
use crate::clock::{Clock, Ids, Sleep};
use crate::lock::{KeyId, NameHash, ReplicaId};
use crate::membership::{Membership, NotSure, Peer, Presence, Ranked};

/// The span of volatile promises by a process that has the store alone. The next process waits for it.
const ALONE_PROMISE: Duration = Duration::from_secs(1);

/// This replica.
pub(super) struct Local {
    pub id: ReplicaId,
    /// Its configured zone; empty: none.
    pub zone: Arc<str>,
    pub clock: Arc<dyn Clock>,
    pub ids: Arc<dyn Ids>,
    /// The other replicas, and whether this one may answer (H2).
    pub membership: Arc<Membership>,
    /// The start of this replica, by CLOCK_BOOTTIME, if it has the store alone; `None` on a shared store.
    alone_since: Option<Duration>,
    /// The lowest fence, whatever the clock says.
    fence_floor_us: u64,
    /// True once all keys of the last process are taken over; always true on a shared store.
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

    /// The lower bound of a new fence now, in microseconds since 1970; `None` while the clock is known to be wrong.
    pub fn fence_clock_us(&self) -> Option<u64> {
        let is_right = !self.membership.clock_off();
        is_right.then(|| self.clock.wall_us().max(self.fence_floor_us))
    }

    /// Whether this process has the store alone.
    pub fn is_alone(&self) -> bool {
        self.alone_since.is_some()
    }

    /// Ends waits, and refuses further calls.
    pub fn stop(&self) {
        self.stopping.send_replace(true);
    }

    /// Ends the tasks of a stopped or fenced replica.
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

    /// Whether this replica may answer now (H2). Asked after the store's acknowledgement, and before the caller hears of it.
    pub fn sure(&self) -> Result<(), EngineError> {
        self.membership
            .is_sure()
            .map_err(|not_sure| match not_sure {
                NotSure::Silent => EngineError::Silent,
                NotSure::Fenced => EngineError::Fenced,
                NotSure::Stopped => EngineError::Stopping,
            })
    }

    /// The end of this replica's lease without another heartbeat, by CLOCK_BOOTTIME. Until then it may answer, and no other
    /// replica takes its keys over.
    pub fn sure_until(&self) -> Duration {
        match self.is_alone() {
            true => self.clock.boot().saturating_add(ALONE_PROMISE),
            false => self.membership.sure_until().unwrap_or_default(),
        }
    }

    /// The rest of that lease.
    pub fn sure_for(&self) -> Duration {
        self.sure_until().saturating_sub(self.clock.boot())
    }

    /// The wait of a process that has the store alone before it serves a key with possible volatile promises of its predecessor.
    pub fn left_of_the_one_before(&self) -> Duration {
        self.alone_since.map_or(Duration::ZERO, |since| {
            (since + ALONE_PROMISE).saturating_sub(self.clock.boot())
        })
    }

    /// The promise for a lock that does not expire for `valid_for`. A volatile lock is promised no longer than `until` (H7).
    pub fn promise(&self, valid_for: Duration, until: Option<Duration>) -> Duration {
        match until {
            None => valid_for,
            Some(until) => valid_for.min(until.saturating_sub(self.clock.boot())),
        }
    }

    /// Declares another replica down if it is suspected. True if its row says so then.
    pub async fn declare_down(&self, id: ReplicaId) -> Result<bool, EngineError> {
        let is_down = self.membership.declare_down(id).await;
        is_down.map_err(EngineError::of_store)
    }

    /// The presence of a replica.
    pub fn presence(&self, id: ReplicaId) -> Presence {
        self.membership.presence(id)
    }

    /// The replica that should be the home of a key that is called here.
    pub fn ranked(&self, name: NameHash) -> Ranked {
        self.membership.ranked(name, &self.zone)
    }

    /// Whether this replica is the ranked one.
    pub fn is_ranked(&self, id: &KeyId) -> bool {
        self.ranked(id.name_hash()) == Ranked::Local
    }

    /// The other replica that should be the home of a key that is used in this zone.
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
