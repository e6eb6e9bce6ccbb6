//! The calls of clients, replicas and operators. Each goes to the machine of its key, or to the sessions.

use std::sync::Arc;
use std::time::Duration;

use tracing::Instrument as _;
use uuid::Uuid;

use super::admission::DoneBy;
use super::api::*;
use super::current::EngineShared;
use super::replica::Replica;
use super::sessions::{self, ClosedByClient, NoRoom, Sessions};
use super::watch::Watch;
use crate::key::NewEntry;
use crate::key::machine::{Answer, Call, EntryRef, LeaseSource, LeaseStatus};
use crate::limits::Limits;
use crate::lock::{KeyId, Liveness, LockRef, ReplicaId, SessionId, TableName, Tag};
use crate::store::SessionRow;
use crate::trace::TARGET;

/// The engine of one replica. Cheap to clone.
///
/// A replica that others declared down is fenced for good (H2); the engine restarts as a new replica under a new id.
#[derive(Clone)]
pub struct Engine {
    pub(super) shared: Arc<EngineShared>,
}

/// The longest wait of a finished call for the validity of its lease.
const VALIDITY_WITHIN: Duration = Duration::from_secs(1);

/// The validity of an entry's lease.
#[derive(Clone, Copy, Debug)]
struct Validity {
    ttl: Duration,
    valid_for: Duration,
    durable: bool,
}

impl Engine {
    /// The current replica.
    pub(super) fn current(&self) -> Result<Arc<Replica>, EngineError> {
        self.shared.current()
    }

    /// This replica; the nil id before it has started.
    pub fn replica(&self) -> ReplicaId {
        self.current()
            .map_or(ReplicaId(Uuid::nil()), |replica| replica.local.id)
    }

    /// The limits in force.
    pub fn limits(&self) -> &Limits {
        &self.shared.limits
    }

    /// The tables, by name.
    pub fn tables(&self) -> Vec<TableName> {
        self.shared.tables.iter().cloned().collect()
    }

    /// Gauges, zero unless the engine serves, and counters, also after a stop.
    pub fn counts(&self) -> Counts {
        let replica = self.current().ok();
        let replica = replica.as_ref();
        let metrics = &self.shared.metrics;
        Counts {
            active_keys: replica.map_or(0, |replica| replica.shell.keys.count()),
            sessions: replica.map_or(0, |replica| replica.sessions.table.count()),
            swaps: metrics.committed.get(),
            conflicts: metrics.conflicts.get(),
            unknown: metrics.in_doubt.get(),
            background_commits: metrics.background_commits.get(),
            durable_grants: metrics.grants_that_were(true),
            volatile_grants: metrics.grants_that_were(false),
            take_overs: metrics.take_overs.get(),
            received_keys: metrics.received_keys.get(),
            hand_overs: metrics.given_keys.get(),
            forgotten_keys: metrics.forgotten_keys.get(),
            packed_keys: metrics.packed_keys.get(),
        }
    }

    /// `Ok` while calls can be served. Drives the readiness of the health service.
    pub fn ready(&self) -> Result<(), EngineError> {
        let replica = self.current()?;
        if replica.local.membership.clock_off() {
            return Err(EngineError::ClockOff);
        }
        let ready = replica.store.health.ready();
        ready.map_err(EngineError::of_store)
    }

    pub(super) fn id_of(&self, id: KeyId) -> Result<Arc<KeyId>, EngineError> {
        if self.shared.tables.contains(&id.table) {
            Ok(Arc::new(id))
        } else {
            Err(EngineError::UnknownTable(id.table.to_string()))
        }
    }

    pub(super) fn id_of_ref(&self, lock_ref: &LockRef) -> Result<Arc<KeyId>, EngineError> {
        self.id_of(KeyId {
            table: lock_ref.table.clone(),
            key: lock_ref.key.clone(),
        })
    }

