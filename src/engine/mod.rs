//! The engine: one actor a key, group commit, waiting, sync, leases.
//!
//! It takes parsed calls, and asks [`crate::lock::decide`] for the rules and a [`Store`](crate::store::Store) to keep
//! what they make. It knows nothing of gRPC. Time and ids come from [`Clock`] and [`Ids`].

mod activity;
mod actor;
mod admin;
mod alarms;
mod answer;
mod api;
mod clock;
mod handed_over;
mod heartbeats;
mod inner;
mod keys;
mod leases;
mod log_throttle;
mod members;
mod peers;
mod recover;
mod remote;
mod routes;
mod sessions;
mod start;
mod sweep;
mod wall_check;
mod watch;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use uuid::Uuid;

pub use activity::{BusyKey, Cause, Grants, ReplicaActivity, Turns};
pub use api::*;
pub use clock::{Clock, Ids, Sleep, SystemClock, SystemIds};
pub use log_throttle::LogThrottle;
pub use peers::{NoPeers, Peer, PeerError, Peers, Presence};
pub use start::{EngineOptions, REPLICA_TTL};
pub use watch::Watch;

use crate::limits::Limits;
use crate::lock::{Create, FenceError, KeyId, Liveness, LockRef, ReplicaId, SessionId, TableName};
use crate::store::SessionRow;
use actor::{Accepted, EntryRef, Held, LeaseValidity, Msg};
use answer::{acquired, created};
use inner::Inner;
use leases::{EntryId, LeaseKey, NoLease};
use start::Shared;

/// What the engine has at the moment, and what it counted since the process started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Keys that are held, waited for, or were just used.
    pub active_keys: usize,
    /// Open sessions.
    pub sessions: usize,
    /// Compare-and-swaps that took effect.
    pub swaps: u64,
    /// Commands in them.
    pub commands: u64,
    /// Compare-and-swaps that met another state.
    pub conflicts: u64,
    /// Compare-and-swaps whose outcome had to be looked up.
    pub unknown: u64,
}

/// The engine of one replica. Cheap to clone.
///
/// A replica that was cut off from its store for too long is fenced for good (I10); then this goes on as a new
/// replica, under a new id.
#[derive(Clone)]
pub struct Engine {
    shared: Arc<Shared>,
}

impl Engine {
    /// This replica; the nil id before it has started.
    pub fn replica(&self) -> ReplicaId {
        self.inner()
            .map_or(ReplicaId(Uuid::nil()), |inner| inner.replica)
    }

    /// The limits in force.
    pub fn limits(&self) -> &Limits {
        &self.shared.limits
    }

    /// The tables, by name.
    pub fn tables(&self) -> Vec<TableName> {
        self.shared.tables.iter().cloned().collect()
    }

    /// What it has, which is nothing unless it serves, and what it counted, also after it was stopped.
    pub fn counts(&self) -> Counts {
        use std::sync::atomic::Ordering::Relaxed;
        let inner = self.inner().ok();
        let inner = inner.as_ref();
        let counters = &self.shared.counters;
        Counts {
            active_keys: inner.map_or(0, |inner| inner.keys.count()),
            sessions: inner.map_or(0, |inner| inner.leases.counts().0),
            swaps: counters.swaps.load(Relaxed),
            commands: counters.commands.load(Relaxed),
            conflicts: counters.conflicts.load(Relaxed),
            unknown: counters.unknown.load(Relaxed),
        }
    }

    /// `Ok` while calls can be served. Drives the readiness of the health service.
    pub fn ready(&self) -> Result<(), EngineError> {
        let inner = self.inner()?;
        if inner.is_clock_off() {
            return Err(EngineError::ClockOff(FenceError::ClockOff));
        }
        inner
            .store
            .ready()
            .map_err(|error| EngineError::Unavailable(error.to_string()))
    }

    fn id_of(&self, id: KeyId) -> Result<Arc<KeyId>, EngineError> {
        if self.shared.tables.contains(&id.table) {
            Ok(Arc::new(id))
        } else {
            Err(EngineError::UnknownTable(id.table.to_string()))
        }
    }

    fn id_of_ref(&self, lock_ref: &LockRef) -> Result<Arc<KeyId>, EngineError> {
        self.id_of(KeyId {
            table: lock_ref.table.clone(),
            key: lock_ref.key.clone(),
        })
    }

