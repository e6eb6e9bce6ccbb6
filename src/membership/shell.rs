//! The membership as the rest of the process uses it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{Notify, watch};

use super::hand_overs::HandOvers;
use super::lease::{ReplicaLease, Status};
use super::observation::Observation;
use super::peer::{Peer, Presence, Ranked};
use super::published::{NotSure, Published};
use super::wall_check::WallCheck;
use super::within::GIVEN_UP_AFTER;
use crate::clock::{Clock, Ids};
use crate::lock::{NameHash, ReplicaId};
use crate::log_throttle::LogThrottle;
use crate::store::{ClusterStore, StoreError};

/// One replica of its service, from its start until it is fenced or stopped.
///
/// A drop without [`Membership::stop`] is a crash: its heartbeats end, and others declare it down in time.
pub struct Membership {
    id: ReplicaId,
    kind: MembershipKind,
}

enum MembershipKind {
    /// The process has its store alone.
    Alone {
        stopped: AtomicBool,
        fenced: watch::Sender<bool>,
    },
    Shared(Arc<MembershipShared>),
}

/// The shared parts of one replica's tasks.
pub(super) struct MembershipShared {
    pub me: ReplicaId,
    pub store: Arc<dyn ClusterStore>,
    pub clock: Arc<dyn Clock>,
    pub ids: Arc<dyn Ids>,
    pub moved: Arc<dyn Fn() -> bool + Send + Sync>,
    pub replica_ttl: Duration,
    pub wall: Arc<WallCheck>,
    pub hand_overs: HandOvers,
    pub log_throttles: MembershipLogThrottles,
    /// Wakes the rounds for a read now.
    pub sooner: Notify,
    /// Changes with every read of the rows.
    pub reads: watch::Sender<u64>,
    /// Replicas that are being declared down.
    pub declaring: watch::Sender<BTreeSet<ReplicaId>>,
    /// Ends its tasks.
    pub ended: watch::Sender<bool>,
    fenced: watch::Sender<bool>,
    published: Published,
    lease: Mutex<LeaseLogged>,
    observation: Mutex<Observation>,
}

/// Throttles for faults that may last.
#[derive(Default)]
pub(super) struct MembershipLogThrottles {
    pub heartbeat: LogThrottle,
    pub read: LogThrottle,
    pub stuck: LogThrottle,
    pub come_back: LogThrottle,
    pub declare: LogThrottle,
    pub hand_overs: LogThrottle,
    pub store_clock: LogThrottle,
    pub forget: LogThrottle,
}

struct LeaseLogged {
    rules: ReplicaLease,
    /// The last published status.
    last: Status,
}

impl Membership {
    /// A replica alone on its store, which proves every other one gone: it is sure until it stops.
    pub fn alone(id: ReplicaId) -> Arc<Membership> {
        Arc::new(Membership {
            id,
            kind: MembershipKind::Alone {
                stopped: AtomicBool::new(false),
                fenced: watch::Sender::new(false),
            },
        })
    }

    pub(super) fn of(shared: Arc<MembershipShared>) -> Arc<Membership> {
        Arc::new(Membership {
            id: shared.me,
            kind: MembershipKind::Shared(shared),
        })
    }

    /// The id of this replica.
    pub fn id(&self) -> ReplicaId {
        self.id
    }

    /// Whether this replica may answer (H2). Ask after all that the answer depends on was acknowledged, and before the answer
    /// goes out. Costs one read of the clock.
    pub fn is_sure(&self) -> Result<(), NotSure> {
        self.sure_until().map(|_| ())
    }

    /// The end of being sure without another round, on CLOCK_BOOTTIME; `Duration::MAX` for a replica alone on its store.
    pub fn sure_until(&self) -> Result<Duration, NotSure> {
        match &self.kind {
            MembershipKind::Alone { stopped, .. } => match stopped.load(Ordering::SeqCst) {
                true => Err(NotSure::Stopped),
                false => Ok(Duration::MAX),
            },
            MembershipKind::Shared(shared) => shared.sure_until(),
        }
    }

