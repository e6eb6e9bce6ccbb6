//! A held lock.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{Mutex, Notify, watch};
use tokio::task::JoinHandle;
use tonic::Status;

use super::answer::{Mutation, Standing, Value};
use super::clock::Moment;
use super::connect::Client;
use super::error::{CriticalError, ReleaseError, WaitError};
use super::fault::{Fault, ServerError};
use super::grant::Grants;
use super::lease::{Lease, LeaseState};
use super::lost::Lost;
use super::session::Session;
use super::validity::Validity;
use super::watch::{Seen, Watcher};

/// The reason of a lockRef whose release is under way (`google.rpc.ErrorInfo`).
const RELEASING: &str = "RELEASING";
/// Between two looks at a release that is under way.
const RELEASING_PAUSE: Duration = Duration::from_millis(50);

/// A lock that is held, and kept alive in the background, until this is released or dropped.
///
/// **Hand [`LockGuard::fencing_token`] to whatever the lock protects**, and let that refuse a token below
/// the highest one it has seen. Dropping the guard releases the lock in the background, best effort;
/// [`LockGuard::release`] says what came of it.
#[must_use = "a dropped guard releases its lock"]
pub struct LockGuard {
    shared: Arc<Shared>,
    monitor: JoinHandle<()>,
    /// Whether dropping it must release the lock.
    held: bool,
    /// Keeps the session open for as long as one of its locks is held.
    _session: Option<Session>,
}

/// How a guard stands.
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

struct Shared {
    client: Client,
    lease: Arc<Lease>,
    /// Whether the lease is this lock's alone, and not a session's.
    own_lease: bool,
    grants: Grants,
    lost: watch::Sender<Option<Lost>>,
    /// Calls on one lockRef are made one after the other.
    turn: Mutex<()>,
    /// Somebody waits for the loss: watch now.
    watch_now: Notify,
}

impl Drop for LockGuard {
    fn drop(&mut self) {
        self.monitor.abort();
        if self.held {
            let lock_ref = self.shared.grants.present().lock_ref;
            release_in_background(&self.shared.client, lock_ref, self.shared.lease.ttl());
        }
    }
}

impl std::fmt::Debug for LockGuard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LockGuard")
            .field("lock_ref", &self.lock_ref())
            .field("state", &self.state())
            .finish_non_exhaustive()
    }
}

/// Gives a place back for nobody to wait for. Tried for a TTL; after that it has ended by itself.
pub(super) fn release_in_background(client: &Client, lock_ref: String, ttl: Duration) {
    let client = client.clone();
    Client::in_background(async move {
        if let Err(status) = client.release_raw(&lock_ref, None, || 0, ttl).await {
            tracing::debug!(code = ?status.code(), "a place is left to expire");
        }
    });
}

impl LockGuard {
    pub(super) fn new(
        client: &Client,
        session: Option<Session>,
        lease: Arc<Lease>,
        lock_ref: String,
        fencing_token: u64,
    ) -> LockGuard {
        let shared = Arc::new(Shared {
            client: client.clone(),
            lease,
            own_lease: session.is_none(),
            grants: Grants::new(lock_ref, fencing_token),
            lost: watch::Sender::new(None),
            turn: Mutex::new(()),
            watch_now: Notify::new(),
        });
        let monitor = tokio::spawn(monitor(Arc::clone(&shared)));
        LockGuard {
            shared,
            monitor,
            held: true,
            _session: session,
        }
    }

    /// The lockRef with its present grant: hand it to other processes that read or write under this lock.
    pub fn lock_ref(&self) -> String {
        self.shared.grants.present().lock_ref
    }

    /// The fencing token: strictly greater for each later holder of the key. Ask for it each time: it
    /// grows when another replica takes the lock over.
    pub fn fencing_token(&self) -> u64 {
        self.shared.grants.present().fencing_token
    }

    /// Returns when another replica took the lock over, with the new fencing token. The lock is still
    /// this holder's.
    pub async fn taken_over(&self) -> u64 {
        let mut changes = self.shared.grants.changes();
        match changes.changed().await {
            Ok(()) => changes.borrow().fencing_token,
            Err(_) => std::future::pending().await,
        }
    }

