//! The wait for the turn of an entry, in slices: after a broken connection the next slice continues with the same entry.

use std::sync::Arc;
use std::time::Duration;

use tonic::Status;

use super::entry::{EntryPhase, QueueEntry, WaitBroken, session_ended};
use super::guard::LockGuard;
use super::progress::{Progress, ProgressReport};
use super::watch::{Seen, Watcher};
use crate::calls::answer::{Acquired, LockStatus, Renewed};
use crate::calls::error::WaitError;
use crate::calls::fault::{Fault, ServerError};
use crate::calls::lost::{Lost, LostReason};
use crate::clock::{Moment, sleep_until};
use crate::lease::kept::Lease;
use crate::lease::renewal::RENEWALS_PER_TTL;
use crate::lease::state::LeaseState;
use crate::transport::connections::LongCallPermit;
use crate::transport::retry::{Backoff, Verdict, judge};

/// The longest time between two calls of a wait, for long TTLs. A wait without a stream may learn of its turn this late.
const CALL_EVERY_MAX: Duration = Duration::from_secs(10);

impl QueueEntry {
    /// Waits for the lock, at most `limit` (zero: one try; `None`: no limit). After `TimedOut`, or if this future is dropped, the
    /// entry keeps its place in the queue. If the waiting entry is lost with the replica that served its key, it is made again at
    /// the end of the queue.
    pub async fn wait(&mut self, limit: Option<Duration>) -> Result<LockGuard, WaitError> {
        let end = limit.map(|limit| self.client.now().after(limit));
        self.wait_until(end, None).await
    }

    /// As [`QueueEntry::wait`], and reports the progress: at first, and whenever the position or the estimate changes.
    pub async fn wait_with(
        &mut self,
        limit: Option<Duration>,
        mut on_progress: impl FnMut(Progress) + Send,
    ) -> Result<LockGuard, WaitError> {
        let end = limit.map(|limit| self.client.now().after(limit));
        self.wait_until(end, Some(&mut on_progress)).await
    }

    async fn wait_until(
        &mut self,
        end: Option<Moment>,
        on_progress: Option<&mut (dyn FnMut(Progress) + Send)>,
    ) -> Result<LockGuard, WaitError> {
        let mut report = ProgressReport {
            on_progress,
            reported: None,
            start: self.client.now(),
            watcher: Watcher::new(&self.client, &self.known.lock_ref),
        };
        let mut backoff = Backoff::new();
        loop {
            if self.phase == EntryPhase::LostWhileWaiting {
                self.make_again(end, &mut backoff).await?;
                report.watcher = Watcher::new(&self.client, &self.known.lock_ref);
            }
            match self.wait_in_queue(end, &mut report).await {
                Err(WaitError::Lost(_)) if self.phase == EntryPhase::LostWhileWaiting => {}
                waited => return waited,
            }
        }
    }

    /// Makes an entry again that was lost while it waited, before its client was answered HELD.
    async fn make_again(
        &mut self,
        end: Option<Moment>,
        backoff: &mut Backoff,
    ) -> Result<(), WaitError> {
        tracing::debug!("a waiting entry was lost; creating another one");
        let lost_at = self.client.now();
        // The new entry may be lost at once; do not make a busy loop of that.
        self.pause(backoff.next(None), end).await?;
        loop {
            let timeout = self.client.options().timeout;
            let total = end.map_or(timeout, |end| self.client.now().until(end).min(timeout));
            if total.is_zero() {
                return Err(self.timed_out());
            }
            let session = self.session.clone();
            let made = tokio::select! {
                biased;
                lost = session_ended(session.as_ref()) => return Err(self.lose(lost)),
                made = self.take_again(total) => made,
            };
            match made {
                Ok(()) => return Ok(()),
                Err(status) => {
                    let broken = WaitBroken::Call(status);
                    self.bear(broken, lost_at, end, backoff).await?;
                }
            }
        }
    }

