//! How a replica starts, stops, and starts anew.

use std::collections::BTreeSet;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, Weak};
use std::time::Duration;

use tokio::sync::{Notify, Semaphore};

use super::activity::Activity;
use super::alarms;
use super::api::EngineError;
use super::clock::{Clock, Ids};
use super::inner::{Counters, Inner, LogThrottles, OpenHandOvers};
use super::keys::Keys;
use super::leases::Leases;
use super::log_throttle::LogThrottle;
use super::members::Members;
use super::peers::Peers;
use super::recover::recover;
use super::remote::{self, RemoteSessions};
use super::routes::failed;
use super::sessions::EVICTS_AT_ONCE;
use super::wall_check::WallCheck;
use super::{Engine, heartbeats, sweep};
use crate::limits::Limits;
use crate::lock::{CoreLimits, ReplicaId, TableName};
use crate::session::Validity;
use crate::store::{ReplicaRow, Store, StoreError};

/// What an engine is made of.
pub struct EngineOptions {
    /// Where states and data are kept.
    pub store: Arc<dyn Store>,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Ids.
    pub ids: Arc<dyn Ids>,
    /// How other replicas are called.
    pub peers: Arc<dyn Peers>,
    /// The tables besides `default`.
    pub tables: Vec<TableName>,
    /// The limits in force.
    pub limits: Limits,
    /// Where this replica serves gRPC, for operators.
    pub address: String,
    /// Where it takes calls of other replicas; empty where there are none.
    pub peer_address: String,
    /// How long a replica that sends no heartbeat is waited for, before what it is home to may be taken over: this one
    /// by the others, and another one that asks for less by this one.
    pub replica_ttl: Duration,
}

/// The replica TTL unless configured.
pub const REPLICA_TTL: Duration = Duration::from_secs(10);
/// How many homes may be being notified of ends at once.
const NOTIFYING_MAX: u32 = 1_024;
/// For how long a replica that stops waits until they have heard.
const ANSWERED_WITHIN: Duration = Duration::from_secs(1);
/// How often it is tried to say that this replica stopped.
const HAND_OVER_TRIES: u32 = 4;

/// What stays the same for as long as the process runs, and the replica that it is now.
pub(super) struct Shared {
    pub limits: Limits,
    pub tables: BTreeSet<TableName>,
    pub counters: Arc<Counters>,
    pub activity: Arc<Activity>,
    current: RwLock<Current>,
    /// The id under which nothing was served yet, and which the next try to start uses.
    next: Mutex<Option<NextId>>,
}

/// An id that tries to start share, so that they add one row.
#[derive(Clone, Copy)]
struct NextId {
    id: ReplicaId,
    /// When it may have been announced first. From a replica TTL after that on others may take it for down.
    announced: Duration,
    /// The number of the heartbeat that announces it: another one at each try, for the last one may have been seen.
    heartbeat: u64,
}

enum Current {
    /// No replica yet, or no longer; why not.
    Waiting {
        why: String,
        last: Option<Arc<Inner>>,
    },
    Serving(Arc<Inner>),
    Stopped(Option<Arc<Inner>>),
}

impl NextId {
    fn fresh(options: &EngineOptions) -> NextId {
        NextId {
            id: ReplicaId(options.ids.uuid()),
            announced: options.clock.boot(),
            heartbeat: 1,
        }
    }
}

impl Shared {
    /// False if the engine was stopped: whoever stops it stops all that it may become.
    fn set(&self, next: Current) -> bool {
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        let goes_on = !matches!(*current, Current::Stopped(_));
        if goes_on {
            *current = next;
        }
        goes_on
    }

    fn is_stopped(&self) -> bool {
        let current = self.current.read().unwrap_or_else(PoisonError::into_inner);
        matches!(*current, Current::Stopped(_))
    }

    pub(super) fn stop(&self) {
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        let last = match &*current {
            Current::Waiting { last, .. } => last.clone(),
            Current::Serving(inner) => Some(Arc::clone(inner)),
            Current::Stopped(_) => return,
        };
        if let Some(inner) = &last {
            inner.stopping.send_replace(true);
        }
        *current = Current::Stopped(last);
    }
}

impl Engine {
    /// An engine that waits to be started: calls fail with `Unavailable` and this reason.
    pub fn waiting(tables: Vec<TableName>, limits: Limits, why: &str) -> Engine {
        let mut tables: BTreeSet<TableName> = tables.into_iter().collect();
        tables.insert(TableName::default_table());
        Engine {
            shared: Arc::new(Shared {
                limits,
                tables,
                counters: Arc::default(),
                activity: Arc::default(),
                current: RwLock::new(Current::Waiting {
                    why: why.to_owned(),
                    last: None,
                }),
                next: Mutex::default(),
            }),
        }
    }