    /// Becomes true once this replica is fenced, for good. The process must drop its memory and start another replica.
    pub fn fenced(&self) -> watch::Receiver<bool> {
        match &self.kind {
            MembershipKind::Alone { fenced, .. } => fenced.subscribe(),
            MembershipKind::Shared(shared) => shared.fenced.subscribe(),
        }
    }

    /// The presence of a replica by the latest read.
    pub fn presence(&self, id: ReplicaId) -> Presence {
        match &self.kind {
            _ if id == self.id => Presence::Local,
            MembershipKind::Alone { .. } => Presence::Down,
            MembershipKind::Shared(shared) => shared.observation().presence(id),
        }
    }

    /// The presence of a replica. An unknown one, which may be new, is looked up by a read that begins now. Still `Unsure` if the
    /// store does not answer within 2 s.
    pub async fn presence_after_read(&self, id: ReplicaId) -> Presence {
        match &self.kind {
            MembershipKind::Alone { .. } => self.presence(id),
            MembershipKind::Shared(shared) => shared.presence_after_read(id).await,
        }
    }

    /// The other live replicas.
    pub fn peers(&self) -> Vec<Arc<Peer>> {
        match &self.kind {
            MembershipKind::Alone { .. } => Vec::new(),
            MembershipKind::Shared(shared) => shared.observation().peers(),
        }
    }

    /// The replica that should be the home of a key without one (H8): from this zone if possible, else from all. Restarts move
    /// nothing. No zone: empty.
    pub fn ranked(&self, key: NameHash, zone: &str) -> Ranked {
        match &self.kind {
            MembershipKind::Alone { .. } => Ranked::Local,
            MembershipKind::Shared(shared) => shared.observation().ranked(key, zone),
        }
    }

    /// As [`Membership::ranked`] among the others: the next home of a key that this replica hands over.
    pub fn next_ranked(&self, key: NameHash, zone: &str) -> Option<Arc<Peer>> {
        match &self.kind {
            MembershipKind::Alone { .. } => None,
            MembershipKind::Shared(shared) => shared.observation().next_ranked(key, zone),
        }
    }

    /// A replica, perhaps this one, is about to stop: it is ranked no more while there is another one. It keeps its keys until it
    /// hands them over.
    pub fn note_leaving(&self, id: ReplicaId) {
        match &self.kind {
            MembershipKind::Alone { .. } => {}
            MembershipKind::Shared(shared) => shared.observation().note_leaving(id),
        }
    }

    /// Whether a replica is down by its row, so that its keys and sessions may be taken over. A suspected one is declared down
    /// first; for an unknown one the rows are read. `false` for a live one.
    ///
    /// An error leaves it open: ask again. Takes at most 13 s, if the store does not answer.
    pub async fn declare_down(&self, id: ReplicaId) -> Result<bool, StoreError> {
        match &self.kind {
            MembershipKind::Alone { .. } => Ok(id != self.id),
            MembershipKind::Shared(shared) => shared.declare_down(id).await,
        }
    }

    /// Stops this replica: it is not sure from here on, and its row says stopped, so that others take over at once. Call it last,
    /// after all answers and the hand-over of live entries. Takes at most 11 s; after an error others may have to declare it down
    /// first.
    pub async fn stop(&self) -> Result<(), StoreError> {
        match &self.kind {
            MembershipKind::Alone { stopped, .. } => {
                stopped.store(true, Ordering::SeqCst);
                Ok(())
            }
            MembershipKind::Shared(shared) => shared.stop().await,
        }
    }

    /// Whether the wall clock of this machine differs from the store's by more than a minute, or was set by as much since their
    /// comparison: then it must make no fence (I2).
    pub fn clock_off(&self) -> bool {
        match &self.kind {
            MembershipKind::Alone { .. } => false,
            MembershipKind::Shared(shared) => shared
                .wall
                .is_off(shared.clock.wall_us(), shared.clock.boot()),
        }
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        if let MembershipKind::Shared(shared) = &self.kind {
            shared.ended.send_replace(true);
        }
    }
}

