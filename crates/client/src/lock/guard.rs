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

/// The time for a release without its write, after that write has failed and before the failure is told: the process may end
/// then.
const RELEASE_AFTER_PUT_MAX: Duration = Duration::from_secs(2);

/// A lock that is held, and kept alive in the background, until this is released or dropped.
///
/// **Hand [`LockGuard::fencing_token`] to whatever the lock protects**, and let that refuse a token below
/// the highest one it has seen. Dropping the guard releases the lock in the background, best effort;
/// [`LockGuard::release`] says what came of it.
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
        /// Until when the lock is safe from expiry, as known now.
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

    /// The fencing token: strictly greater for each later holder of the key. Ask for it each time: it
    /// grows when another replica takes the lock over.
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

    /// Whether nobody else can have the lock now (short of an end by force). It may have ended when the next
    /// line runs: for effects on other systems use the fencing token.
    pub fn is_valid(&self) -> bool {
        matches!(self.state(), GuardState::Held { .. })
    }

    /// Until when nobody else can have the lock, as known now; `None` once it is lost. Grows while the
    /// server answers.
    pub fn valid_until(&self) -> Option<Moment> {
        match self.state() {
            GuardState::Held { valid_until, .. } => Some(valid_until),
            GuardState::Lost(_) => None,
        }
    }

    /// What is left of the validity; zero once the lock is lost.
    pub fn valid_for(&self) -> Duration {
        let now = self.held_lock.client.now();
        self.valid_until()
            .map_or(Duration::ZERO, |until| now.until(until))
    }

    /// The whole span of the promise in force, from when it was asked for. Zero once the lock is lost.
    pub fn promised_for(&self) -> Duration {
        self.held_lock
            .validity()
            .map_or(Duration::ZERO, Validity::span)
    }

    /// Why the validity does not grow: the failure of the last attempt to keep the lock alive (a token or a rule that was
    /// taken away, a server that cannot be reached). `None` where it has grown since.
    pub fn last_failure(&self) -> Option<ServerError> {
        self.held_lock.last_failure()
    }

    /// Whether the lock survives a crash of the replica that serves its key. On a table with write-back it does so a moment
    /// after it was granted, and this library asks until it is so. Before, such a crash ends it
    /// ([`LostReason::NoLongerKept`]), and its validity is some seconds.
    pub fn durable(&self) -> bool {
        self.held_lock.is_durable()
    }

    /// The TTL in force.
    pub fn ttl(&self) -> Duration {
        self.held_lock.lease.ttl()
    }

    /// How long the lock lives on once the connection is closed, where its session asked for that.
    pub fn disconnect_grace(&self) -> Option<Duration> {
        self.held_lock.lease.disconnect_grace()
    }

    /// Returns when the lock is lost, before anyone else can have it (unless it was ended by force).
    /// What it protects must stop then.
    pub async fn lost(&self) -> Lost {
        self.held_lock.watch_now();
        self.held_lock.ended().await
    }

    /// The value of the key as the lock was granted: what the last acknowledged write before it left. `None` unless
    /// [`LockRequest::read_value`](crate::LockRequest::read_value) asked for it. It costs no call, and does not change with
    /// what is written under this lock, by this guard or by others that have its lockRef.
    pub fn granted_value(&self) -> Option<&Value> {
        self.value.as_ref()
    }

    /// Reads the value of the key: what the last acknowledged write of any holder left.
    pub async fn get(&self) -> Result<Value, CriticalError> {
        let held_lock = &self.held_lock;
        let read = |lock_ref: String, tries| async move {
            let (client, numbers) = (&held_lock.client, &held_lock.grants.call_numbers);
            client.critical_get_raw(&lock_ref, numbers, tries).await
        };
        held_lock.critical(&SentWrite::default(), read).await
    }

    /// Writes the value of the key. `Ok` means that it is durable and every later holder reads it.
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

    /// Gives the lock back. An error says that it was lost before, or that the server could not be told;
    /// then it is tried further in the background. A lock that was valid when the release was sent, and is not kept any more
    /// when the answer comes, because the replica that served its key crashed, is given back: until the release nobody
    /// else had it.
    pub async fn release(mut self) -> Result<(), ReleaseError> {
        self.end(None).await
    }

    /// Writes a last value, or deletes it, and gives the lock back, in one call. Where the write is refused, or no
    /// server does it in time, the lock is given back without it before the error is told: the guard is gone either
    /// way. To go on with the lock after a refused write, use [`LockGuard::put`].
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

    /// One last try, so that the lock is not held for its TTL if the process ends now. Dropping the guard goes on trying.
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