    /// The replica that this is now.
    pub(super) fn inner(&self) -> Result<Arc<Inner>, EngineError> {
        let current = self
            .shared
            .current
            .read()
            .unwrap_or_else(PoisonError::into_inner);
        match &*current {
            Current::Waiting { why, .. } => Err(EngineError::Unavailable(why.clone())),
            Current::Serving(inner) => {
                inner.alive()?;
                Ok(Arc::clone(inner))
            }
            Current::Stopped(_) => Err(EngineError::Stopping),
        }
    }

    /// Starts a replica: announces it, takes over what older ones left, and begins to watch leases.
    /// What went wrong is of the store; nothing is served then.
    pub async fn start(options: EngineOptions) -> Result<Engine, EngineError> {
        let engine = Engine::waiting(
            options.tables.clone(),
            options.limits.clone(),
            "this replica is starting",
        );
        engine.begin(options).await?;
        Ok(engine)
    }

    /// Starts an engine that waits. Its tables and limits stay the ones that it was made with.
    pub async fn begin(&self, options: EngineOptions) -> Result<(), EngineError> {
        if self.shared.is_stopped() {
            return Err(EngineError::Stopping);
        }
        let inner = self.shared.live(&options).await?;
        if !self.shared.set(Current::Serving(Arc::clone(&inner))) {
            say_stopped(&inner).await;
            return Err(EngineError::Stopping);
        }
        if inner.shared {
            let shared = Arc::downgrade(&self.shared);
            tokio::spawn(start_over(shared, options, inner));
        }
        Ok(())
    }

    /// After [`Engine::stop`]: tells the others that this replica is gone, so that they take its entries over at
    /// once. To be called last, when all calls were answered: from here on nothing is.
    pub async fn hand_over(&self) {
        let last = {
            let current = self.shared.current.read();
            match &*current.unwrap_or_else(PoisonError::into_inner) {
                Current::Stopped(Some(inner)) if inner.shared => Arc::clone(inner),
                Current::Waiting { .. } | Current::Serving(_) | Current::Stopped(_) => return,
            }
        };
        // Homes learn of the ends of their holders while this one is there to tell.
        tokio::select! {
            biased;
            _ = last.telling.acquire_many(NOTIFYING_MAX) => {}
            () = last.clock.sleep(ANSWERED_WITHIN) => {}
        }
        say_stopped(&last).await;
    }
}

fn unavailable(error: StoreError) -> EngineError {
    EngineError::Unavailable(error.to_string())
}

/// Ends a replica, and tells the others.
async fn say_stopped(last: &Inner) {
    last.fence_self();
    if !last.shared {
        return;
    }
    for tries in 0..HAND_OVER_TRIES {
        match heartbeats::send_heartbeat(last, true).await {
            Ok(()) => return,
            Err(error) => {
                tracing::warn!(%error, "could not mark this replica as stopped");
                last.clock.sleep(last.backoff(tries)).await;
            }
        }
    }
}

/// Each time that a replica is fenced, becomes a new one.
async fn start_over(shared: Weak<Shared>, options: EngineOptions, first: Arc<Inner>) {
    let mut last = first;
    loop {
        let mut fenced = last.fenced.subscribe();
        // The sender lives in `last`.
        let _ = fenced.wait_for(|fenced| *fenced).await;
        let Some(engine) = shared.upgrade() else {
            return;
        };
        if engine.is_stopped() {
            return;
        }
        tracing::error!(
            replica = %last.replica,
            "no heartbeat acknowledged within the deadline: fencing this replica, restarting under a new id"
        );
        engine.set(Current::Waiting {
            why: EngineError::CutOff.to_string(),
            last: Some(Arc::clone(&last)),
        });
        let mut tries = 0;
        let log_throttle = LogThrottle::default();
        last = loop {
            if engine.is_stopped() {
                return;
            }
            let begun = async {
                // Nothing is answered in its name any more, so others need not wait until they think so.
                heartbeats::send_heartbeat(&last, true)
                    .await
                    .map_err(failed)?;
                engine.live(&options).await
            };
            match begun.await {
                Ok(inner) => break inner,
                Err(error) => {
                    if let Some(times) = log_throttle.met(options.clock.boot(), &error.to_string())
                    {
                        tracing::warn!(%error, times, "this replica could not restart yet; retrying");
                    }
                    options.clock.sleep(last.backoff(tries)).await;
                    tries += 1;
                }
            }
        };
        if !engine.set(Current::Serving(Arc::clone(&last))) {
            return say_stopped(&last).await;
        }
        tracing::info!(replica = %last.replica, "restarted under a new id");
    }
}