    /// Asks the actor of a key. The call goes on there if this future is dropped.
    async fn ask<T>(
        inner: &Arc<Inner>,
        id: &Arc<KeyId>,
        msg: impl FnOnce(oneshot::Sender<Result<T, EngineError>>) -> Msg,
    ) -> Result<T, EngineError> {
        Self::ask_for(inner, id, msg, |lost| lost).await
    }

    /// As [`Engine::ask`], of what may write: once it is handed over, an answer that is lost may be that of a write.
    async fn ask_to_write<T>(
        inner: &Arc<Inner>,
        id: &Arc<KeyId>,
        msg: impl FnOnce(oneshot::Sender<Result<T, EngineError>>) -> Msg,
    ) -> Result<T, EngineError> {
        Self::ask_for(inner, id, msg, EngineError::with_write).await
    }

    async fn ask_for<T>(
        inner: &Arc<Inner>,
        id: &Arc<KeyId>,
        msg: impl FnOnce(oneshot::Sender<Result<T, EngineError>>) -> Msg,
        answered: impl Fn(EngineError) -> EngineError,
    ) -> Result<T, EngineError> {
        let (reply, answer) = oneshot::channel();
        inner.keys.send(inner, id, msg(reply))?;
        let answer = answer.await;
        // Looked at after the store's acknowledgement, and before anybody learns of it (I10).
        inner.alive().map_err(&answered)?;
        answer.map_err(|_| answered(actor::no_answer()))?
    }

    /// What may be told of a lease, asked where it is kept.
    async fn answered(
        inner: &Arc<Inner>,
        validity: LeaseValidity,
    ) -> Result<LeaseValidity, EngineError> {
        let Some(session) = validity.ask else {
            return Ok(validity);
        };
        let renewed = remote::renew(inner, session).await?;
        inner.alive()?;
        Ok(LeaseValidity {
            ttl: renewed.ttl,
            valid_for: renewed.valid_for,
            ask: None,
        })
    }

    /// As [`Engine::answered`], of what was done already: then a lease of which nothing can be said is no reason not
    /// to say so.
    async fn done<T>(inner: &Arc<Inner>, accepted: Accepted<T>) -> Result<Done<T>, EngineError> {
        let answered = Self::answered(inner, accepted.validity).await;
        inner.alive()?;
        Ok(Done {
            value: accepted.value,
            valid_for: answered.map_or(Duration::ZERO, |validity| validity.valid_for),
        })
    }

    /// As [`Engine::answered`], of the status of an entry.
    async fn answered_held(
        inner: &Arc<Inner>,
        id: &Arc<KeyId>,
        mut held: Held,
    ) -> Result<Held, EngineError> {
        if held.is_final() {
            return Ok(held);
        }
        let (Held::Held { validity, .. } | Held::Waiting { validity, .. }) = &mut held;
        *validity = Self::answered(inner, *validity).await?;
        if let Held::Held {
            seq, tag, grant, ..
        } = held
        {
            let entry_ref = EntryRef {
                seq,
                tag,
                grant: Some(grant),
            };
            Self::ask(inner, id, |reply| Msg::Answered { entry_ref, reply }).await?;
        }
        Ok(held)
    }

    /// Adds an entry to the queue of a key.
    pub async fn create(&self, call: CreateCall) -> Result<CreatedLockRef, EngineError> {
        let inner = self.inner()?;
        let id = self.id_of(call.id)?;
        let liveness = match call.live_by {
            LiveBy::Ttl(ttl_ms) => Liveness::Own { ttl_ms },
            LiveBy::Session(session) => {
                let key = LeaseKey::Session(session);
                match inner.leases.renew(&key) {
                    Ok(_) => {}
                    Err(NoLease::Unknown | NoLease::InDoubt | NoLease::HandedOver)
                        if inner.shared =>
                    {
                        remote::renew(&inner, session).await?;
                    }
                    Err(_) => return Err(EngineError::SessionEnded),
                }
                Liveness::Session(session)
            }
        };
        let create = Box::new(Create {
            request_id: call.request_id,
            mode: call.mode,
            liveness,
            home: inner.replica,
            identity: call.identity.into(),
            owner: call.owner.into(),
            created_at_ms: wall_ms(&inner),
            past: None,
        });
        let read_value = call.read_value;
        let held = Self::ask(&inner, &id, |reply| Msg::Create {
            create,
            read_value,
            reply,
        })
        .await?;
        Ok(created(&id, Self::answered_held(&inner, &id, held).await?))
    }

