//! Waiting for the turn of an entry: in slices, so that a broken connection resumes the same entry in the
//! queue.

use std::sync::Arc;
use std::time::Duration;

use tonic::Status;

use super::answer::{Acquired, LockStatus, Renewed};
use super::clock::{Moment, sleep_until};
use super::connections::LongCallPermit;
use super::entry::QueueEntry;
use super::error::{SessionError, WaitError};
use super::fault::Fault;
use super::guard::LockGuard;
use super::lease::{Lease, LeaseState};
use super::lost::{Lost, LostReason};
use super::progress::{Progress, ProgressReport};
use super::retry::{Backoff, Verdict, judge};
use super::session::Session;
use super::validity::{Promise, Validity};
use super::watch::{Seen, Watcher};

/// The longest wait that is asked for in one call.
const WAIT_SLICE_MAX: Duration = Duration::from_secs(30);
/// The shortest, where connections do not live for longer.
const WAIT_SLICE_MIN: Duration = Duration::from_millis(50);

/// A lock that is not durable, and was promised no more than this, is asked about again before it is believed in.
const MEMORY_LEFT_MIN: Duration = Duration::from_millis(500);

/// Pauses between two calls, where they fail, that fit into a TTL.
const PAUSES_PER_TTL: u32 = 8;

/// How often a wait that has no stream asks in a TTL …
const POLLS_PER_TTL: u32 = 3;
/// … and at the latest after this: it may learn of its turn that late.
const POLL_AFTER_MAX: Duration = Duration::from_secs(10);

/// How the next call is made.
enum Entry {
    /// On a stream of its own, on which it may wait.
    Waits(LongCallPermit),
    /// Without waiting: no time, or no trust, is left.
    Asks,
    /// Not at all: it was answered while it had no stream.
    Answered(Acquired),
}

/// Why a call that waited has no answer.
enum Broken {
    /// The call failed.
    Call(Status),
    /// The entry has ended.
    Ended(Lost),
}

impl QueueEntry {
    /// Waits for the lock, at most `limit` (zero is one try; `None` is without end). After `TimedOut` the
    /// entry is still there. A wait that is dropped leaves the entry where it was.
    pub async fn wait(&mut self, limit: Option<Duration>) -> Result<LockGuard, WaitError> {
        let end = limit.map(|limit| self.client.now().after(limit));
        self.wait_until(end, None).await
    }

