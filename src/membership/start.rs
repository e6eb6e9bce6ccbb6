//! A replica joins its service: it reads the rows of the others, and announces itself.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;

use super::hand_overs::{HandOvers, OpenHandOver};
use super::lease::{ReplicaLease, safe_part};
use super::observation::Observation;
use super::rounds;
use super::shell::{Announced, Membership, MembershipShared};
use super::wall_check::WallCheck;
use super::within::{GIVEN_UP_AFTER, within};
use crate::clock::{Clock, Ids};
use crate::lock::ReplicaId;
use crate::store::{ClusterStore, ReplicaRow, ReplicaState, StateSwap, StoreError};

/// The replica TTL unless configured (H12).
pub const REPLICA_TTL: Duration = Duration::from_secs(5);
/// The shortest replica TTL for any caller: a process without progress for this time counts as hung. The setting `peers.ttl` is
/// at least 2 s: config/peers.rs.
pub const REPLICA_TTL_MIN: Duration = Duration::from_secs(1);
/// The longest replica TTL.
pub const REPLICA_TTL_MAX: Duration = Duration::from_secs(600);

/// The parts of a replica.
#[derive(Clone)]
pub struct Options {
    /// The store that tells replicas of each other.
    pub store: Arc<dyn ClusterStore>,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Ids.
    pub ids: Arc<dyn Ids>,
    /// Its configured name, unique and kept over restarts: keys are ranked by it (H8).
    pub name: String,
    /// Its zone; empty for none.
    pub zone: String,
    /// Its address for clients.
    pub address: String,
    /// Its address for other replicas, as `host:port`; empty if it takes no calls of them.
    pub peer_address: String,
    /// The version of the program.
    pub version: String,
    /// The time without a heartbeat until others declare it down; it answers for 90 % of that. It waits for others at least this
    /// long.
    pub replica_ttl: Duration,
    /// Whether the process made progress within the last second: a hanging replica must not send heartbeats, or nobody would take
    /// over from it.
    pub moved: Arc<dyn Fn() -> bool + Send + Sync>,
    /// Takes the hand-over requests to this replica. Those without room are read again with the next round.
    pub hand_overs: mpsc::Sender<OpenHandOver>,
}

/// A replica TTL out of bounds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("replica_ttl is {0:?}; allowed are 1 s to 600 s")]
pub struct InvalidReplicaTtl(pub Duration);

/// Why a replica was not started. It serves nothing; try again.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StartError {
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// It was announced so late that others may soon take it for down.
    #[error("the replica could not be announced within 90 % of its replica TTL")]
    TooLate,
}

/// Starts replicas, one after the other. Failed tries share one id, so that they add one row.
pub struct Starter {
    options: Options,
    ttl_ms: u32,
    next: Option<Next>,
}

/// An id under which nothing was served yet.
#[derive(Clone, Copy)]
struct Next {
    id: ReplicaId,
    /// The start of its first announcement; `None` before that. A replica TTL later others may declare it down.
    announced: Option<Duration>,
    /// The heartbeat of its announcement: a new one for each try, since the last one may have been seen.
    heartbeat: u64,
}

impl Starter {
    /// A starter of replicas with these options.
    pub fn new(options: Options) -> Result<Starter, InvalidReplicaTtl> {
        let ttl = options.replica_ttl;
        if !(REPLICA_TTL_MIN..=REPLICA_TTL_MAX).contains(&ttl) {
            return Err(InvalidReplicaTtl(ttl));
        }
        let ttl_ms = u32::try_from(ttl.as_millis()).map_err(|_| InvalidReplicaTtl(ttl))?;
        Ok(Starter {
            options,
            ttl_ms,
            next: None,
        })
    }

    /// Replaces the options for the next try: for a store that was opened anew.
    pub fn set_options(&mut self, options: Options) -> Result<(), InvalidReplicaTtl> {
        let Starter {
            options, ttl_ms, ..
        } = Starter::new(options)?;
        (self.options, self.ttl_ms) = (options, ttl_ms);
        Ok(())
    }

