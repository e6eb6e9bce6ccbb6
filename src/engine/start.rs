//! Start and stop of a replica, and its restart under another id.

use std::collections::BTreeSet;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::mpsc;

use super::api::EngineError;
use super::calls::Engine;
use super::commits::Commits;
use super::current::{Current, EngineShared};
use super::hand_over::KeyHandOvers;
use super::key_io::KeyIo;
use super::keys::Keys;
use super::limits::HAND_OVERS_MAX;
use super::local::Local;
use super::metrics::QueueGauges;
use super::packing::Packing;
use super::peers::Peers;
use super::recover::{self, LeftKeys};
use super::replica::Replica;
use super::reports::Reports;
use super::request_sent::KeyRequests;
use super::sessions::{self, AttachedKeys, OwnRows, Sessions};
use super::shell::KeyShell;
use super::sweep::Sweep;
use super::tasks;
use super::tasks::LastTick;
use super::time::Time;
use super::values::Values;
use crate::clock::{Clock, Ids};
use crate::key::machine::KeyLimits;
use crate::limits::Limits;
use crate::lock::{CoreLimits, ReplicaId, TableName};
use crate::log_throttle::LogThrottle;
use crate::membership::{self, Membership, OpenHandOver, Starter};
use crate::store::{ClusterStore, ReplicaRow, ReplicaState, Store};

/// The divisor of the time for the hand-over of keys in use, for notifying the other replicas. A replica that hangs is left out.
const LEAVING_PART: u32 = 4;

/// The parts and settings of an engine.
pub struct EngineOptions {
    /// The store.
    pub store: Store,
    /// The clocks.
    pub clock: Arc<dyn Clock>,
    /// The source of ids and random numbers.
    pub ids: Arc<dyn Ids>,
    /// Calls to other replicas.
    pub peers: Arc<dyn Peers>,
    /// The tables besides `default`.
    pub tables: Vec<TableName>,
    /// The tables with write-back (H5), also on a store of this process alone.
    pub write_back: BTreeSet<TableName>,
    /// The limits in force.
    pub limits: Limits,
    /// The configured name, the same after a restart; empty: the id.
    pub name: String,
    /// The configured zone; empty: none.
    pub zone: String,
    /// The address of its gRPC service, for operators.
    pub address: String,
    /// The address for calls of other replicas; empty: none.
    pub peer_address: String,
    /// The packing of unused keys. Not a setting of users: tests pack at once.
    pub packing: Packing,
    /// The time without heartbeats before keys may be taken over: by others from this replica, and by this replica from a replica
    /// with a shorter TTL.
    pub replica_ttl: Duration,
}

pub use crate::membership::REPLICA_TTL;

/// A process without a tick for this time hangs and sends no heartbeat. Ticks are 50 ms apart.
const TICKED_WITHIN: Duration = Duration::from_secs(1);
/// Hand-over requests in the queue.
const REQUESTS_MAX: usize = 256;

impl Engine {
    /// An engine before its start: calls fail with `Unavailable` and this reason.
    pub fn waiting(tables: Vec<TableName>, limits: Limits, why: &str) -> Engine {
        let mut tables: BTreeSet<TableName> = tables.into_iter().collect();
        tables.insert(TableName::default_table());
        Engine {
            shared: Arc::new(EngineShared::waiting(tables, limits, why)),
        }
    }

    /// Starts a replica: announces it, or keeps the sessions of the last process if it has the store alone, and begins to
    /// watch leases. Errors come from the store; nothing is served then.
    pub async fn start(options: EngineOptions) -> Result<Engine, EngineError> {
        let engine = Engine::waiting(
            options.tables.clone(),
            options.limits.clone(),
            "this replica is starting",
        );
        engine.begin(options).await?;
        Ok(engine)
    }

