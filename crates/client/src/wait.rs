//! Waiting for the turn of an entry: in slices, so that a broken connection resumes the same entry in the
//! queue.

use std::time::Duration;

use tonic::Status;

use super::answer::{Acquired, LockStatus};
use super::clock::{Moment, sleep_until};
use super::connections::LongCallPermit;
use super::entry::{EntryPhase, QueueEntry};
use super::error::WaitError;
use super::fault::{Fault, ServerError};
use super::guard::LockGuard;
use super::lost::{Lost, LostReason};
use super::progress::{Progress, ProgressReport};
use super::retry::{Backoff, Verdict, judge};
use super::session::Session;
use super::watch::{Seen, Watcher};

/// The longest wait that is asked for in one call.
const WAIT_SLICE_MAX: Duration = Duration::from_secs(30);
/// The shortest, where connections do not live for longer.
const WAIT_SLICE_MIN: Duration = Duration::from_millis(50);

/// Pauses between two calls, where they fail, that fit into a TTL.
const PAUSES_PER_TTL: u32 = 8;

/// How often a wait asks in a TTL: each call renews the entry, and the time between two does not …
const CALLS_PER_TTL: u32 = 3;
/// … and without a stream at the latest after this: it may learn of its turn that late.
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

/// Why a call about an entry has no answer.
pub(super) enum WaitBroken {
    /// The call failed.
    Call(Status),
    /// The entry has ended.
    Ended(Lost),
}

impl QueueEntry {
    /// Waits for the lock, at most `limit` (zero is one try; `None` is without end). After `TimedOut` the
    /// entry is still there. A wait that is dropped leaves the entry where it was. An entry that was lost while it waited,
    /// with the replica that served its key, is made again, at the end of the queue.
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

    /// Makes an entry again that was lost while it waited: before anybody was given the lock by it.
    async fn make_again(
        &mut self,
        end: Option<Moment>,
        backoff: &mut Backoff,
    ) -> Result<(), WaitError> {
        tracing::debug!("an entry that was lost while it waited is made again");
        let lost_at = self.client.now();
        // What is made may be lost as soon as it is made; do not make a busy loop of that.
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
                Err(status) => self.bear(status, lost_at, end, backoff).await?,
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
            let position = match self.known.status {
                LockStatus::Held { .. } => match self.hold().await {
                    Ok(Some(guard)) => return Ok(guard),
                    Ok(None) => continue,
                    Err(broken) => {
                        self.mend(broken, answered_at, end, &mut backoff).await?;
                        continue;
                    }
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
                    asks_only = matches!(acquired, Err(WaitBroken::Call(_)));
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
                Err(broken) => {
                    self.mend(broken, answered_at, end, &mut backoff).await?;
                    continue;
                }
            };
            self.note(acquired);
            answered_at = asked;
            if let LockStatus::Held { .. } = self.known.status {
                continue;
            }
            let now = client.now();
            if end.is_some_and(|end| now >= end) {
                return Err(self.timed_out());
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
    ) -> Result<Entry, WaitBroken> {
        let clock = self.client.clock();
        let permit = self.client.connections().wait_permit();
        tokio::pin!(permit);
        let mut ask_at = clock.now();
        loop {
            ask_at = ask_at.after((self.known.ttl / CALLS_PER_TTL).min(POLL_AFTER_MAX));
            if end.is_some_and(|end| clock.now() >= end) {
                return Ok(Entry::Asks);
            }
            let pause_until = end.map_or(ask_at, |end| end.min(ask_at));
            tokio::select! {
                biased;
                permit = &mut permit => return Ok(Entry::Waits(permit)),
                lost = session_ended(self.session.as_ref()) => return Err(WaitBroken::Ended(lost)),
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
    async fn poll(&self) -> (Moment, Result<Acquired, WaitBroken>) {
        let _turn = self.client.connections().poll_permit().await;
        (self.client.now(), self.ask().await)
    }

    /// One call that does not wait.
    pub(super) async fn ask(&self) -> Result<Acquired, WaitBroken> {
        let lock_ref = &self.known.lock_ref;
        let read_value = self.request.read_value;
        let asked = self
            .client
            .acquire_once(lock_ref, None, read_value, self.attempt_max());
        tokio::select! {
            biased;
            lost = session_ended(self.session.as_ref()) => Err(WaitBroken::Ended(lost)),
            answered = asked => answered.map_err(WaitBroken::Call),
        }
    }

    /// How long a call may take that does not wait, and one that does beyond that: so that a connection that broke in
    /// silence is noticed within the TTL.
    fn attempt_max(&self) -> Duration {
        self.client
            .options()
            .attempt_timeout
            .min(self.known.ttl / 4)
    }

    /// One call that waits, and what is seen beside it.
    async fn one_slice(
        &self,
        slice: Duration,
        permit: LongCallPermit,
        report: &mut ProgressReport<'_>,
    ) -> Result<Acquired, WaitBroken> {
        let waits = Some((slice, permit));
        let waiting = self.client.acquire_once(
            &self.known.lock_ref,
            waits,
            self.request.read_value,
            slice + self.attempt_max(),
        );
        tokio::pin!(waiting);
        loop {
            tokio::select! {
                biased;
                result = &mut waiting => return result.map_err(WaitBroken::Call),
                lost = session_ended(self.session.as_ref()) => return Err(WaitBroken::Ended(lost)),
                seen = report.watcher.next(), if report.watches(slice) => match seen {
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

    /// How long the next call waits.
    fn slice(&self, now: Moment, end: Option<Moment>) -> Duration {
        let slice = WAIT_SLICE_MAX.min(self.known.ttl / CALLS_PER_TTL);
        end.map_or(slice, |end| slice.min(now.until(end)))
    }

    pub(super) fn note(&mut self, acquired: Acquired) {
        self.wait_failure.0.forget();
        self.known.lock_ref = acquired.lock_ref;
        self.known.status = acquired.status;
        self.known.promise = acquired.promise;
        self.known.value = acquired.value;
        if let Some(session) = &self.session {
            session.lease().extend(acquired.promise.validity);
        }
    }

    /// Goes on after a call without an answer, if the wait may.
    async fn mend(
        &mut self,
        broken: WaitBroken,
        answered_at: Moment,
        end: Option<Moment>,
        backoff: &mut Backoff,
    ) -> Result<(), WaitError> {
        match broken {
            WaitBroken::Call(status) => self.bear(status, answered_at, end, backoff).await,
            WaitBroken::Ended(lost) => Err(self.lose(lost)),
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
        tracing::debug!(code = ?status.code(), "a wait is resumed");
        // It is to be learned of before its TTL has passed.
        let pause_max = not_before
            .unwrap_or_default()
            .max(self.known.ttl / PAUSES_PER_TTL);
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

    /// Of an entry that waited it may be that it was lost with its replica. A holder was answered HELD: it is to learn of its
    /// loss, and not of another lock.
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

/// Returns when the session has ended; never without one.
async fn session_ended(session: Option<&Session>) -> Lost {
    match session {
        Some(session) => session.lost().await,
        None => std::future::pending().await,
    }
}