    /// Asks for the lock, waiting for it at most `wait` (zero: one try). Times out with `Waiting`.
    pub async fn acquire(
        &self,
        lock_ref: &LockRef,
        wait: Duration,
        read_value: bool,
    ) -> Result<Acquired, EngineError> {
        let inner = self.inner()?;
        let id = self.id_of_ref(lock_ref)?;
        let entry_ref = EntryRef::from(lock_ref);
        let clock = &inner.clock;
        let wait = wait.min(inner.limits.wait_max());
        let until = clock.boot().saturating_add(wait);
        loop {
            let left = until.saturating_sub(clock.boot());
            let wait = !left.is_zero();
            let held = Self::ask(&inner, &id, |reply| Msg::Acquire {
                entry_ref,
                wait,
                read_value,
                reply,
            })
            .await?;
            match held {
                Held::Waiting {
                    waker: Some(waker), ..
                } => {
                    let mut stopping = inner.stopping.subscribe();
                    let stops = tokio::select! {
                        biased;
                        // Its turn, or it has ended: re-read.
                        _ = waker.turn => false,
                        _ = stopping.wait_for(|stopping| *stopping) => true,
                        () = clock.sleep(left) => false,
                    };
                    if stops {
                        inner.alive()?;
                        return Err(EngineError::Stopping);
                    }
                }
                Held::Waiting { .. } | Held::Held { .. } => {
                    let held = Self::answered_held(&inner, &id, held).await?;
                    return Ok(acquired(lock_ref, held));
                }
            }
        }
    }

    /// Releases an entry, after writing `put`. True if it had been given back before.
    pub async fn release(
        &self,
        lock_ref: &LockRef,
        put: Option<Mutation>,
        call_no: u64,
    ) -> Result<bool, EngineError> {
        let inner = self.inner()?;
        let id = self.id_of_ref(lock_ref)?;
        let entry_ref = EntryRef::from(lock_ref);
        let writes = put.is_some();
        let msg = |reply| Msg::Release {
            entry_ref,
            call_no,
            put,
            reply,
        };
        match writes {
            true => Self::ask_to_write(&inner, &id, msg).await,
            false => Self::ask(&inner, &id, msg).await,
        }
    }

    /// Reads as the holder.
    pub async fn critical_get(
        &self,
        lock_ref: &LockRef,
        call_no: u64,
    ) -> Result<Done<Value>, EngineError> {
        let inner = self.inner()?;
        let id = self.id_of_ref(lock_ref)?;
        let entry_ref = EntryRef::from(lock_ref);
        let ask = Self::ask(&inner, &id, |reply| Msg::Get {
            entry_ref,
            call_no,
            reply,
        });
        Self::done(&inner, ask.await?).await
    }

    /// Writes as the holder.
    pub async fn critical_write(
        &self,
        lock_ref: &LockRef,
        mutation: Mutation,
        call_no: u64,
    ) -> Result<Done<()>, EngineError> {
        let inner = self.inner()?;
        let id = self.id_of_ref(lock_ref)?;
        let entry_ref = EntryRef::from(lock_ref);
        let ask = Self::ask_to_write(&inner, &id, |reply| Msg::Write {
            entry_ref,
            call_no,
            mutation,
            reply,
        });
        let accepted = ask.await?;
        Self::done(&inner, accepted)
            .await
            .map_err(EngineError::with_write)
    }

    /// Watches a lockRef.
    pub async fn watch(&self, lock_ref: &LockRef) -> Result<Watch, EngineError> {
        let inner = self.inner()?;
        let id = self.id_of_ref(lock_ref)?;
        let entry_ref = EntryRef::from(lock_ref);
        let handle = Self::ask(&inner, &id, |reply| Msg::Watch { entry_ref, reply }).await?;
        Ok(Watch::new(Arc::clone(&inner), handle))
    }