    /// Starts a waiting engine. Its tables and limits stay.
    pub async fn begin(&self, options: EngineOptions) -> Result<(), EngineError> {
        if self.shared.is_stopped() {
            return Err(EngineError::Stopping);
        }
        let replica = self.shared.join(&options).await?;
        if !self.shared.set(Current::Serving(Arc::clone(&replica))) {
            end(&replica.local).await;
            return Err(EngineError::Stopping);
        }
        if !replica.local.is_alone() {
            let shared = Arc::downgrade(&self.shared);
            tokio::spawn(start_over(shared, options, replica));
        }
        Ok(())
    }

    /// Returns once all keys of the last process are taken over, if this one has the store alone. Calls are served before.
    pub async fn recovered(&self) {
        if let Ok(replica) = self.current() {
            let mut recovered = replica.local.recovered.subscribe();
            // The sender lives in `replica`.
            let _ = recovered.wait_for(|recovered| *recovered).await;
        }
    }

    /// Hands over the keys in use, then the sessions, before [`Engine::stop`], while calls are served. Keys have two thirds of
    /// `within`.
    pub async fn hand_over_in_use(&self, within: Duration) {
        let Ok(replica) = self.current() else {
            return;
        };
        let clock = &replica.local.clock;
        let within = within.min(HAND_OVERS_MAX);
        let until = clock.boot().saturating_add(within);
        let left = || until.saturating_sub(clock.boot());
        if within.is_zero() {
            return;
        }
        let leaving = clock.boot();
        let to = replica.hand_overs.note_leaving(within / LEAVING_PART).await;
        if to.is_empty() {
            return;
        }
        let keys_within = left() / 3 * 2;
        let keys = replica
            .hand_overs
            .hand_over_in_use(&to, leaving, keys_within);
        keys.await;
        sessions::hand_over_all(&replica.sessions, &to, left()).await;
    }

    /// Hands the keys with live entries over after [`Engine::stop`], and tells the others that this replica is gone. If a lock
    /// is left that only its memory knows, they wait for the replica TTL instead (H7). To be called last, when all calls were
    /// answered: nothing is answered after this. Keys have half of `within`, so that time is left to tell the others.
    pub async fn leave(&self, within: Duration) {
        let last = self.shared.stopped();
        let Some(last) = last else {
            return;
        };
        last.hand_overs.hand_over_all(within / 2).await;
        if last.local.is_alone() {
            return;
        }
        if last.hand_overs.keeps_volatile().await {
            // The others may take these locks over only once their promises have passed.
            tracing::warn!(
                "could not hand all locks over; the other replicas wait for the replica TTL"
            );
            last.local.end();
            return;
        }
        end(&last.local).await;
    }
}

/// Ends a replica, and tells the others.
async fn end(local: &Local) {
    local.end();
    if let Err(error) = local.membership.stop().await {
        tracing::warn!(%error, "could not mark this replica as stopped; the other replicas wait for its TTL");
    }
}

/// Restarts as a new replica each time the current one is fenced (H2).
async fn start_over(shared: Weak<EngineShared>, options: EngineOptions, first: Arc<Replica>) {
    let mut last = first;
    loop {
        let mut fenced = last.local.membership.fenced();
        // The sender lives in `last`.
        let _ = fenced.wait_for(|fenced| *fenced).await;
        last.local.end();
        let Some(engine) = shared.upgrade() else {
            return;
        };
        if engine.is_stopped() {
            return;
        }
        tracing::error!(replica = %last.local.id, "this replica was fenced: it restarts under a new id");
        engine.set(Current::Waiting {
            why: EngineError::Fenced.to_string(),
            last: Some(Arc::clone(&last)),
        });
        let mut tries = 0;
        let log_throttle = LogThrottle::default();
        last = loop {
            if engine.is_stopped() {
                return;
            }
            match engine.join(&options).await {
                Ok(replica) => break replica,
                Err(error) => {
                    if let Some(times) = log_throttle.met(options.clock.boot(), &error.to_string())
                    {
                        tracing::warn!(%error, times, "this replica could not restart yet; retrying");
                    }
                    last.local.back_off(tries).await;
                    tries += 1;
                }
            }
        };
        if !engine.set(Current::Serving(Arc::clone(&last))) {
            return end(&last.local).await;
        }
        tracing::info!(replica = %last.local.id, "restarted");
    }
}