    /// Starts a replica: reads the others, compares clocks, announces it, and begins its rounds. After a success the next call
    /// starts another one under a new id: for a process with a fenced replica.
    pub async fn start(&mut self) -> Result<Arc<Membership>, StartError> {
        let Options { store, clock, .. } = self.options.clone();
        let clock_here = &*clock;
        // It keeps to the announced TTL.
        let replica_ttl = Duration::from_millis(self.ttl_ms.into());
        let mut next = self.next_id(replica_ttl).await?;
        let mut row = self.row(next);
        let mut observation = Observation::new(&row);
        // First all that may fail without a trace.
        let read = observation.begin_read(clock.boot());
        let rows = within(clock_here, store.list_replicas()).await?;
        observation.saw(read, clock.boot(), &rows);
        let wall = WallCheck::default();
        rounds::check_clock(&*store, clock_here, &wall).await?;

        let announced = *next.announced.get_or_insert(clock.boot());
        next.heartbeat += 1;
        row.heartbeat = next.heartbeat;
        self.next = Some(next);
        within(clock_here, store.announce_replica(&row)).await?;
        if clock.boot() >= announced.saturating_add(safe_part(replica_ttl)) {
            return Err(StartError::TooLate);
        }
        // From here on it may serve, and its end ends its id.
        self.next = None;
        let shared = MembershipShared::new(Announced {
            me: row.id,
            ids: Arc::clone(&self.options.ids),
            moved: Arc::clone(&self.options.moved),
            replica_ttl,
            wall: Arc::new(wall),
            hand_overs: HandOvers::new(
                Arc::clone(&store),
                Arc::clone(&clock),
                self.options.hand_overs.clone(),
            ),
            store,
            clock,
            lease: ReplicaLease::announced(announced, row.heartbeat, replica_ttl),
            observation,
        });
        rounds::begin(&shared);
        Ok(Membership::of(shared))
    }

    /// The id of the last try, if nobody can have declared it down. Otherwise its row is ended first: so repeated tries leave one
    /// row at a time.
    async fn next_id(&mut self, replica_ttl: Duration) -> Result<Next, StoreError> {
        let now = self.options.clock.boot();
        if let Some(next) = self.next {
            let is_young = |at: Duration| now < at.saturating_add(safe_part(replica_ttl));
            if next.announced.is_none_or(is_young) {
                return Ok(next);
            }
            self.end(next.id).await?;
        }
        let next = Next {
            id: ReplicaId(self.options.ids.uuid()),
            announced: None,
            heartbeat: 0,
        };
        self.next = Some(next);
        Ok(next)
    }

    /// Ends a replica that never served.
    async fn end(&self, id: ReplicaId) -> Result<(), StoreError> {
        let store = &self.options.store;
        let swap = store.swap_state(
            id,
            ReplicaState::Up(ReplicaLease::FIRST_INCARNATION),
            ReplicaState::Stopped,
        );
        let came = tokio::select! {
            biased;
            came = swap => came,
            () = self.options.clock.sleep(GIVEN_UP_AFTER) => {
                StateSwap::Unknown(StoreError::Unavailable("no answer in time".to_owned()))
            }
        };
        match came {
            StateSwap::Applied | StateSwap::Conflict(_) => Ok(()),
            StateSwap::Unknown(error) | StateSwap::NotStarted(error) => Err(error),
        }
    }

    fn row(&self, next: Next) -> ReplicaRow {
        let options = &self.options;
        ReplicaRow {
            id: next.id,
            name: options.name.clone(),
            zone: options.zone.clone(),
            address: options.address.clone(),
            peer_address: options.peer_address.clone(),
            version: options.version.clone(),
            started_at_ms: options.clock.wall_ms(),
            ttl_ms: self.ttl_ms,
            heartbeat: next.heartbeat,
            state: ReplicaState::Up(ReplicaLease::FIRST_INCARNATION),
        }
    }
}