    async fn wait_in_queue(
        &mut self,
        end: Option<Moment>,
        report: &mut ProgressReport<'_>,
    ) -> Result<LockGuard, WaitError> {
        if self.phase != EntryPhase::Taken {
            return Err(WaitError::Lost(Lost::new(
                LostReason::Released,
                "this entry has already become a lock, or has ended",
            )));
        }
        let client = self.client.clone();
        let mut backoff = Backoff::new();
        // The server learned of the entry when it was created, or by the wait before this one.
        let mut answered_at = client.now();
        // After a failed wait the next call only asks: a proxy may let no waits through.
        let mut asks_only = false;
        loop {
            let position = match self.known.status {
                LockStatus::Held { .. } => match self.hold().await {
                    Ok(Some(guard)) => return Ok(guard),
                    Ok(None) => continue,
                    Err(broken) => {
                        self.bear(broken, answered_at, end, &mut backoff).await?;
                        continue;
                    }
                },
                LockStatus::Waiting { position } => position,
            };
            report.notify(position, None, client.now());
            let permit = match asks_only {
                true => Ok(None),
                false => self.permit(end).await,
            };
            let asked = client.now();
            let slice = self.slice(asked, end);
            let waits = matches!(permit, Ok(Some(_)));
            let acquired = match permit {
                Ok(Some(permit)) => self.one_slice(slice, permit, report).await,
                Ok(None) => self.ask().await,
                Err(broken) => Err(broken),
            };
            asks_only = (asks_only || waits) && acquired.is_err();
            match acquired {
                Ok(acquired) => self.note(acquired),
                Err(broken) => {
                    self.bear(broken, answered_at, end, &mut backoff).await?;
                    continue;
                }
            }
            answered_at = asked;
            if let LockStatus::Held { .. } = self.known.status {
                continue;
            }
            let now = client.now();
            if end.is_some_and(|end| now >= end) {
                return Err(self.timed_out());
            }
            // A server, or a proxy, may answer a wait at once; do not make a busy loop of that.
            if waits && asked.until(now) < slice / 2 {
                tokio::time::sleep(backoff.next(None)).await;
            } else if waits {
                backoff.reset();
            }
        }
    }

    /// Queues for a stream for the wait. `None`: no stream came in time, and a call about the entry is due, which keeps it alive.
    async fn permit(&self, end: Option<Moment>) -> Result<Option<LongCallPermit>, WaitBroken> {
        let now = self.client.now();
        let within = self.slice(now, end);
        if within.is_zero() {
            return Ok(None);
        }
        tokio::select! {
            biased;
            permit = self.client.connections().wait_permit() => Ok(Some(permit)),
            lost = session_ended(self.session.as_ref()) => Err(WaitBroken::Ended(lost)),
            () = sleep_until(self.client.clock(), now.after(within)) => Ok(None),
        }
    }

    /// One call that waits, and the events of a watch beside it.
    async fn one_slice(
        &self,
        slice: Duration,
        permit: LongCallPermit,
        report: &mut ProgressReport<'_>,
    ) -> Result<Acquired, WaitBroken> {
        let read_value = self.request.read_value;
        let within = slice + self.attempt_max();
        let lock_ref = &self.known.lock_ref;
        let waiting = self
            .client
            .wait_once(lock_ref, (slice, permit), read_value, within);
        tokio::pin!(waiting);
        loop {
            tokio::select! {
                biased;
                result = &mut waiting => return result.map_err(WaitBroken::Call),
                lost = session_ended(self.session.as_ref()) => return Err(WaitBroken::Ended(lost)),
                seen = report.watcher.next(), if report.on_progress.is_some() => match seen {
                    Seen::Waiting { position, estimate } => {
                        report.notify(position, estimate, self.client.now());
                    }
                    // The wait will say so as well, with the grant.
                    Seen::Held { .. } | Seen::Superseded => {}
                    Seen::Lost(lost) => return Err(WaitBroken::Ended(lost)),
                },
            }
        }
    }

    /// The wait of the next call. (The call renews the entry; its waiting time does not.)
    fn slice(&self, now: Moment, end: Option<Moment>) -> Duration {
        let slice = CALL_EVERY_MAX.min(self.known.ttl / RENEWALS_PER_TTL);
        end.map_or(slice, |end| slice.min(now.until(end)))
    }