impl EngineShared {
    /// Starts a new replica.
    async fn join(&self, options: &EngineOptions) -> Result<Arc<Replica>, EngineError> {
        let last_tick = LastTick::new(Arc::clone(&options.clock));
        let (membership, requests) = match &options.store.cluster {
            None => (Membership::alone(ReplicaId(options.ids.uuid())), None),
            Some(cluster) => {
                let (membership, requests) = self.announce(options, cluster, &last_tick).await?;
                (membership, Some(requests))
            }
        };
        // After the announcement: a command that raises the floor looks for listed replicas after that.
        let fence_floor = options.store.keys.fence_floor().await;
        let fence_floor = fence_floor.map_err(EngineError::of_store)?;
        if fence_floor > options.clock.wall_us() {
            tracing::info!(
                fence_floor,
                "this store was restored: its fencing tokens start above all earlier ones"
            );
        }
        let replica = Arc::new(self.replica(options, membership, fence_floor));
        let shell = || Arc::clone(&replica.shell);
        let sessions = || Arc::clone(&replica.sessions);
        self.metrics.replica_starts.inc();
        let packed = self.metrics.packed_keys.clone();
        tokio::spawn(tasks::pack(shell(), options.packing, packed));
        if let Some(requests) = requests {
            tokio::spawn(tasks::alarms(shell(), sessions(), last_tick));
            tokio::spawn(tasks::requests(shell(), sessions(), requests));
            tokio::spawn(sessions::watch(sessions()));
            let sweep = Sweep {
                shell: shell(),
                sessions: sessions(),
                keys: Arc::clone(&options.store.keys),
                tables: self.tables.clone(),
            };
            tokio::spawn(sweep.run());
            return Ok(replica);
        }
        let kept = recover::keep_sessions(&replica.sessions).await;
        let kept = kept.inspect_err(|_| {
            // No caller gets this replica, so nothing else can end its tasks.
            replica.local.stop();
        })?;
        if kept > 0 {
            tracing::info!(
                sessions = kept,
                "took over the sessions of the last process"
            );
        }
        // After all sessions were read, so that none expires by the time of the read.
        tokio::spawn(tasks::alarms(shell(), sessions(), last_tick));
        let left = LeftKeys {
            shell: shell(),
            sessions: sessions(),
            keys: Arc::clone(&options.store.keys),
            tables: self.tables.clone(),
        };
        tokio::spawn(left.run());
        Ok(replica)
    }

    /// Announces this replica to the others. Failed tries share an id.
    async fn announce(
        &self,
        options: &EngineOptions,
        cluster: &Arc<dyn ClusterStore>,
        last_tick: &LastTick,
    ) -> Result<(Arc<Membership>, mpsc::Receiver<OpenHandOver>), EngineError> {
        let (hand_overs, requests) = mpsc::channel(REQUESTS_MAX);
        let last_tick = last_tick.clone();
        let membership = membership::Options {
            store: Arc::clone(cluster),
            clock: Arc::clone(&options.clock),
            ids: Arc::clone(&options.ids),
            name: options.name.clone(),
            zone: options.zone.clone(),
            address: options.address.clone(),
            peer_address: options.peer_address.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            replica_ttl: options.replica_ttl,
            moved: Arc::new(move || last_tick.is_within(TICKED_WITHIN)),
            hand_overs,
        };
        let failed = |why: &dyn std::fmt::Display| EngineError::Unavailable(why.to_string());
        let mut starter = self.starter.lock().await;
        let starter = match &mut *starter {
            Some(starter) => {
                starter
                    .set_options(membership)
                    .map_err(|why| failed(&why))?;
                starter
            }
            none => none.insert(Starter::new(membership).map_err(|why| failed(&why))?),
        };
        let membership = starter.start().await.map_err(|why| failed(&why))?;
        Ok((membership, requests))
    }

