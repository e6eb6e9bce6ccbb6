//! The state that a guard shares with the task that watches its lock. The methods of the guard are in `guard.rs`.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Mutex, Notify};
use tonic::Status;

use super::grant::Grants;
use super::watch::{Seen, Watcher};
use crate::calls::answer::{Acquired, LockStatus};
use crate::calls::client::{Client, Tries};
use crate::calls::error::CriticalError;
use crate::calls::fault::{Fault, ServerError};
use crate::calls::lost::Lost;
use crate::calls::sent_write::SentWrite;
use crate::calls::validity::{Promise, Validity};
use crate::clock::sleep_until;
use crate::lease::kept::Lease;
use crate::lease::renewal::RENEWALS_PER_TTL;
use crate::lease::state::{LeaseCell, LeaseState};
use crate::transport::local_status::unexpected;
use crate::transport::retry::{Backoff, PAUSE_MIN, retry_delay};

/// The time from the grant to the first question whether the lock is durable: a little longer than `keep_after` of its table.
/// Shorter sections pay nothing for it.
const CONFIRM_AFTER: Duration = Duration::from_millis(300);

/// A held lock: its grant, its lease, and whether it is lost.
pub(super) struct HeldLock {
    pub(super) client: Client,
    pub(super) lease: Arc<Lease>,
    /// Whether the lease belongs to this lock, and not to a session.
    own_lease: bool,
    pub(super) grants: Grants,
    /// Whether the lock is lost. Until it is durable it ends with its own promise, even if its lease lasts longer: a crash of the
    /// replica that serves its key would end it.
    own: LeaseCell,
    /// Calls on one lockRef are made one after the other.
    pub(super) turn: Mutex<()>,
    /// A caller waits for the loss: watch now.
    watch_now: Notify,
}

/// The validity of a lock apart from its lease.
fn of_lock(promise: Promise) -> Validity {
    match promise.durable {
        true => Validity::endless(),
        false => promise.validity,
    }
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
            own: LeaseCell::new(client.shared_clock(), of_lock(promise)),
            turn: Mutex::new(()),
            watch_now: Notify::new(),
        }
    }

    /// A caller waits for the loss.
    pub(super) fn watch_now(&self) {
        self.watch_now.notify_one();
    }

    /// The validity in force, the one that ends first; or the loss, also by the clock.
    pub(super) fn validity(&self) -> Result<Validity, Lost> {
        match (self.own.look(), self.lease.state()) {
            (LeaseState::Ended(lost), _) | (_, LeaseState::Ended(lost)) => Err(self.lose(lost)),
            (LeaseState::Live(own), LeaseState::Live(of_lease)) => Ok(own.or_earlier(of_lease)),
        }
    }

    /// Whether the lock survives a crash of its home. A durable lock stays durable until its end.
    pub(super) fn is_durable(&self) -> bool {
        matches!(self.own.look(), LeaseState::Live(own) if own.is_endless())
    }

    /// The validity of the lock while it is not durable.
    fn by_memory(&self) -> Option<Validity> {
        match self.own.look() {
            LeaseState::Live(own) => Some(own).filter(|own| !own.is_endless()),
            LeaseState::Ended(_) => None,
        }
    }

    /// Why the validity does not grow, by the last attempt.
    pub(super) fn last_failure(&self) -> Option<ServerError> {
        let of_lease = || self.lease.last_failure();
        self.own.last_failure.get().or_else(of_lease)
    }

    /// Notes the promise of an answer about the lock. After the end it changes nothing.
    fn note(&self, promise: Promise) {
        if self.validity().is_ok() {
            self.lease.extend(promise.validity);
            self.own.extend(of_lock(promise));
        }
    }

    /// Loses the lock, once; the first reason stays.
    fn lose(&self, lost: Lost) -> Lost {
        self.own.end(lost.clone());
        if self.own_lease {
            self.lease.end(lost.clone());
        }
        match self.own.look() {
            LeaseState::Ended(first) => first,
            LeaseState::Live(_) => lost,
        }
    }

    /// Returns when the lock is lost.
    pub(super) async fn ended(&self) -> Lost {
        let lost = tokio::select! {
            biased;
            lost = self.own.ended() => lost,
            lost = self.lease.ended() => lost,
        };
        self.lose(lost)
    }

    /// Asks until the lock is durable: first when that is likely, then each time half of the promise has passed. Only with that
    /// answer may the holder keep its lock after a crash of the home.
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
                    self.own.last_failure.forget();
                    backoff.reset();
                    pause = Duration::MAX;
                }
                Err(status) => match Fault::new(&status).ended() {
                    Ok(lost) => return lost,
                    Err(_) => {
                        tracing::debug!(code = ?status.code(), "could not confirm a lock; retrying");
                        self.own.last_failure.note(ServerError::new(&status));
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
            if let Some(lost) = self.validity().err() {
                return Err(CriticalError::Lost(lost));
            }
            let tries = Tries::For(self.client.now().until(end));
            let calling = call(self.grants.present().lock_ref, tries);
            let called = self.unless_lost(calling).await;
            let fault = match called.map_err(CriticalError::Lost)? {
                Ok((value, promise)) => {
                    self.note(promise);
                    // An acknowledgement that comes after the end promises nothing.
                    return match self.validity().err() {
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

    /// As [`HeldLock::regrant`], in one attempt.
    async fn confirm_once(&self, attempt_max: Duration) -> Result<(), Status> {
        let attempt_max = attempt_max.min(self.client.options().attempt_timeout);
        let lock_ref = self.grants.present().lock_ref;
        let tries = Tries::Once(attempt_max);
        self.granted(self.client.acquire_raw(&lock_ref, false, tries).await?)
    }

    /// Notes an answer to AcquireLock.
    fn granted(&self, acquired: Acquired) -> Result<(), Status> {
        match acquired.status {
            LockStatus::Held { fencing_token } => {
                self.note(acquired.promise);
                self.grants.renew(&acquired.lock_ref, fencing_token);
                Ok(())
            }
            // A holder does not become a waiter again.
            LockStatus::Waiting { .. } => Err(unexpected("WAITING for a lock that is held")),
        }
    }

    /// Returns once the lock is lost, noticed in the first of three ways.
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

    /// Watches the lock on the server: only the watch shows an end by force or a take-over.
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
