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
/// The shortest replica TTL, for any caller: a process counts as hung once it did not move for so long. What may be set
/// (`peers.ttl`) is no shorter than 2 s: config/peers.rs.
pub const REPLICA_TTL_MIN: Duration = Duration::from_secs(1);
/// The longest replica TTL.
pub const REPLICA_TTL_MAX: Duration = Duration::from_secs(600);

/// What a replica is made of.
#[derive(Clone)]
pub struct Options {
    /// Where replicas know of each other.
    pub store: Arc<dyn ClusterStore>,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Ids.
    pub ids: Arc<dyn Ids>,
    /// Its configured name, which stays over restarts and which no other one has: keys are ranked by it (H8).
    pub name: String,
    /// Where it runs; empty for nowhere in particular.
    pub zone: String,
    /// Where it serves clients.
    pub address: String,
    /// Where it takes calls of other replicas, as `host:port`; empty where it takes none.
    pub peer_address: String,
    /// The version of the program.
    pub version: String,
    /// For how long it may send no heartbeat before others declare it down; it answers for 90 % of that. Others are waited
    /// for so long at least.
    pub replica_ttl: Duration,
    /// Whether the process moved within the last second: a replica that hangs must not send heartbeats, or nobody would take
    /// over from it.
    pub moved: Arc<dyn Fn() -> bool + Send + Sync>,
    /// Takes the hand-over requests to this replica. What finds no room is read again with the next round.
    pub hand_overs: mpsc::Sender<OpenHandOver>,
}

/// A replica TTL that cannot be kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("replica_ttl must be 1 s to 600 s: {0:?} was given")]
pub struct InvalidReplicaTtl(pub Duration);

/// Why a replica was not started. It serves nothing; try again.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StartError {
    /// The store did not do its part.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// It was announced, and so late that others may take it for down soon.
    #[error("the replica could not be announced within 90 % of its replica TTL")]
    TooLate,
}

/// Starts replicas, one after the other: tries to start one that fail share its id, so that they add one row.
pub struct Starter {
    options: Options,
    ttl_ms: u32,
    next: Option<Next>,
}

/// The id under which nothing was served yet.
#[derive(Clone, Copy)]
struct Next {
    id: ReplicaId,
    /// When its announcement was sent first; `None` if it never was. From a replica TTL after that on others may declare
    /// it down.
    announced: Option<Duration>,
    /// The number of the heartbeat that announces it: another one at each try, for the last one may have been seen.
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

    /// The same by other ways, for the next try: to a store that was opened anew.
    pub fn set_options(&mut self, options: Options) -> Result<(), InvalidReplicaTtl> {
        let Starter {
            options, ttl_ms, ..
        } = Starter::new(options)?;
        (self.options, self.ttl_ms) = (options, ttl_ms);
        Ok(())
    }

    /// Starts a replica: reads the others, compares clocks, announces it, and begins its rounds. Once one was started, the
    /// next call starts another one, under a new id: for a process whose replica was fenced.
    pub async fn start(&mut self) -> Result<Arc<Membership>, StartError> {
        let Options { store, clock, .. } = self.options.clone();
        let clock_here = &*clock;
        // What it announces is what it keeps to.
        let replica_ttl = Duration::from_millis(self.ttl_ms.into());
        let mut next = self.next_id(replica_ttl).await?;
        let mut row = self.row(next);
        let mut observation = Observation::new(&row);
        // First what may fail without a trace.
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
        // From here on it may serve, and whatever ends it ends its id.
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

    /// The id of the last try, where nobody can have declared it down. Else its row is ended first, so that a process
    /// that tries on leaves one at a time.
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