    /// Opens a session whose id is its `request_id`; finds it if it is open already.
    pub async fn open_session(
        &self,
        call: SessionCall,
    ) -> Result<(SessionId, Renewed), EngineError> {
        let inner = self.inner()?;
        let id = SessionId(call.request_id);
        let row = SessionRow {
            id,
            ttl_ms: call.ttl_ms,
            disconnect_grace_ms: call.disconnect_grace_ms,
            replica: inner.replica,
            epoch: 1,
            open: true,
            identity: call.identity,
            owner: call.owner,
            created_at_ms: wall_ms(&inner),
        };
        // In a task of its own: a row that was written always gets its lease.
        let renewed = tokio::spawn(sessions::open(Arc::clone(&inner), row))
            .await
            .map_err(|_| actor::no_answer())??;
        inner.alive()?;
        Ok((id, renewed))
    }

    /// A renewal.
    pub async fn renew(&self, lease: &LeaseId) -> Result<Renewed, EngineError> {
        let inner = self.inner()?;
        let renewed = match lease {
            LeaseId::Session(session) => sessions::renew(&inner, *session).await?,
            LeaseId::LockRef(lock_ref) => {
                let id = self.id_of_ref(lock_ref)?;
                let lease = EntryId {
                    id: Arc::clone(&id),
                    seq: lock_ref.seq,
                };
                // Also while the state of its key cannot be read.
                if let Ok(renewed) = inner.leases.renew_entry(lease, lock_ref.tag) {
                    renewed
                } else {
                    let entry_ref = EntryRef::from(lock_ref);
                    let ask = Self::ask(&inner, &id, |reply| Msg::Renew { entry_ref, reply });
                    let validity = Self::answered(&inner, ask.await?).await?;
                    Renewed {
                        ttl: validity.ttl,
                        disconnect_grace: None,
                        valid_for: validity.valid_for,
                    }
                }
            }
        };
        inner.alive()?;
        Ok(renewed)
    }

    /// As [`Engine::renew`], by a message on a stream: its client is connected.
    pub async fn renew_on_stream(&self, lease: &LeaseId) -> Result<Renewed, EngineError> {
        let LeaseId::Session(session) = lease else {
            return self.renew(lease).await;
        };
        let inner = self.inner()?;
        let renewed = sessions::renew_on_stream(&inner, *session).await;
        inner.alive()?;
        renewed
    }

    /// A stream ended, here or at another replica, that the client of a session sent renewals on. To be
    /// called once none of them is in flight any more. Of a session that is not kept here it says nothing.
    pub fn disconnected(&self, session: SessionId) {
        if let Ok(inner) = self.inner() {
            inner.leases.disconnected(session);
        }
    }

    /// Closes a session and ends what lives by it. True if it had ended before.
    pub async fn close_session(&self, session: SessionId) -> Result<bool, EngineError> {
        let inner = self.inner()?;
        let renewed = inner.leases.renew(&LeaseKey::Session(session));
        if let Err(NoLease::Unknown | NoLease::HandedOver) = renewed {
            return match sessions::kept_elsewhere(&inner, session).await? {
                Some(elsewhere) => Err(elsewhere),
                None => Ok(true),
            };
        }
        // Also where it has ended: then another call, or its expiry, may not have written that down yet.
        let ended = tokio::spawn(sessions::end(Arc::clone(&inner), session))
            .await
            .map_err(|_| actor::no_answer())?;
        match ended {
            sessions::Closed::Done => Ok(renewed.is_err()),
            sessions::Closed::Stopped => Err(EngineError::Stopping),
            sessions::Closed::Moved => match sessions::kept_elsewhere(&inner, session).await? {
                Some(elsewhere) => Err(elsewhere),
                None => Ok(true),
            },
        }
    }

    /// Reads without a lock.
    pub async fn read(&self, id: &KeyId) -> Result<Value, EngineError> {
        let inner = self.inner()?;
        let id = self.id_of(id.clone())?;
        match inner.store.read_data(&id).await {
            Ok(cell) => Ok(actor::value_of(cell)),
            Err(error) => Err(EngineError::Unavailable(error.to_string())),
        }
    }

    /// Ends all waits and watches and takes no more calls: they fail with `Stopping`. What was handed to
    /// the store is finished by the store.
    pub fn stop(&self) {
        self.shared.stop();
    }
}

fn wall_ms(inner: &Inner) -> i64 {
    i64::try_from(inner.clock.wall_us() / 1_000).unwrap_or(i64::MAX)
}
