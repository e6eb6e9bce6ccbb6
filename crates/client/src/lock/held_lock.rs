//! What a guard and the task that watches its lock share. What the guard offers is in `guard.rs`.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Mutex, Notify, watch};
use tonic::Status;

use super::grant::Grants;
use super::watch::{Seen, Watcher};
use crate::calls::answer::{Acquired, LockStatus};
use crate::calls::client::{Client, Tries};
use crate::calls::error::CriticalError;
use crate::calls::fault::{Fault, ServerError};
use crate::calls::last_failure::LastFailure;
use crate::calls::lost::Lost;
use crate::calls::sent_write::SentWrite;
use crate::calls::validity::{Promise, Validity};
use crate::clock::sleep_until;
use crate::lease::kept::Lease;
use crate::lease::renewal::RENEWALS_PER_TTL;
use crate::lease::state::LeaseState;
use crate::transport::local_status::unexpected;
use crate::transport::retry::{Backoff, PAUSE_MIN, retry_delay};

/// The time that a lock is held before it is asked whether it is durable: a little longer than it takes to become so
/// (`keep_after` of its table). Shorter sections pay nothing for it.
const CONFIRM_AFTER: Duration = Duration::from_millis(300);

/// A held lock: its grant, its lease, and whether it is lost.
pub(super) struct HeldLock {
    pub(crate) client: Client,
    pub(crate) lease: Arc<Lease>,
    /// Whether the lease is this lock's alone, and not a session's.
    own_lease: bool,
    pub(crate) grants: Grants,
    lost: watch::Sender<Option<Lost>>,
    /// Until when the lock is safe while a crash of the replica that serves its key would end it, whatever was promised to its
    /// lease; `None` once it is durable.
    by_memory: watch::Sender<Option<Validity>>,
    /// Of the calls that ask whether it is durable.
    last_failure: LastFailure,
    /// Calls on one lockRef are made one after the other.
    pub(crate) turn: Mutex<()>,
    /// A caller waits for the loss: watch now.
    watch_now: Notify,
}

impl HeldLock {
    pub(super) fn new(
        client: &Client,
        lease: Arc<Lease>,
        own_lease: bool,
        (lock_ref, fencing_token): (String, u64),
        promise: Promise,
    ) -> HeldLock {
        HeldLock {
            client: client.clone(),
            lease,
            own_lease,
            grants: Grants::new(lock_ref, fencing_token),
            lost: watch::Sender::new(None),
            by_memory: watch::Sender::new((!promise.durable).then_some(promise.validity)),
            last_failure: LastFailure::default(),
            turn: Mutex::new(()),
            watch_now: Notify::new(),
        }
    }

    /// A caller waits for the loss.
    pub(super) fn watch_now(&self) {
        self.watch_now.notify_one();
    }

    /// The loss, as far as it was noticed.
    pub(super) fn lost(&self) -> Option<Lost> {
        self.lost.borrow().clone()
    }

    /// The loss, by the clock as well.
    pub(super) fn lost_now(&self) -> Option<Lost> {
        if let Some(lost) = self.lost() {
            return Some(lost);
        }
        match self.lease.state() {
            LeaseState::Live(_) if self.memory_has_ended() => {
                Some(self.lose(Lost::validity_ended(self.last_failure())))
            }
            LeaseState::Live(_) => None,
            LeaseState::Ended(lost) => Some(self.lose(lost)),
        }
    }

    /// The promise in force: the one that ends first.
    pub(super) fn validity(&self) -> Result<Validity, Lost> {
        if let Some(lost) = self.lost_now() {
            return Err(lost);
        }
        match self.lease.state() {
            LeaseState::Ended(lost) => Err(lost),
            LeaseState::Live(of_lease) => Ok(match self.by_memory() {
                Some(by_memory) => by_memory.or_earlier(of_lease),
                None => of_lease,
            }),
        }
    }

    /// Until when the lock is safe while it is not durable; `None` once it is.
    pub(super) fn by_memory(&self) -> Option<Validity> {
        *self.by_memory.borrow()
    }