    /// The same, telling how it goes: at first, and whenever the position or the estimate changes.
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
            watcher: Watcher::new(&self.client, &self.lock_ref),
        };
        loop {
            match self.wait_in_queue(end, &mut report).await {
                // It was lost with the replica that served its key, before anybody was given the lock.
                Err(WaitError::Lost(lost)) if lost.reason == LostReason::NoLongerKept => {
                    tracing::debug!("an entry that was lost while it waited is made again");
                    self.take_again().await?;
                    report.watcher = Watcher::new(&self.client, &self.lock_ref);
                }
                waited => return waited,
            }
        }
    }

    async fn wait_in_queue(
        &mut self,
        end: Option<Moment>,
        report: &mut ProgressReport<'_>,
    ) -> Result<LockGuard, WaitError> {
        if !self.taken {
            return Err(WaitError::Lost(Lost::new(
                LostReason::Released,
                "this entry has become a lock, or has ended, already",
            )));
        }
        let client = self.client.clone();
        let mut backoff = Backoff::new();
        // The server learned of the entry when it was created, or by the wait before this one.
        let mut answered_at = client.now();
        // Where a call is cut off by the age of its connection, say, the next one is to be answered before that.
        let mut slice_max = WAIT_SLICE_MAX;
        // After a call that waited in vain the next one asks only: there may be no way for such to come through.
        let mut asks_only = false;
        loop {
            let position = match self.status {
                LockStatus::Held { .. } => match self.hold().await? {
                    Some(guard) => return Ok(guard),
                    None => continue,
                },
                LockStatus::Waiting { position } => position,
            };
            report.notify(position, None, client.now());
            let entry = match asks_only {
                true => Ok(Entry::Asks),
                false => self.enter(end, report, &mut answered_at).await,
            };
            let asked = client.now();
            let (slice, acquired) = match entry {
                Ok(Entry::Waits(permit)) => {
                    let slice = self.slice(asked, end).min(slice_max);
                    let acquired = self.one_slice(slice, permit, report).await;
                    asks_only = matches!(acquired, Err(Broken::Call(_)));
                    if asks_only {
                        let lasted = asked.until(client.now());
                        slice_max = slice_max.min(lasted / 2).max(WAIT_SLICE_MIN);
                    } else {
                        slice_max = slice_max.saturating_mul(2).min(WAIT_SLICE_MAX);
                    }
                    (Some(slice), acquired)
                }
                Ok(Entry::Asks) => {
                    let acquired = self.ask().await;
                    asks_only = asks_only && acquired.is_err();
                    (None, acquired)
                }
                Ok(Entry::Answered(acquired)) => (None, Ok(acquired)),
                Err(broken) => (None, Err(broken)),
            };
            let acquired = match acquired {
                Ok(acquired) => acquired,
                Err(Broken::Call(status)) => {
                    self.bear(status, answered_at, end, &mut backoff).await?;
                    continue;
                }
                Err(Broken::Ended(lost)) => return Err(self.lose(lost)),
            };
            self.note(acquired);
            if let LockStatus::Held { .. } = self.status {
                continue;
            }
            answered_at = asked;
            let now = client.now();
            if end.is_some_and(|end| now >= end) {
                return Err(WaitError::TimedOut {
                    position: self.position(),
                });
            }
            match slice {
                // It did not wait as it was asked to; do not make a busy loop of that.
                Some(slice) if asked.until(now) < slice / 2 => {
                    tokio::time::sleep(backoff.next(None)).await;
                }
                Some(_) => backoff.reset(),
                None => {}
            }
        }
    }

    /// Queues for a stream to wait on. Without one the entry is asked about now and then, which keeps it alive.
    async fn enter(
        &self,
        end: Option<Moment>,
        report: &mut ProgressReport<'_>,
        answered_at: &mut Moment,
    ) -> Result<Entry, Broken> {
        let clock = self.client.clock();
        let permit = self.client.connections().wait_permit();
        tokio::pin!(permit);
        let mut ask_at = clock.now();
        loop {
            ask_at = ask_at.after((self.ttl / POLLS_PER_TTL).min(POLL_AFTER_MAX));
            if end.is_some_and(|end| clock.now() >= end) {
                return Ok(Entry::Asks);
            }
            let pause_until = end.map_or(ask_at, |end| end.min(ask_at));
            tokio::select! {
                biased;
                permit = &mut permit => return Ok(Entry::Waits(permit)),
                lost = session_ended(self.session.as_ref()) => return Err(Broken::Ended(lost)),
                () = sleep_until(clock, pause_until) => {}
            }
            if end.is_some_and(|end| clock.now() >= end) {
                return Ok(Entry::Asks);
            }
            let (asked, acquired) = tokio::select! {
                biased;
                permit = &mut permit => return Ok(Entry::Waits(permit)),
                polled = self.poll() => polled,
            };
            let acquired = acquired?;
            let LockStatus::Waiting { position } = acquired.status else {
                return Ok(Entry::Answered(acquired));
            };
            *answered_at = asked;
            ask_at = asked;
            report.notify(position, None, clock.now());
        }
    }

    /// Asks while there is no stream to wait on; not many do so at once.
    async fn poll(&self) -> (Moment, Result<Acquired, Broken>) {
        let _turn = self.client.connections().poll_permit().await;
        (self.client.now(), self.ask().await)
    }

    /// One call that does not wait.
    async fn ask(&self) -> Result<Acquired, Broken> {
        let asking = self
            .client
            .acquire_once(&self.lock_ref, None, self.attempt_max());
        asking.await.map_err(Broken::Call)
    }

    /// How long a call may take that does not wait, and one that does beyond that: so that a connection that broke in
    /// silence is noticed within the TTL.
    fn attempt_max(&self) -> Duration {
        self.client.options().attempt_timeout.min(self.ttl / 4)
    }

    /// One call that waits, and what is seen beside it.
    async fn one_slice(
        &self,
        slice: Duration,
        permit: LongCallPermit,
        report: &mut ProgressReport<'_>,
    ) -> Result<Acquired, Broken> {
        let waits = Some((slice, permit));
        let waiting = self
            .client
            .acquire_once(&self.lock_ref, waits, slice + self.attempt_max());
        tokio::pin!(waiting);
        loop {
            tokio::select! {
                biased;
                result = &mut waiting => return result.map_err(Broken::Call),
                lost = session_ended(self.session.as_ref()) => return Err(Broken::Ended(lost)),
                seen = report.watcher.next(), if report.watches(slice) => match seen {
                    Seen::Waiting { position, estimate } => {
                        report.notify(position, estimate, self.client.now());
                    }
                    // The wait will say so as well, with the grant.
                    Seen::Held { .. } | Seen::Superseded => {}
                    Seen::Lost(lost) => return Err(Broken::Ended(lost)),
                },
            }
        }
    }

    /// How long the next call waits.
    fn slice(&self, now: Moment, end: Option<Moment>) -> Duration {
        let slice = WAIT_SLICE_MAX.min(self.ttl / 2);
        end.map_or(slice, |end| slice.min(now.until(end)))
    }

    fn note(&mut self, acquired: Acquired) {
        self.lock_ref = acquired.lock_ref;
        self.status = acquired.status;
        self.validity = acquired.promise.validity;
        self.durable = acquired.promise.durable;
        if let Some(session) = &self.session {
            session.lease().extend(acquired.promise.validity);
        }
    }

    /// Pauses after a failed call, if the wait may go on after it.
    async fn bear(
        &mut self,
        status: Status,
        answered_at: Moment,
        end: Option<Moment>,
        backoff: &mut Backoff,
    ) -> Result<(), WaitError> {
        let Verdict::Repeat { not_before } = judge(&status) else {
            let error = WaitError::from(Fault::new(&status));
            if let WaitError::Lost(_) = error {
                self.taken = false;
            }
            return Err(error);
        };
        let now = self.client.now();
        // Another replica may have it for longer than its TTL, and says so if it has ended.
        let unheard_max = self.ttl.max(self.client.options().timeout);
        if answered_at.until(now) >= unheard_max {
            return Err(Fault::new(&status).into());
        }
        if end.is_some_and(|end| now >= end) {
            return Err(WaitError::TimedOut {
                position: self.position(),
            });
        }
        tracing::debug!(code = ?status.code(), "a wait is resumed");
        // It is to be learned of before its TTL has passed.
        let pause_max = not_before
            .unwrap_or_default()
            .max(self.ttl / PAUSES_PER_TTL);
        tokio::time::sleep(backoff.next(not_before).min(pause_max)).await;
        Ok(())
    }

    fn lose(&mut self, lost: Lost) -> WaitError {
        self.taken = false;
        WaitError::Lost(lost)
    }

    /// Makes a guard of an entry that is held; `None` if it turns out that it waits.
    async fn hold(&mut self) -> Result<Option<LockGuard>, WaitError> {
        let promise = self.fresh_promise().await?;
        let LockStatus::Held { fencing_token } = self.status else {
            return Ok(None);
        };
        let validity = promise.validity;
        let lease = match &self.session {
            Some(session) => {
                session.lease().extend(validity);
                Arc::clone(session.lease())
            }
            None => {
                let opened = Renewed {
                    session: self.lease_id.clone(),
                    ttl: self.ttl,
                    disconnect_grace: None,
                    validity,
                };
                Arc::new(Lease::start(&self.client, opened))
            }
        };
        self.taken = false;
        Ok(Some(LockGuard::new(
            &self.client,
            self.session.clone(),
            lease,
            (self.lock_ref.clone(), fencing_token),
            promise,
        )))
    }

    /// What is promised for the lock. Of one that is not durable that is what the answer about it promised; after a long wait
    /// little or nothing of it is left, and it is asked about again.
    async fn fresh_promise(&mut self) -> Result<Promise, WaitError> {
        if !self.durable && self.validity.left(self.client.now()) < MEMORY_LEFT_MIN {
            let acquired = self.client.acquire_lock(&self.lock_ref).await;
            let acquired = acquired.inspect_err(|error| {
                self.taken &= !matches!(error, WaitError::Lost(_));
            })?;
            self.note(acquired);
        }
        let durable = self.durable;
        let validity = match durable {
            true => self.fresh_validity().await?,
            false => self.validity,
        };
        Ok(Promise { validity, durable })
    }

    /// Validity counts from when the request was sent. After a long wait little or nothing is left of it,
    /// so the server is asked again, unless a session that lives by itself has more.
    async fn fresh_validity(&mut self) -> Result<Validity, WaitError> {
        let now = self.client.now();
        let mut span = self.ttl;
        if let Some(session) = &self.session {
            match session.lease().state() {
                LeaseState::Live(validity) => self.validity = self.validity.or_later(validity),
                LeaseState::Ended(lost) => return Err(self.lose(lost)),
            }
            span = session.disconnect_grace().unwrap_or(span);
        }
        let full = Validity::promised(now, span).left(now);
        if self.validity.left(now) >= full / 2 {
            return Ok(self.validity);
        }
        let lease_id = match &self.session {
            Some(session) => session.id(),
            None => &self.lease_id,
        };
        let error = match self.client.renew_session(lease_id).await {
            Ok(renewed) => return Ok(self.validity.or_later(renewed.validity)),
            Err(error) => error,
        };
        if let SessionError::Ended(lost) = error {
            return Err(self.lose(lost));
        }
        if !self.validity.has_ended(self.client.now()) {
            return Ok(self.validity);
        }
        Err(match error {
            SessionError::Ended(lost) => WaitError::Lost(lost),
            SessionError::Unavailable(error) => WaitError::Unavailable(error),
            SessionError::Limit(error) => WaitError::Limit(error),
            SessionError::Denied(error) => WaitError::Denied(error),
            SessionError::Invalid(error) | SessionError::Other(error) => WaitError::Other(error),
        })
    }
}

/// Returns when the session has ended; never without one.
async fn session_ended(session: Option<&Session>) -> Lost {
    match session {
        Some(session) => session.lost().await,
        None => std::future::pending().await,
    }
}
