//! A held lock, as its holder uses it.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::task::JoinHandle;

use super::held_lock::HeldLock;
use crate::calls::answer::{Mutation, Value};
use crate::calls::client::{Client, Tries};
use crate::calls::error::{CriticalError, ReleaseError};
use crate::calls::fault::{Fault, ServerError};
use crate::calls::lost::{Lost, LostReason};
use crate::calls::sent_write::SentWrite;
use crate::calls::validity::{Promise, Validity};
use crate::clock::Moment;
use crate::lease::kept::Lease;
use crate::lease::session::Session;
use crate::secret_text::Shown;

/// The time for a release without its write, after the write has failed. The failure is returned after the release, because the
/// process may end then.
const RELEASE_AFTER_PUT_MAX: Duration = Duration::from_secs(2);

/// A held lock, kept alive in the background until the guard is released or dropped.
///
/// **Hand [`LockGuard::fencing_token`] to the protected system**, and let it refuse every token below the highest one that it has
/// seen. A dropped guard releases the lock in the background, best effort; [`LockGuard::release`] returns the outcome.
#[must_use = "a dropped guard releases its lock"]
pub struct LockGuard {
    held_lock: Arc<HeldLock>,
    monitor: JoinHandle<()>,
    /// Whether dropping it must release the lock.
    held: bool,
    /// Keeps the session open for as long as one of its locks is held.
    session: Option<Session>,
    value: Option<Value>,
}

/// The status of a guard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GuardState {
    /// The lock is held.
    Held {
        /// The fencing token now in force.
        fencing_token: u64,
        /// The lock does not expire before this moment, as known now.
        valid_until: Moment,
        /// How often the lock was taken over by another replica, each time with a new fencing token.
        take_overs: u32,
    },
    /// The lock is lost.
    Lost(Lost),
}

impl Drop for LockGuard {
    fn drop(&mut self) {
        self.monitor.abort();
        if self.held {
            let lock_ref = self.held_lock.grants.present().lock_ref;
            let ttl = self.held_lock.lease.ttl();
            let session = self.session.as_ref().map(Session::watch);
            self.held_lock
                .client
                .release_in_background(lock_ref, ttl, session);
        }
    }
}

impl std::fmt::Debug for LockGuard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LockGuard")
            .field("entry", &Shown(&self.lock_ref()))
            .field("state", &self.state())
            .finish_non_exhaustive()
    }
}

impl LockGuard {
    pub(crate) fn new(
        client: &Client,
        session: Option<Session>,
        lease: Arc<Lease>,
        grant: (String, u64),
        promise: Promise,
        value: Option<Value>,
    ) -> LockGuard {
        let own_lease = session.is_none();
        let held_lock = HeldLock::new(client, lease, own_lease, grant, promise);
        let held_lock = Arc::new(held_lock);
        let monitor = tokio::spawn(Arc::clone(&held_lock).monitor());
        LockGuard {
            held_lock,
            monitor,
            held: true,
            session,
            value,
        }
    }

    /// The lockRef with its present grant: hand it to other processes that read or write under this lock.
    pub fn lock_ref(&self) -> String {
        self.held_lock.grants.present().lock_ref
    }

    /// The fencing token: strictly greater for each later holder of the key; 0 in a table whose protocol has no fence. Call this before each use, because the token grows
    /// when another replica takes the lock over.
    pub fn fencing_token(&self) -> u64 {
        self.held_lock.grants.present().fencing_token
    }

    /// The status of the guard now.
    pub fn state(&self) -> GuardState {
        match self.held_lock.validity() {
            Err(lost) => GuardState::Lost(lost),
            Ok(validity) => {
                let grant = self.held_lock.grants.present();
                GuardState::Held {
                    fencing_token: grant.fencing_token,
                    valid_until: validity.until(),
                    take_overs: grant.take_overs,
                }
            }
        }
    }