    fn replica(
        &self,
        options: &EngineOptions,
        membership: Arc<Membership>,
        fence_floor: u64,
    ) -> Replica {
        let limits = &self.limits;
        let row = row(options, &membership);
        let store = &match options.store.cluster {
            Some(_) => options.store.clone(),
            None => {
                let (rows, replica) = (Arc::clone(&options.store.sessions), membership.id());
                let sessions = Arc::new(OwnRows { rows, replica });
                Store {
                    sessions,
                    ..options.store.clone()
                }
            }
        };
        let local = Arc::new(Local::new(
            membership,
            &options.zone,
            Arc::clone(&options.clock),
            Arc::clone(&options.ids),
            store.cluster.is_none(),
            fence_floor,
        ));
        let time = Arc::new(Time::new(Arc::clone(&options.clock)));
        let commits = Commits::new(options.write_back.clone(), Arc::clone(&self.commits));
        let commits = Arc::new(commits);
        let metrics = || Arc::clone(&self.metrics);
        let peers = || Arc::clone(&options.peers);
        // The shell owns the sessions; these refer to it weakly, or neither would ever be freed.
        let shell = Arc::new_cyclic(|shell: &Weak<KeyShell>| {
            let keys = Weak::clone(shell) as Weak<dyn AttachedKeys>;
            let (local, time) = (Arc::clone(&local), Arc::clone(&time));
            let sessions = Sessions::new(
                Arc::clone(&local),
                Arc::clone(&time),
                store,
                peers(),
                keys,
                limits,
                metrics(),
            );
            let io = KeyIo::new(
                Arc::clone(&local),
                Arc::clone(&commits),
                store,
                metrics(),
                limits.bytes_in_flight_max,
            );
            KeyShell {
                local,
                keys: Keys::new(limits.active_keys_max, self.metrics.forgotten_keys.clone()),
                values: Values::new(limits.remembered_bytes_max),
                time,
                limits: key_limits(limits, store),
                ttl_min: Duration::from_millis(limits.ttl_min_ms.into()),
                commits,
                io: Arc::new(io),
                sessions: Arc::new(sessions),
                reports: Reports::new(
                    Arc::clone(&options.clock),
                    metrics(),
                    QueueGauges::new(&self.tables),
                    Arc::clone(&self.activity),
                    store.cluster.is_none(),
                ),
            }
        });
        Replica {
            local,
            row,
            sessions: Arc::clone(&shell.sessions),
            hand_overs: Arc::new(KeyHandOvers::new(Arc::clone(&shell), peers())),
            requests: Arc::new(KeyRequests::new(Arc::clone(&shell), store)),
            shell,
            store: store.clone(),
        }
    }
}

fn row(options: &EngineOptions, membership: &Membership) -> ReplicaRow {
    ReplicaRow {
        id: membership.id(),
        name: options.name.clone(),
        zone: options.zone.clone(),
        address: options.address.clone(),
        peer_address: options.peer_address.clone(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        started_at_ms: options.clock.wall_ms(),
        ttl_ms: u32::try_from(options.replica_ttl.as_millis()).unwrap_or(u32::MAX),
        heartbeat: 0,
        state: ReplicaState::Up(1),
    }
}

fn key_limits(limits: &Limits, store: &Store) -> KeyLimits {
    KeyLimits {
        core: CoreLimits {
            ahead_us_max: store.data.ahead_us_max(),
            ..limits.core()
        },
        calls_max: limits.calls_per_key_max,
        waits_per_lock_ref_max: limits.waits_per_lock_ref_max,
        critical_calls_max: limits.critical_calls_per_lock_ref_max,
        known_value_bytes_max: limits.remembered_value_bytes_max,
        session_claim_ttl: Duration::from_millis(u64::from(limits.ttl_max_ms)),
    }
}