impl Shared {
    fn next(&self) -> MutexGuard<'_, Option<NextId>> {
        self.next.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The id for a try to start. That of the last one where nobody can take it for down yet; else its row is deleted
    /// first, so that there is one at most.
    async fn next_id(&self, options: &EngineOptions, ttl: Duration) -> Result<NextId, EngineError> {
        let known = *self.next();
        let next = match known {
            Some(known)
                if options.clock.boot() <= Validity::shared(known.announced, ttl).alive_until() =>
            {
                NextId {
                    heartbeat: known.heartbeat + 1,
                    ..known
                }
            }
            other => {
                if let Some(old) = other {
                    options
                        .store
                        .forget_replica(old.id)
                        .await
                        .map_err(unavailable)?;
                }
                NextId::fresh(options)
            }
        };
        *self.next() = Some(next);
        Ok(next)
    }

    async fn live(&self, options: &EngineOptions) -> Result<Arc<Inner>, EngineError> {
        let limits = self.limits.clone();
        let shared = !options.store.is_exclusive();
        // What it announces is what it keeps to.
        let ttl_ms = u32::try_from(options.replica_ttl.as_millis()).unwrap_or(u32::MAX);
        let replica_ttl = Duration::from_millis(u64::from(ttl_ms));
        let next = match shared {
            true => self.next_id(options, replica_ttl).await?,
            false => NextId::fresh(options),
        };
        let NextId {
            id: replica,
            announced,
            heartbeat,
        } = next;
        let validity = match shared {
            true => Validity::shared(announced, replica_ttl),
            false => Validity::alone(),
        };
        let leases = Leases::new(Arc::clone(&options.clock), limits.sessions_max, validity);
        let row = ReplicaRow {
            id: replica,
            address: options.address.clone(),
            peer_address: options.peer_address.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            started_at_ms: i64::try_from(options.clock.wall_us() / 1_000).unwrap_or(i64::MAX),
            ttl_ms,
            heartbeat,
            stopped: false,
        };
        let inner = Arc::new(Inner {
            replica,
            row,
            tables: self.tables.clone(),
            core: CoreLimits {
                ahead_us_max: options.store.ahead_us_max(),
                ..limits.core()
            },
            keys: Keys::new(),
            leases: Arc::new(leases),
            shared,
            members: Members::new(replica, replica_ttl),
            remote: RemoteSessions::default(),
            heartbeats: AtomicU64::new(heartbeat),
            heartbeat_sooner: Notify::new(),
            read_sooner: Notify::new(),
            open_hand_overs: OpenHandOvers::default(),
            evicts: Semaphore::new(EVICTS_AT_ONCE),
            telling: Arc::new(Semaphore::new(NOTIFYING_MAX as usize)),
            wall: WallCheck::default(),
            stopping: tokio::sync::watch::Sender::new(false),
            fenced: tokio::sync::watch::Sender::new(false),
            counters: Arc::clone(&self.counters),
            activity: Arc::clone(&self.activity),
            log_throttles: LogThrottles::default(),
            store: Arc::clone(&options.store),
            clock: Arc::clone(&options.clock),
            ids: Arc::clone(&options.ids),
            peers: Arc::clone(&options.peers),
            limits,
        });
        if shared {
            heartbeats::begin(&inner).await.map_err(unavailable)?;
            inner.alive()?;
            // From here on it may serve, and whatever ends it ends its id.
            *self.next() = None;
            tokio::spawn(heartbeats::send_heartbeats(Arc::clone(&inner)));
            tokio::spawn(heartbeats::read_members(Arc::clone(&inner)));
            tokio::spawn(remote::watch_on(Arc::clone(&inner)));
            tokio::spawn(sweep::run(Arc::clone(&inner)));
        } else {
            let announced = inner.store.announce_replica(&inner.row).await;
            announced.map_err(unavailable)?;
        }
        tokio::spawn(alarms::run(Arc::clone(&inner)));
        if inner.store.is_exclusive() {
            let recovered = recover(&inner).await.inspect_err(|_| {
                // Nobody gets this replica, so nobody else can end its tasks.
                inner.stopping.send_replace(true);
            })?;
            if recovered.keys > 0 || recovered.sessions > 0 {
                tracing::info!(
                    keys = recovered.keys,
                    sessions = recovered.sessions,
                    "took over what the last process left"
                );
            }
        }
        Ok(inner)
    }
}