    /// True while no other client can have the lock (except after an end by force). The validity may end before the next line
    /// runs: use the fencing token for effects on other systems.
    pub fn is_valid(&self) -> bool {
        matches!(self.state(), GuardState::Held { .. })
    }

    /// No other client can have the lock before this moment, as known now; `None` once the lock is lost. The moment moves on
    /// while the server answers.
    pub fn valid_until(&self) -> Option<Moment> {
        match self.state() {
            GuardState::Held { valid_until, .. } => Some(valid_until),
            GuardState::Lost(_) => None,
        }
    }

    /// The rest of the validity; zero once the lock is lost.
    pub fn valid_for(&self) -> Duration {
        let now = self.held_lock.client.now();
        self.valid_until()
            .map_or(Duration::ZERO, |until| now.until(until))
    }

    /// The whole span of the current validity, from the sending of its request. Zero once the lock is lost.
    pub fn promised_for(&self) -> Duration {
        self.held_lock
            .validity()
            .map_or(Duration::ZERO, Validity::span)
    }

    /// Why the validity does not grow: the failure of the last attempt to keep the lock alive (such as a removed token or rule,
    /// or an unreachable server). `None` if the validity has grown since.
    pub fn last_failure(&self) -> Option<ServerError> {
        self.held_lock.last_failure()
    }

    /// Whether the lock survives a crash of the replica that serves its key. On a table with write-back a lock becomes durable a
    /// moment after its grant, and this library asks until then. Before, such a crash ends the lock
    /// ([`LostReason::NoLongerKept`]), and its validity is only some seconds.
    pub fn durable(&self) -> bool {
        self.held_lock.is_durable()
    }

    /// The TTL in force.
    pub fn ttl(&self) -> Duration {
        self.held_lock.lease.ttl()
    }

    /// How long the lock lives on after the connection is closed, if its session has such a grace.
    pub fn disconnect_grace(&self) -> Option<Duration> {
        self.held_lock.lease.disconnect_grace()
    }

    /// Returns when the lock is lost, before another client can have it (unless an operator ended it by force). Stop the
    /// protected work then.
    pub async fn lost(&self) -> Lost {
        self.held_lock.watch_now();
        self.held_lock.ended().await
    }

    /// The value of the key at the grant: the result of the last acknowledged write before. `None` unless
    /// [`LockRequest::read_value`](crate::LockRequest::read_value) was called. It costs no call. Later writes under this lock, by
    /// this guard or another process, do not change it.
    pub fn granted_value(&self) -> Option<&Value> {
        self.value.as_ref()
    }

    /// Reads the value of the key: the result of the last acknowledged write of any holder.
    pub async fn get(&self) -> Result<Value, CriticalError> {
        let held_lock = &self.held_lock;
        let read = |lock_ref: String, tries| async move {
            let (client, numbers) = (&held_lock.client, &held_lock.grants.call_numbers);
            client.critical_get_raw(&lock_ref, numbers, tries).await
        };
        held_lock.critical(&SentWrite::default(), read).await
    }

    /// Writes the value of the key. `Ok` means that the value is durable and every later holder reads it.
    pub async fn put(&self, value: impl Into<Bytes>) -> Result<(), CriticalError> {
        self.write(Mutation::Put(value.into())).await
    }

    /// Deletes the value of the key.
    pub async fn delete(&self) -> Result<(), CriticalError> {
        self.write(Mutation::Delete).await
    }

    async fn write(&self, mutation: Mutation) -> Result<(), CriticalError> {
        let held_lock = &self.held_lock;
        let (mutation, sent) = (&mutation, &SentWrite::default());
        let write = |lock_ref: String, tries| async move {
            let (client, numbers) = (&held_lock.client, &held_lock.grants.call_numbers);
            let written = client.critical_write_raw(&lock_ref, mutation, (sent, numbers), tries);
            Ok(((), written.await?))
        };
        held_lock.critical(sent, write).await
    }

