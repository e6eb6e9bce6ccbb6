//! Waiting for the turn of an entry: in slices, so that a broken connection resumes the same entry in the
//! queue.

use std::sync::Arc;
use std::time::Duration;

use tonic::Status;

use super::answer::{Acquired, LockStatus, Renewed};
use super::clock::Moment;
use super::entry::QueueEntry;
use super::error::{SessionError, WaitError};
use super::fault::Fault;
use super::guard::LockGuard;
use super::lease::{Lease, LeaseState};
use super::lost::{Lost, LostReason};
use super::retry::{Backoff, Verdict, judge};
use super::session::Session;
use super::validity::Validity;
use super::watch::{Seen, Watcher};

/// The longest wait that is asked for in one call.
const WAIT_SLICE_MAX: Duration = Duration::from_secs(30);
/// The shortest, where connections do not live for longer.
const WAIT_SLICE_MIN: Duration = Duration::from_millis(50);

/// Pauses between two calls, where they fail, that fit into a TTL.
const PAUSES_PER_TTL: u32 = 8;

/// How a wait is going.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// How many are ahead in the queue.
    pub position: u32,
    /// How long it may take still, from when this is told: a guess of the server, by how fast the queue moved in the
    /// last minute; `None` where it did not, or is not known yet.
    pub estimate: Option<Duration>,
    /// How long this wait has taken so far.
    pub waited: Duration,
}

/// Tells how a wait is going, to whom wants to know.
struct ProgressReport<'a> {
    on_progress: Option<&'a mut (dyn FnMut(Progress) + Send)>,
    reported: Option<(u32, Option<Duration>)>,
    start: Moment,
    watcher: Watcher,
}

impl ProgressReport<'_> {
    /// Whether a watch beside a call that waits this long is worth its stream.
    fn watches(&self, slice: Duration) -> bool {
        self.on_progress.is_some() && !slice.is_zero()
    }

    /// Without an estimate a position that was told before is nothing new.
    fn notify(&mut self, position: u32, estimate: Option<Duration>, now: Moment) {
        let known = self.reported.is_some_and(|(reported, before)| {
            reported == position && (estimate.is_none() || estimate == before)
        });
        if let Some(on_progress) = &mut self.on_progress
            && !known
        {
            self.reported = Some((position, estimate));
            on_progress(Progress {
                position,
                estimate,
                waited: self.start.until(now),
            });
        }
    }
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
        if !self.taken {
            return Err(WaitError::Lost(Lost::new(
                LostReason::Released,
                "this entry has become a lock, or has ended, already",
            )));
        }
        let client = self.client.clone();
        let mut report = ProgressReport {
            on_progress,
            reported: None,
            start: client.now(),
            watcher: Watcher::new(&client, &self.lock_ref),
        };
        let mut backoff = Backoff::new();
        // The server learned of the entry when it was created, or by the wait before this one.
        let mut answered_at = report.start;
        // Where a call is cut off by the age of its connection, say, the next one is to be answered before that.
        let mut slice_max = WAIT_SLICE_MAX;
        loop {
            let position = match self.status {
                LockStatus::Held { fencing_token } => return self.hold(fencing_token).await,
                LockStatus::Waiting { position } => position,
            };
            report.notify(position, None, client.now());
            let asked = client.now();
            let slice = self.slice(asked, end).min(slice_max);
            let acquired = match self.one_slice(slice, &mut report).await {
                Ok(acquired) => acquired,
                Err(Broken::Call(status)) => {
                    let lasted = asked.until(client.now());
                    slice_max = slice_max.min(lasted / 2).max(WAIT_SLICE_MIN);
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
            slice_max = slice_max.saturating_mul(2).min(WAIT_SLICE_MAX);
            let now = client.now();
            if end.is_some_and(|end| now >= end) {
                return Err(WaitError::TimedOut {
                    position: self.position(),
                });
            }
            if asked.until(now) < slice / 2 {
                // It did not wait as it was asked to; do not make a busy loop of that.
                tokio::time::sleep(backoff.next(None)).await;
            } else {
                backoff.reset();
            }
        }
    }

    /// One call that waits, and what is seen beside it.
    async fn one_slice(
        &self,
        slice: Duration,
        report: &mut ProgressReport<'_>,
    ) -> Result<Acquired, Broken> {
        // So that a connection that broke in silence is noticed within the TTL.
        let margin = self.client.options().attempt_timeout.min(self.ttl / 4);
        let waiting = self
            .client
            .acquire_once(&self.lock_ref, slice, slice + margin);
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
        self.validity = acquired.validity;
        if let Some(session) = &self.session {
            session.lease().extend(acquired.validity);
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

    /// Makes a guard of an entry that is held.
    async fn hold(&mut self, fencing_token: u64) -> Result<LockGuard, WaitError> {
        let validity = self.fresh_validity().await?;
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
                    valid_until: validity.until(),
                    validity,
                };
                Arc::new(Lease::start(&self.client, opened))
            }
        };
        self.taken = false;
        Ok(LockGuard::new(
            &self.client,
            self.session.clone(),
            lease,
            self.lock_ref.clone(),
            fencing_token,
        ))
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