    /// Pauses after a call without an answer, if the wait may go on after it.
    async fn bear(
        &mut self,
        broken: WaitBroken,
        answered_at: Moment,
        end: Option<Moment>,
        backoff: &mut Backoff,
    ) -> Result<(), WaitError> {
        let status = match broken {
            WaitBroken::Call(status) => status,
            WaitBroken::Ended(lost) => return Err(self.lose(lost)),
        };
        let Verdict::Repeat { not_before, .. } = judge(&status) else {
            return Err(match WaitError::from(Fault::new(&status)) {
                WaitError::Lost(lost) => self.lose(lost),
                error => error,
            });
        };
        self.wait_failure.0.note(ServerError::new(&status));
        let now = self.client.now();
        // Another replica may have it for longer than its TTL, and says so if it has ended.
        let unheard_max = self.known.ttl.max(self.client.options().timeout);
        if answered_at.until(now) >= unheard_max {
            return Err(Fault::new(&status).into());
        }
        if end.is_some_and(|end| now >= end) {
            return Err(self.timed_out());
        }
        tracing::debug!(code = ?status.code(), "a wait was interrupted; resuming it");
        // A server is to learn of the entry before its TTL has passed.
        let pause_max = self.known.ttl / RENEWALS_PER_TTL;
        let pause_max = not_before.unwrap_or_default().max(pause_max);
        self.pause(backoff.next(not_before).min(pause_max), end)
            .await
    }

    /// Pauses, but not beyond the end of the wait.
    async fn pause(&mut self, span: Duration, end: Option<Moment>) -> Result<(), WaitError> {
        let span = end.map_or(span, |end| self.client.now().until(end).min(span));
        tokio::select! {
            biased;
            lost = session_ended(self.session.as_ref()) => Err(self.lose(lost)),
            () = tokio::time::sleep(span) => Ok(()),
        }
    }

    fn timed_out(&self) -> WaitError {
        WaitError::TimedOut {
            position: self.position(),
        }
    }

    /// A waiting entry may have been lost with its replica, and is made again. A holder, which was answered HELD, must learn of
    /// its loss, and must not get another lock.
    fn lose(&mut self, lost: Lost) -> WaitError {
        self.phase = match self.known.status {
            LockStatus::Waiting { .. } if lost.reason == LostReason::NoLongerKept => {
                EntryPhase::LostWhileWaiting
            }
            LockStatus::Waiting { .. } | LockStatus::Held { .. } => EntryPhase::Gone,
        };
        WaitError::Lost(lost)
    }
}

/// From an entry that holds its key to the guard of its lock, with a promise that still has time left.
impl QueueEntry {
    /// Makes a guard of an entry that holds its key; `None` if the entry still waits.
    async fn hold(&mut self) -> Result<Option<LockGuard>, WaitBroken> {
        self.freshen().await?;
        let LockStatus::Held { fencing_token } = self.known.status else {
            return Ok(None);
        };
        let promise = self.known.promise;
        let has_ended = promise.validity.has_ended(self.client.now());
        let lease = match &self.session {
            Some(session) => match session.lease().state() {
                LeaseState::Live(_) => Some(Arc::clone(session.lease())),
                LeaseState::Ended(lost) => return Err(WaitBroken::Ended(lost)),
            },
            None => None,
        };
        // A session is renewed by itself, and a durable lock is as safe as that.
        if has_ended && (lease.is_none() || !promise.durable) {
            return Err(WaitBroken::Call(Status::deadline_exceeded(
                "the answer arrived after its valid_for had passed",
            )));
        }
        let lease = lease.unwrap_or_else(|| {
            let opened = Renewed {
                session: self.known.session.clone(),
                ttl: self.known.ttl,
                disconnect_grace: None,
                validity: promise.validity,
            };
            Arc::new(Lease::start(&self.client, opened))
        });
        self.phase = EntryPhase::Gone;
        Ok(Some(LockGuard::new(
            &self.client,
            self.session.clone(),
            lease,
            (self.known.lock_ref.clone(), fencing_token),
            promise,
            self.known.value.clone(),
        )))
    }

    /// Asks again if the lock is not durable and more than half of its promise has passed. The promise counts from the sending of
    /// a call that may have waited for long. (A lock that lives by its lease is renewed soon enough.) Also asks again if an entry
    /// without a session has no promise left.
    async fn freshen(&mut self) -> Result<(), WaitBroken> {
        let promise = self.known.promise;
        let left = promise.validity.left(self.client.now());
        let is_past = self.session.is_none() && left.is_zero();
        if (!promise.durable || is_past) && left < promise.validity.span() / 2 {
            let acquired = self.ask().await?;
            self.note(acquired);
        }
        Ok(())
    }
}