    /// Releases the lock. An error says that the lock was lost before, or that no server answered; then the release is tried
    /// further in the background. If the lock was valid when the release was sent, and was then lost because the replica that
    /// served its key crashed, the release succeeds: before it no other client had the lock.
    pub async fn release(mut self) -> Result<(), ReleaseError> {
        self.end(None).await
    }

    /// Writes or deletes the value and releases the lock, in one call. If the write is refused, or no server makes it in time,
    /// the lock is released without the write before the error is returned. The guard is gone in any case. To keep the lock after
    /// a refused write, use [`LockGuard::put`].
    pub async fn release_with(mut self, mutation: Mutation) -> Result<(), ReleaseError> {
        let ended = self.end(Some(mutation)).await;
        match &ended {
            // Of a lock that is lost the server is told in the background.
            Ok(()) | Err(ReleaseError::Lost(_)) => {}
            Err(_) if self.held => self.release_without_put().await,
            Err(_) => {}
        }
        ended
    }

    /// One last try, so that the lock is not held for its TTL if the process ends now. The drop of the guard tries further.
    async fn release_without_put(&mut self) {
        let lock_ref = self.held_lock.grants.present().lock_ref;
        let client = &self.held_lock.client;
        let (sent, numbers) = (SentWrite::default(), &self.held_lock.grants.call_numbers);
        let tries = Tries::For(RELEASE_AFTER_PUT_MAX);
        match client
            .release_raw(&lock_ref, None, &sent, numbers, tries)
            .await
        {
            Ok(_) => self.held = false,
            Err(status) if Fault::new(&status).ended().is_ok() => self.held = false,
            Err(status) => tracing::debug!(code = ?status.code(), "could not release a lock yet"),
        }
    }

    async fn end(&mut self, put: Option<Mutation>) -> Result<(), ReleaseError> {
        let held_lock = Arc::clone(&self.held_lock);
        let _turn = held_lock.turn.lock().await;
        // The watch would take this release for a loss.
        self.monitor.abort();
        if let Err(lost) = held_lock.validity() {
            // Dropped with `held`: the server is told in the background, for those who wait behind.
            return Err(ReleaseError::Lost(lost));
        }
        let end = held_lock.client.end();
        // It is valid now, when the first attempt is sent.
        let by_memory = !self.durable();
        let mut regranted = false;
        let sent = SentWrite::default();
        loop {
            let tries = Tries::For(held_lock.client.now().until(end));
            let numbers = &held_lock.grants.call_numbers;
            let lock_ref = held_lock.grants.present().lock_ref;
            let released = held_lock
                .client
                .release_raw(&lock_ref, put.as_ref(), &sent, numbers, tries)
                .await;
            let in_doubt = put.is_some() && sent.is_in_doubt();
            let fault = match released {
                // Released by another process, before the write: no attempt before can have done it.
                Ok(true) if put.is_some() && !in_doubt => {
                    self.held = false;
                    return Err(ReleaseError::Lost(Lost::released_here()));
                }
                Ok(_) => {
                    self.held = false;
                    return Ok(());
                }
                Err(status) => Fault::new(&status),
            };
            match fault.ended() {
                Ok(lost)
                    if put.is_none()
                        && lost.reason == LostReason::NoLongerKept
                        && (by_memory || sent.is_in_doubt()) =>
                {
                    self.held = false;
                    return Ok(());
                }
                Ok(lost) => {
                    self.held = false;
                    return Err(ReleaseError::of(Fault::Ended(lost), in_doubt));
                }
                // Not repeated where it may have been done: another process may have written under the new grant.
                Err(Fault::Superseded(_)) if !regranted && !in_doubt => {
                    regranted = true;
                    held_lock.regrant().await.inspect_err(|fault| {
                        self.held &= !matches!(fault, Fault::Ended(_));
                    })?;
                }
                Err(fault) => return Err(ReleaseError::of(fault, in_doubt)),
            }
        }
    }
}