    /// The validity of a lease, from its keeper.
    async fn validity(
        sessions: &Arc<Sessions>,
        lease: LeaseStatus,
    ) -> Result<Validity, EngineError> {
        let local = &sessions.local;
        let (ttl, valid_for) = match lease.source {
            LeaseSource::Own { ttl, valid_for } => (ttl, valid_for),
            LeaseSource::Session(session) => {
                let renewed = sessions.validity(session).await?;
                local.sure()?;
                (renewed.ttl, renewed.valid_for)
            }
        };
        Ok(Validity {
            ttl,
            valid_for: local.promise(valid_for, lease.promised_until),
            durable: lease.durable,
        })
    }

    /// Reports success, even if the validity of the lease is unknown.
    async fn done<T>(
        sessions: &Arc<Sessions>,
        value: T,
        lease: LeaseStatus,
    ) -> Result<Done<T>, EngineError> {
        let local = &sessions.local;
        let validity = Self::validity(sessions, lease);
        let validity = tokio::select! {
            biased;
            validity = validity => validity.ok(),
            () = local.clock.sleep(VALIDITY_WITHIN) => None,
        };
        local.sure()?;
        Ok(Done {
            value,
            valid_for: validity.map_or(Duration::ZERO, |validity| validity.valid_for),
            durable: lease.durable,
        })
    }

    /// The lease of a new entry, and its room in its session.
    async fn liveness(
        &self,
        replica: &Replica,
        id: &KeyId,
        (live_by, tag): (LiveBy, Tag),
    ) -> Result<(Liveness, Option<sessions::Room>), EngineError> {
        let session = match live_by {
            LiveBy::Ttl(ttl_ms) => return Ok((Liveness::Own { ttl_ms }, None)),
            LiveBy::Session(session) => session,
        };
        replica.sessions.renew_behind(session);
        replica.sessions.validity(session).await?;
        let room = match replica.sessions.room(session) {
            Ok(room) => Some(room),
            Err(NoRoom::Ended) => return Err(EngineError::SessionEnded),
            Err(NoRoom::Ending) => return Err(EngineError::ending()),
            // A repeated call needs no room: it makes no new entry (I5).
            Err(NoRoom::Full) if replica.shell.has_made(id, tag) => None,
            Err(NoRoom::Full) => {
                return Err(EngineError::Exhausted {
                    what: "lock_refs_per_session_max",
                    limit: self.shared.limits.lock_refs_per_session_max as u64,
                });
            }
        };
        Ok((Liveness::Session(session), room))
    }

    /// Adds an entry to the queue of a key.
    pub async fn create(&self, call: CreateCall) -> Result<CreatedLockRef, EngineError> {
        let replica = self.current()?;
        let id = self.id_of(call.id)?;
        // Before admission: a slow keeper says nothing about the store, and must not hold up other calls.
        let lives = self.liveness(&replica, &id, (call.live_by, call.tag)).await;
        let (liveness, _room) = lives?;
        let entry = Box::new(NewEntry {
            tag: call.tag,
            mode: call.mode,
            liveness,
            identity: call.identity.into(),
            owner: call.owner.into(),
            created_at_ms: replica.local.clock.wall_ms(),
        });
        let read_value = call.read_value;
        let admitted = match Self::admitted(&self.shared.begins, &replica, call.waited) {
            Ok(admitted) => Some(admitted),
            // A repeated call makes no new entry (I5).
            Err(_) if replica.shell.has_made(&id, call.tag) => None,
            Err(overloaded) => return Err(overloaded),
        };
        if let Err(no_room) = replica.shell.admit(&id, &call.share_of) {
            if let Some(admitted) = admitted {
                admitted.refused();
            }
            return Err(no_room);
        }
        let is_in_memory = replica.shell.is_in_memory(&id);
        let answer = replica
            .shell
            .asked_to_create(&id, Call::Create { entry, read_value }, call.share_of)
            .await;
        if let Some(admitted) = admitted {
            match &answer {
                Ok(
                    Answer::Held { existed: false, .. } | Answer::Waiting { existed: false, .. },
                ) => {
                    admitted.done(match is_in_memory {
                        true => DoneBy::Memory,
                        false => DoneBy::Store,
                    });
                }
                Ok(_) | Err(_) => admitted.refused(),
            }
        }
        let answer = answer?;
        let held = replica.shell.held_answer(&id, &answer);
        let (entry, status, existed, lease) = match answer {
            Answer::Held {
                entry,
                value,
                existed,
                lease,
            } => (entry, held_status(entry, value), existed, lease),
            Answer::Waiting {
                entry,
                position,
                existed,
                lease,
            } => (entry, LockStatus::Waiting { position }, existed, lease),
            other => return Err(unexpected(&other)),
        };
        let validity = Self::validity(&replica.sessions, lease).await?;
        if let Some(held) = held {
            held.heard();
        }
        let lock_ref = lock_ref(&id, entry);
        Ok(CreatedLockRef {
            lease: match lease.source {
                LeaseSource::Session(session) => LeaseId::Session(session),
                LeaseSource::Own { .. } => LeaseId::LockRef(lock_ref.without_grant()),
            },
            lock_ref,
            status,
            ttl: validity.ttl,
            valid_for: validity.valid_for,
            durable: validity.durable,
            existed,
        })
    }