    /// Why the promise in force does not grow, by the last attempt.
    pub(super) fn last_failure(&self) -> Option<ServerError> {
        let of_memory = self.by_memory().and_then(|_| self.last_failure.get());
        of_memory.or_else(|| self.lease.last_failure())
    }

    fn memory_has_ended(&self) -> bool {
        let now = self.client.now();
        self.by_memory().is_some_and(|until| until.has_ended(now))
    }

    /// Takes note of the promise of an answer about the lock. One that comes after the end brings nothing back.
    fn note(&self, promise: Promise) {
        if self.lost_now().is_some() {
            return;
        }
        self.lease.extend(promise.validity);
        self.by_memory
            .send_if_modified(|by_memory| match by_memory {
                // Once durable it stays so until its end.
                None => false,
                Some(until) => {
                    *by_memory = (!promise.durable).then_some(until.or_later(promise.validity));
                    true
                }
            });
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
    pub(super) async fn ended(&self) -> Lost {
        let mut changes = self.lost.subscribe();
        loop {
            if let Some(lost) = self.lost_now() {
                return lost;
            }
            tokio::select! {
                biased;
                lost = self.lease.ended() => return self.lose(lost),
                () = self.memory_ends() => {}
                _ = changes.changed() => {}
            }
        }
    }

    /// Returns when what was promised by memory alone is past; never once the lock is durable.
    async fn memory_ends(&self) {
        let mut changes = self.by_memory.subscribe();
        loop {
            let until = *changes.borrow_and_update();
            let past = async {
                match until {
                    Some(until) => sleep_until(self.client.clock(), until.until()).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                _ = changes.changed() => {}
                () = past => return,
            }
        }
    }

    /// Asks until the lock is durable: first when it is likely to be, then each time that half of its promise has passed. Only a
    /// holder that knows it may count on it when its home crashes.
    async fn confirm(&self) -> Lost {
        let mut backoff = Backoff::new();
        let mut pause = CONFIRM_AFTER;
        loop {
            let Some(until) = self.by_memory() else {
                return std::future::pending().await;
            };
            let now = self.client.now();
            let half = (until.left(now) / 2).max(PAUSE_MIN);
            sleep_until(self.client.clock(), now.after(pause.min(half))).await;
            // Several attempts fit into the rest.
            let left = until.left(self.client.now());
            match self
                .confirm_once((left / RENEWALS_PER_TTL).max(PAUSE_MIN))
                .await
            {
                Ok(()) => {
                    self.last_failure.forget();
                    backoff.reset();
                    pause = Duration::MAX;
                }
                Err(status) => match Fault::new(&status).ended() {
                    Ok(lost) => return lost,
                    Err(_) => {
                        tracing::debug!(code = ?status.code(), "a lock is asked about again");
                        self.last_failure.note(ServerError::new(&status));
                        pause = backoff.next(retry_delay(&status));
                    }
                },
            }
        }
    }

    /// The outcome of this work, unless the lock is lost before.
    async fn unless_lost<T>(&self, work: impl Future<Output = T>) -> Result<T, Lost> {
        tokio::select! {
            biased;
            done = work => Ok(done),
            lost = self.ended() => Err(lost),
        }
    }

    /// Makes one critical call; for a superseded grant a second time, with the new one. A write that may have been done is not
    /// made again: another process may have written since.
    pub(super) async fn critical<T, F, Fut>(
        &self,
        sent: &SentWrite,
        call: F,
    ) -> Result<T, CriticalError>
    where
        // (The future of an AsyncFn cannot be shown to be Send, so its caller could not be spawned.)
        F: Fn(String, Tries) -> Fut,
        Fut: Future<Output = Result<(T, Promise), Status>>,
    {
        let _turn = self.turn.lock().await;
        let end = self.client.end();
        let mut regranted = false;
        loop {
            if let Some(lost) = self.lost_now() {
                return Err(CriticalError::Lost(lost));
            }
            let tries = Tries::For(self.client.now().until(end));
            let calling = call(self.grants.present().lock_ref, tries);
            let called = self.unless_lost(calling).await;
            let fault = match called.map_err(CriticalError::Lost)? {
                Ok((value, promise)) => {
                    self.note(promise);
                    // An acknowledgement that comes after the end promises nothing.
                    return match self.lost_now() {
                        None => Ok(value),
                        Some(lost) => Err(CriticalError::Lost(lost)),
                    };
                }
                Err(status) => Fault::new(&status),
            };
            match fault.ended() {
                Ok(lost) => return Err(CriticalError::Lost(self.lose(lost))),
                Err(fault @ Fault::Superseded(_)) if !regranted => {
                    regranted = true;
                    let regrant = self.unless_lost(self.regrant()).await;
                    match regrant.map_err(CriticalError::Lost)? {
                        Err(Fault::Ended(lost)) => return Err(CriticalError::Lost(lost)),
                        // Whatever came of the regrant.
                        _ if sent.is_in_doubt() => return Err(CriticalError::of(fault, true)),
                        Ok(()) if self.client.now() >= end => return Err(fault.into()),
                        regrant => regrant?,
                    }
                }
                Err(fault) => return Err(CriticalError::of(fault, sent.is_in_doubt())),
            }
        }
    }

    /// Asks for the present grant, after a take-over.
    pub(super) async fn regrant(&self) -> Result<(), Fault> {
        let lock_ref = self.grants.present().lock_ref;
        let tries = self.client.tries();
        let acquired = self.client.acquire_raw(&lock_ref, false, tries).await;
        let acquired = acquired.and_then(|acquired| self.granted(acquired));
        acquired.map_err(|status| match Fault::new(&status).ended() {
            Ok(lost) => Fault::Ended(self.lose(lost)),
            Err(fault) => fault,
        })
    }

    /// The same in one attempt.
    async fn confirm_once(&self, attempt_max: Duration) -> Result<(), Status> {
        let attempt_max = attempt_max.min(self.client.options().attempt_timeout);
        let lock_ref = self.grants.present().lock_ref;
        let tries = Tries::Once(attempt_max);
        self.granted(self.client.acquire_raw(&lock_ref, false, tries).await?)
    }

    /// Takes note of an answer to AcquireLock.
    fn granted(&self, acquired: Acquired) -> Result<(), Status> {
        match acquired.status {
            LockStatus::Held { fencing_token } => {
                self.note(acquired.promise);
                self.grants.renew(&acquired.lock_ref, fencing_token);
                Ok(())
            }
            // A holder does not become a waiter again.
            LockStatus::Waiting { .. } => {
                Err(unexpected("an entry in the queue for a lock that is held"))
            }
        }
    }

    /// Finds out about the loss, by the first of three ways.
    pub(super) async fn monitor(self: Arc<Self>) {
        let lost = tokio::select! {
            biased;
            lost = self.ended() => lost,
            lost = self.confirm() => lost,
            lost = self.follow() => lost,
        };
        let lost = self.lose(lost);
        tracing::debug!(reason = lost.reason.as_str(), "a lock is lost");
    }

    /// Watches the lock on the server: an end by force, and a take-over, show only there.
    async fn follow(&self) -> Lost {
        tokio::select! {
            biased;
            () = tokio::time::sleep(self.client.options().watch_after) => {}
            () = self.watch_now.notified() => {}
        }
        let mut watcher = Watcher::new(&self.client, &self.grants.present().lock_ref);
        loop {
            match watcher.next().await {
                Seen::Waiting { .. } => {}
                Seen::Held {
                    lock_ref,
                    fencing_token,
                } => self.grants.renew(&lock_ref, fencing_token),
                Seen::Superseded => {
                    if let Err(Fault::Ended(lost)) = self.regrant().await {
                        return lost;
                    }
                }
                Seen::Lost(lost) => return lost,
            }
            watcher.follow(&self.grants.present().lock_ref);
        }
    }
}