    /// How the guard stands now.
    pub fn state(&self) -> GuardState {
        if let Some(lost) = self.shared.lost() {
            return GuardState::Lost(lost);
        }
        match self.shared.lease.state() {
            LeaseState::Over(lost) => GuardState::Lost(lost),
            LeaseState::Live(validity) => {
                let grant = self.shared.grants.present();
                GuardState::Held {
                    fencing_token: grant.fencing_token,
                    valid_until: validity.until(),
                    take_overs: grant.take_overs,
                }
            }
        }
    }

    /// Whether nobody else can have the lock now (short of an end by force). It may be over when the next
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
        let now = self.shared.client.now();
        self.valid_until()
            .map_or(Duration::ZERO, |until| now.until(until))
    }

    /// The TTL in force.
    pub fn ttl(&self) -> Duration {
        self.shared.lease.ttl()
    }

    /// Returns when the lock is lost, before anyone else can have it (unless it was ended by force).
    /// What it protects must stop then.
    pub async fn lost(&self) -> Lost {
        self.shared.watch_now.notify_one();
        self.shared.over().await
    }

    /// Reads the value of the key: what the last acknowledged write of any holder left.
    pub async fn get(&self) -> Result<Value, CriticalError> {
        let shared = &self.shared;
        let read = async |lock_ref: String| {
            let call_no = || shared.grants.next_call_no();
            shared.client.critical_get_raw(&lock_ref, call_no).await
        };
        shared.critical(read).await
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
        let shared = &self.shared;
        let write = async |lock_ref: String| {
            let call_no = || shared.grants.next_call_no();
            let written = shared
                .client
                .critical_write_raw(&lock_ref, &mutation, call_no);
            Ok(((), written.await?))
        };
        shared.critical(write).await
    }

    /// Gives the lock back. An error says that it was lost before, or that the server could not be told;
    /// then it is tried further in the background.
    pub async fn release(self) -> Result<(), ReleaseError> {
        self.end(None).await
    }

    /// Writes a last value, or deletes it, and gives the lock back, in one call.
    pub async fn release_with(self, mutation: Mutation) -> Result<(), ReleaseError> {
        self.end(Some(mutation)).await
    }

    async fn end(mut self, put: Option<Mutation>) -> Result<(), ReleaseError> {
        let shared = Arc::clone(&self.shared);
        let _turn = shared.turn.lock().await;
        // The watch would take this release for a loss.
        self.monitor.abort();
        if let Some(lost) = shared.lost_now() {
            // Dropped with `held`: the server is told in the background, for those who wait behind.
            return Err(ReleaseError::Lost(lost));
        }
        let end = shared.client.now().after(shared.client.options().timeout);
        let mut regranted = false;
        let mut attempts = 0u32;
        loop {
            let timeout = shared.client.now().until(end);
            let call_no = || {
                attempts += 1;
                shared.grants.next_call_no()
            };
            let lock_ref = shared.grants.present().lock_ref;
            let released = shared
                .client
                .release_raw(&lock_ref, put.as_ref(), call_no, timeout)
                .await;
            let fault = match released {
                // Released by somebody else, before what was to be written.
                Ok(true) if put.is_some() && attempts == 1 => {
                    self.held = false;
                    return Err(ReleaseError::Lost(Lost::released_here()));
                }
                Ok(_) => {
                    self.held = false;
                    return Ok(());
                }
                Err(status) => Fault::new(&status),
            };
            match fault.over() {
                Ok(lost) => {
                    self.held = false;
                    return Err(ReleaseError::Lost(lost));
                }
                Err(Fault::Superseded(error)) if !regranted => {
                    regranted = true;
                    // None of these attempts took effect.
                    attempts = 0;
                    if shared.regrant().await.is_err() {
                        return Err(ReleaseError::Other(error));
                    }
                }
                // An attempt before this one is still at it; its outcome is what counts.
                Err(Fault::Other(error))
                    if error.reason == RELEASING && shared.client.now() < end =>
                {
                    tokio::time::sleep(RELEASING_PAUSE).await;
                }
                Err(fault) => return Err(fault.into()),
            }
        }
    }
}

impl Shared {
    fn lost(&self) -> Option<Lost> {
        self.lost.borrow().clone()
    }

    /// The loss, also one that only the clock knows of yet.
    fn lost_now(&self) -> Option<Lost> {
        if let Some(lost) = self.lost() {
            return Some(lost);
        }
        match self.lease.state() {
            LeaseState::Live(_) => None,
            LeaseState::Over(lost) => Some(self.lose(lost)),
        }
    }