    /// Asks for the lock. Waits at most `wait` (zero: one try) and two thirds of the entry's TTL, then answers `Waiting`.
    pub async fn acquire(
        &self,
        lock_ref: &LockRef,
        wait: Duration,
        read_value: bool,
    ) -> Result<Acquired, EngineError> {
        let replica = self.current()?;
        let id = self.id_of_ref(lock_ref)?;
        let entry = EntryRef::from(lock_ref);
        let wait = wait.min(self.shared.limits.wait_max());
        let call = Call::Acquire {
            entry,
            wait: !wait.is_zero(),
            read_value,
        };
        let shell = &replica.shell;
        let answer = match wait.is_zero() {
            true => shell.asked(&id, call).await?,
            false => {
                let span = tracing::debug_span!(target: TARGET, "wait for grant");
                let waited = shell.asked_to_wait(&id, call, entry, wait);
                waited.instrument(span).await?
            }
        };
        let held = shell.held_answer(&id, &answer);
        let (entry, status, lease) = match answer {
            Answer::Held {
                entry,
                value,
                lease,
                ..
            } => {
                if let Some(grant) = entry.grant {
                    tracing::debug!(target: TARGET, fencing_token = grant.0, "granted");
                }
                (entry, held_status(entry, value), lease)
            }
            Answer::Waiting {
                entry,
                position,
                lease,
                ..
            } => (entry, LockStatus::Waiting { position }, lease),
            other => return Err(unexpected(&other)),
        };
        let validity = Self::validity(&replica.sessions, lease).await?;
        if let Some(held) = held {
            held.heard();
        }
        Ok(Acquired {
            lock_ref: self::lock_ref(&id, entry),
            status,
            valid_for: validity.valid_for,
            durable: validity.durable,
        })
    }

    /// Writes `put`, then releases the entry. True if it was released before.
    pub async fn release(
        &self,
        lock_ref: &LockRef,
        put: Option<Mutation>,
        call_no: u64,
    ) -> Result<bool, EngineError> {
        let replica = self.current()?;
        let id = self.id_of_ref(lock_ref)?;
        let writes = put.is_some();
        let call = Call::Release {
            entry: EntryRef::from(lock_ref),
            call_no,
            put,
        };
        let answer = match writes {
            true => replica.shell.asked_to_write(&id, call).await,
            false => replica.shell.asked(&id, call).await,
        };
        match answer? {
            Answer::Released { already } => Ok(already),
            other => Err(unexpected(&other)),
        }
    }