/// The parts of an announced replica.
pub(super) struct Announced {
    pub me: ReplicaId,
    pub store: Arc<dyn ClusterStore>,
    pub clock: Arc<dyn Clock>,
    pub ids: Arc<dyn Ids>,
    pub moved: Arc<dyn Fn() -> bool + Send + Sync>,
    pub replica_ttl: Duration,
    pub wall: Arc<WallCheck>,
    pub hand_overs: HandOvers,
    pub lease: ReplicaLease,
    pub observation: Observation,
}

impl MembershipShared {
    pub fn new(mut announced: Announced) -> Arc<MembershipShared> {
        let status = announced.lease.status(announced.clock.boot());
        let shared = Arc::new(MembershipShared {
            me: announced.me,
            store: announced.store,
            clock: announced.clock,
            ids: announced.ids,
            moved: announced.moved,
            replica_ttl: announced.replica_ttl,
            wall: announced.wall,
            hand_overs: announced.hand_overs,
            log_throttles: MembershipLogThrottles::default(),
            sooner: Notify::new(),
            reads: watch::Sender::new(0),
            declaring: watch::Sender::default(),
            ended: watch::Sender::new(false),
            fenced: watch::Sender::new(false),
            published: Published::new(),
            lease: Mutex::new(LeaseLogged {
                rules: announced.lease,
                last: status,
            }),
            observation: Mutex::new(announced.observation),
        });
        shared.published.set(status);
        shared
    }

    pub fn observation(&self) -> MutexGuard<'_, Observation> {
        self.observation.lock()
    }

    pub fn sure_until(&self) -> Result<Duration, NotSure> {
        self.published.sure_until(self.clock.boot())
    }

    /// Hands an event to the rules of the lease, and publishes the result.
    pub fn judge<T>(&self, event: impl FnOnce(&mut ReplicaLease, Duration) -> T) -> T {
        let mut lease = self.lease.lock();
        // The clock is read after the event happened.
        let came = event(&mut lease.rules, self.clock.boot());
        let status = lease.rules.status(self.clock.boot());
        self.published.set(status);
        let last = std::mem::replace(&mut lease.last, status);
        drop(lease);
        self.make_known(last, status);
        came
    }

    fn make_known(&self, last: Status, status: Status) {
        let replica = self.me;
        match (last, status) {
            (Status::SureUntil(_), Status::Silent) => {
                tracing::warn!(%replica, "no heartbeat acknowledged in time: this replica answers no calls until its store acknowledges one");
            }
            (Status::Silent, Status::SureUntil(_)) => {
                tracing::info!(%replica, "heartbeats acknowledged again: answering");
            }
            (Status::SureUntil(_) | Status::Silent, Status::Fenced(by)) => {
                tracing::error!(%replica, %by, "this replica is fenced for good");
                self.fenced.send_replace(true);
                self.ended.send_replace(true);
            }
            (_, Status::Stopped) => {
                self.ended.send_replace(true);
            }
            (Status::SureUntil(_) | Status::Fenced(_) | Status::Stopped, _)
            | (Status::Silent, Status::Silent) => {}
        }
    }

    pub async fn presence_after_read(&self, id: ReplicaId) -> Presence {
        let mut reads = self.reads.subscribe();
        let known = self.observation().presence(id);
        if known != Presence::Unsure {
            return known;
        }
        self.sooner.notify_one();
        let is_known = |_: &u64| self.observation().presence(id) != Presence::Unsure;
        tokio::select! {
            biased;
            // The sender lives as long as `self`.
            _ = reads.wait_for(is_known) => {}
            () = self.clock.sleep(GIVEN_UP_AFTER) => {}
        }
        self.observation().presence(id)
    }
}