    /// Loses the lock, once; the first reason stays.
    fn lose(&self, lost: Lost) -> Lost {
        self.lost.send_if_modified(|present| {
            let first = present.is_none();
            if first {
                *present = Some(lost.clone());
            }
            first
        });
        if self.own_lease {
            self.lease.end(lost.clone());
        }
        self.lost().unwrap_or(lost)
    }

    /// Returns when the lock is lost.
    async fn over(&self) -> Lost {
        let mut changes = self.lost.subscribe();
        loop {
            if let Some(lost) = self.lost_now() {
                return lost;
            }
            tokio::select! {
                lost = self.lease.over() => return self.lose(lost),
                _ = changes.changed() => {}
            }
        }
    }

    /// Makes one critical call, for a superseded grant a second time with the new one.
    async fn critical<T, F>(&self, call: F) -> Result<T, CriticalError>
    where
        F: AsyncFn(String) -> Result<(T, Validity), Status>,
    {
        let _turn = self.turn.lock().await;
        let mut regranted = false;
        loop {
            if let Some(lost) = self.lost_now() {
                return Err(CriticalError::Lost(lost));
            }
            let result = tokio::select! {
                biased;
                result = call(self.grants.present().lock_ref) => result,
                lost = self.over() => return Err(CriticalError::Lost(lost)),
            };
            let fault = match result {
                Ok((value, validity)) => {
                    self.lease.extend(validity);
                    // An acknowledgement that comes after the end promises nothing.
                    return match self.lost_now() {
                        None => Ok(value),
                        Some(lost) => Err(CriticalError::Lost(lost)),
                    };
                }
                Err(status) => Fault::new(&status),
            };
            match fault.over() {
                Ok(lost) => return Err(CriticalError::Lost(self.lose(lost))),
                Err(Fault::Superseded(_)) if !regranted => {
                    regranted = true;
                    self.regrant().await?;
                }
                Err(fault) => return Err(fault.into()),
            }
        }
    }

    /// Asks for the present grant, after a take-over.
    async fn regrant(&self) -> Result<(), CriticalError> {
        let lock_ref = self.grants.present().lock_ref;
        match self.client.acquire_lock(&lock_ref).await {
            Ok(acquired) => match acquired.standing {
                Standing::Held { fencing_token } => {
                    self.lease.extend(acquired.validity);
                    self.grants.renew(&acquired.lock_ref, fencing_token);
                    Ok(())
                }
                // A holder does not become a waiter again.
                Standing::Waiting { .. } => Err(CriticalError::Other(ServerError::unexpected(
                    "a place in the queue for a lock that is held".to_owned(),
                ))),
            },
            Err(WaitError::Lost(lost)) => Err(CriticalError::Lost(self.lose(lost))),
            Err(WaitError::Unavailable(error)) => Err(CriticalError::Unavailable(error)),
            Err(WaitError::Denied(error)) => Err(CriticalError::Denied(error)),
            Err(WaitError::Limit(error)) => Err(CriticalError::Limit(error)),
            Err(WaitError::Other(error)) => Err(CriticalError::Other(error)),
            Err(error @ WaitError::TimedOut { .. }) => Err(CriticalError::Other(
                ServerError::unexpected(error.to_string()),
            )),
        }
    }
}

/// Finds out about the loss, whoever comes to know it first.
async fn monitor(shared: Arc<Shared>) {
    let lost = tokio::select! {
        biased;
        lost = shared.lease.over() => lost,
        lost = follow(&shared) => lost,
    };
    let lost = shared.lose(lost);
    tracing::debug!(reason = lost.reason.as_str(), "a lock is lost");
}

/// Watches the lock on the server: an end by force, and a take-over, show only there.
async fn follow(shared: &Shared) -> Lost {
    tokio::select! {
        () = tokio::time::sleep(shared.client.options().watch_after) => {}
        () = shared.watch_now.notified() => {}
    }
    let mut watcher = Watcher::new(&shared.client, &shared.grants.present().lock_ref);
    loop {
        match watcher.next().await {
            Seen::Waiting { .. } => {}
            Seen::Held {
                lock_ref,
                fencing_token,
            } => shared.grants.renew(&lock_ref, fencing_token),
            Seen::Superseded => {
                if let Err(CriticalError::Lost(lost)) = shared.regrant().await {
                    return lost;
                }
            }
            Seen::Lost(lost) => return lost,
        }
        watcher.follow(&shared.grants.present().lock_ref);
    }
}