    /// Reads as the holder.
    pub async fn critical_get(
        &self,
        lock_ref: &LockRef,
        call_no: u64,
    ) -> Result<Done<Value>, EngineError> {
        let replica = self.current()?;
        let id = self.id_of_ref(lock_ref)?;
        let entry = EntryRef::from(lock_ref);
        let get = Call::Get { entry, call_no };
        match replica.shell.asked(&id, get).await? {
            Answer::Value { value, lease } => Self::done(&replica.sessions, value, lease).await,
            other => Err(unexpected(&other)),
        }
    }

    /// Writes as the holder.
    pub async fn critical_write(
        &self,
        lock_ref: &LockRef,
        mutation: Mutation,
        call_no: u64,
    ) -> Result<Done<()>, EngineError> {
        let replica = self.current()?;
        let id = self.id_of_ref(lock_ref)?;
        let call = Call::Put {
            entry: EntryRef::from(lock_ref),
            call_no,
            value: mutation,
        };
        match replica.shell.asked_to_write(&id, call).await? {
            Answer::Written { lease } => {
                let done = Self::done(&replica.sessions, (), lease).await;
                done.map_err(EngineError::with_write)
            }
            other => Err(unexpected(&other)),
        }
    }

    /// Watches a lockRef.
    pub async fn watch(&self, lock_ref: &LockRef) -> Result<Watch, EngineError> {
        let replica = self.current()?;
        let id = self.id_of_ref(lock_ref)?;
        let entry = EntryRef::from(lock_ref);
        let (watching, answer) = replica.shell.asked_to_watch(&id, entry).await?;
        match answer {
            Answer::Watching => {
                let sessions = Arc::clone(&replica.sessions);
                Ok(Watch::new(watching, sessions, id, entry))
            }
            other => Err(unexpected(&other)),
        }
    }

    /// Opens a session; finds it if it is open already.
    pub async fn open_session(&self, call: SessionCall) -> Result<Renewed, EngineError> {
        let replica = self.current()?;
        let row = SessionRow {
            id: call.id,
            ttl_ms: call.ttl_ms,
            disconnect_grace_ms: call.disconnect_grace_ms,
            replica: replica.local.id,
            epoch: 1,
            open: true,
            identity: call.identity,
            owner: call.owner,
            created_at_ms: replica.local.clock.wall_ms(),
        };
        let admitted = Self::admitted(&self.shared.begins, &replica, call.waited)?;
        let renewed = tokio::spawn(sessions::open(
            Arc::clone(&replica.sessions),
            row,
            call.share_of,
        ));
        let renewed = renewed.await;
        match &renewed {
            Ok(Ok(_)) => admitted.done(DoneBy::Store),
            Ok(Err(_)) | Err(_) => admitted.refused(),
        }
        let renewed = renewed.map_err(|_| lost_task())??;
        replica.local.sure()?;
        Ok(renewed)
    }

    /// Renews a lease. `Elsewhere` if another replica keeps the session.
    pub async fn renew(&self, lease: &LeaseId) -> Result<Renewed, EngineError> {
        let replica = self.current()?;
        let renewed = match lease {
            LeaseId::Session(session) => replica.sessions.renew_kept(*session, false).await?,
            LeaseId::LockRef(lock_ref) => {
                let id = self.id_of_ref(lock_ref)?;
                let entry = EntryRef::from(lock_ref);
                match replica.shell.asked(&id, Call::Renew { entry }).await? {
                    Answer::Renewed { lease } => {
                        let validity = Self::validity(&replica.sessions, lease).await?;
                        Renewed {
                            ttl: validity.ttl,
                            disconnect_grace: None,
                            valid_for: validity.valid_for,
                            durable: validity.durable,
                        }
                    }
                    other => return Err(unexpected(&other)),
                }
            }
        };
        replica.local.sure()?;
        Ok(renewed)
    }

    /// As [`Engine::renew`], by a message on a stream: the client is connected.
    pub async fn renew_on_stream(&self, lease: &LeaseId) -> Result<Renewed, EngineError> {
        let LeaseId::Session(session) = lease else {
            return self.renew(lease).await;
        };
        let replica = self.current()?;
        let renewed = replica.sessions.renew_kept(*session, true).await;
        replica.local.sure()?;
        renewed
    }

    /// Renews a session that this replica keeps, on behalf of another replica.
    pub async fn renew_kept(&self, session: SessionId) -> Result<Renewed, EngineError> {
        let replica = self.current()?;
        let renewed = replica.sessions.renew_kept(session, false).await;
        replica.local.sure()?;
        renewed
    }

    /// The renewal stream of a session ended, here or at another replica. Call this once no renewal of it is in flight.
    /// It changes nothing unless this replica keeps the session.
    pub fn disconnected(&self, session: SessionId) {
        if let Ok(replica) = self.current() {
            let sessions = &replica.sessions;
            sessions.table.disconnected(session, sessions.time.now());
        }
    }

    /// Another replica reports ended sessions. Returns those with entries left here after a while.
    pub async fn sessions_ended_elsewhere(&self, sessions: Vec<SessionId>) -> Vec<SessionId> {
        match self.current() {
            Ok(replica) => replica.sessions.ended_elsewhere(sessions).await,
            // It serves nothing any more.
            Err(_) => Vec::new(),
        }
    }

    /// Closes a session and ends its entries.
    pub async fn close_session(&self, session: SessionId) -> Result<ClosedSession, EngineError> {
        let replica = self.current()?;
        let closed = tokio::spawn(sessions::close(Arc::clone(&replica.sessions), session));
        let closed = closed.await.map_err(|_| lost_task())?;
        let closed = match closed {
            Ok(ClosedByClient::Here {
                had_ended,
                elsewhere,
            }) => {
                let (ended, ()) = tokio::join!(
                    replica.sessions.ended_everywhere(elsewhere),
                    replica.sessions.until_emptied(session)
                );
                match replica.local.is_stopping() {
                    true => Err(EngineError::Stopping),
                    false => Ok(ClosedSession {
                        had_ended,
                        may_be_served: !ended,
                    }),
                }
            }
            Ok(ClosedByClient::Elsewhere) => Ok(ClosedSession {
                had_ended: true,
                may_be_served: false,
            }),
            Err(error) => Err(error),
        };
        replica.local.sure()?;
        closed
    }

    /// Reads without a lock. `waited`: the delay before the engine got the call.
    pub async fn read(&self, id: &KeyId, waited: Duration) -> Result<Value, EngineError> {
        let replica = self.current()?;
        let id = self.id_of(id.clone())?;
        let admitted = Self::admitted(&self.shared.reads, &replica, waited)?;
        let read = replica.store.data.read_data(&id).await;
        match &read {
            Ok(_) => admitted.done(DoneBy::Store),
            Err(_) => admitted.refused(),
        }
        let cell = read.map_err(EngineError::of_store)?;
        Ok(Value {
            bytes: cell.and_then(|cell| cell.value),
        })
    }

    /// Ends all waits and watches, and refuses further calls with `Stopping`. The store finishes its pending work.
    pub fn stop(&self) {
        self.shared.stop();
    }
}

fn held_status(entry: EntryRef, value: Option<Value>) -> LockStatus {
    LockStatus::Held {
        grant: entry.grant.unwrap_or(crate::lock::Fence::NONE),
        value,
    }
}

fn lock_ref(id: &KeyId, entry: EntryRef) -> LockRef {
    LockRef {
        table: id.table.clone(),
        key: id.key.clone(),
        seq: entry.seq,
        tag: entry.tag,
        grant: entry.grant,
    }
}

/// A machine gave the wrong kind of answer: a bug. The call may have been done.
pub(super) fn unexpected(answer: &Answer) -> EngineError {
    tracing::error!(
        ?answer,
        "the machine of a key gave an answer of the wrong kind"
    );
    EngineError::Unavailable("the answer does not belong to the call".to_owned())
}

fn lost_task() -> EngineError {
    EngineError::Unavailable("the task of the call was lost; the outcome is unknown".to_owned())
}
