//! The renewals of one lease: one each third of the TTL, or each quarter of the disconnect_grace; over the client's
//! KeepAlive stream, or where that fails as calls of their own.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::calls::from_wire;
use super::clock::{Moment, sleep_until};
use super::connect::Client;
use super::error::SessionError;
use super::fault::Fault;
use super::keep_alive::{KeepAliveLink, Unrenewed};
use super::lease::{LeaseShared, LeaseState};
use super::lost::Lost;
use super::retry::Backoff;
use super::validity::Validity;

/// Renewals in one TTL.
const RENEWALS_PER_TTL: u32 = 3;
/// What an attempt may take of a TTL: several must fit between a renewal that fails and the end.
const ATTEMPTS_PER_TTL: u32 = 6;

/// Renewals in one disconnect_grace.
const RENEWALS_PER_GRACE: u32 = 4;
/// What an attempt may take of a disconnect_grace: two fit between a renewal that fails and nine tenths of it.
const ATTEMPTS_PER_GRACE: u32 = 4;

/// A stream that broke is opened again at once, but not sooner than this after the last renewal; after twice that
/// where it broke again before the next was due, and so on.
const REOPENED_AFTER: Duration = Duration::from_millis(250);

/// What was promised for next to nothing is not renewed sooner than after this.
const RENEWED_AFTER_MIN: Duration = Duration::from_millis(50);

/// How often a renewal is sent, and what is tried for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Pace {
    every: Duration,
    attempt_max: Duration,
    /// How many streams are tried, on one endpoint after the other.
    streams: u32,
    /// How long calls are tried after that.
    calls_max: Duration,
    /// The first one is given at once: no stream is open yet whose end would tell that this client went.
    at_once: bool,
}

impl Pace {
    fn of(ttl: Duration, disconnect_grace: Option<Duration>, every_max: Duration) -> Pace {
        match disconnect_grace {
            None => Pace {
                every: (ttl / RENEWALS_PER_TTL).min(every_max),
                attempt_max: ttl / ATTEMPTS_PER_TTL,
                streams: 1,
                calls_max: ttl / RENEWALS_PER_TTL,
                at_once: false,
            },
            // Calls do not tell that a stream is back.
            Some(grace) => Pace {
                every: (grace / RENEWALS_PER_GRACE).min(every_max),
                attempt_max: grace / ATTEMPTS_PER_GRACE,
                streams: 2,
                calls_max: grace / ATTEMPTS_PER_GRACE,
                at_once: true,
            },
        }
    }

    /// When the next renewal is due: soon enough after what was promised was asked for, and before half of the rest has passed.
    fn due(self, validity: Validity, now: Moment) -> Moment {
        let half = (validity.left(now) / 2).max(RENEWED_AFTER_MIN.min(self.every));
        validity.sent().after(self.every).min(now.after(half))
    }
}

/// What sends the renewals of one lease.
pub(super) struct Renewals {
    client: Client,
    session: String,
    pace: Pace,
    path: RenewalPath,
    /// The number of the stream that the last answer came on.
    heard_on: Option<u64>,
    /// When the last renewal was sent.
    sent_at: Moment,
    /// Becomes true once a server knows whose stream this is, or none ever will.
    on_stream: watch::Sender<bool>,
}

/// How renewals are given.
enum RenewalPath {
    /// None was needed yet: a short section needs none.
    Untried,
    /// Over the stream.
    Stream(Arc<KeepAliveLink>),
    /// As calls: the server has no such stream, or does not take this lease on it.
    Calls,
}

impl Renewals {
    pub(super) fn new(
        client: &Client,
        session: &str,
        ttl: Duration,
        disconnect_grace: Option<Duration>,
        on_stream: watch::Sender<bool>,
    ) -> Renewals {
        Renewals {
            client: client.clone(),
            session: session.to_owned(),
            pace: Pace::of(ttl, disconnect_grace, client.options().renewal_interval_max),
            path: RenewalPath::Untried,
            heard_on: None,
            sent_at: client.now(),
            on_stream,
        }
    }

    /// Renews until the lease has ended.
    pub(super) async fn run(mut self, lease: &LeaseShared) -> Lost {
        let pace = self.pace;
        let client = self.client.clone();
        let mut due = match lease.look() {
            LeaseState::Live(validity) if !pace.at_once => pace.due(validity, client.now()),
            LeaseState::Live(_) | LeaseState::Ended(_) => client.now(),
        };
        let mut backoff = Backoff::new();
        let mut reopened_after = REOPENED_AFTER;
        loop {
            tokio::select! {
                biased;
                () = sleep_until(client.clock(), due) => reopened_after = REOPENED_AFTER,
                // Its replica stopped, or went: another one is to learn of the session soon, and take it over.
                () = self.broken() => {
                    let soonest = self.sent_at.after(reopened_after.min(pace.every));
                    reopened_after = reopened_after.saturating_mul(2);
                    sleep_until(client.clock(), soonest).await;
                }
            }
            self.sent_at = client.now();
            match self.renew().await {
                Ok(validity) => {
                    lease.last_failure.forget();
                    lease.extend(validity);
                    backoff.reset();
                    due = pace.due(validity, client.now());
                }
                Err(SessionError::Ended(lost)) => return lost,
                // What was promised stands; until it ends it is worth trying.
                Err(
                    SessionError::Invalid(error)
                    | SessionError::Limit(error)
                    | SessionError::Denied(error)
                    | SessionError::Unavailable(error)
                    | SessionError::Other(error),
                ) => {
                    tracing::debug!(%error, "a renewal was not accepted");
                    lease.last_failure.note(error);
                    due = client.now().after(backoff.next(None).min(pace.every));
                }
            }
        }
    }

    /// Returns once the stream that the last answer came on has ended; never where there is none.
    async fn broken(&mut self) {
        match (&self.path, self.heard_on) {
            (RenewalPath::Stream(link), Some(stream)) => link.ended(stream).await,
            (RenewalPath::Stream(_), None) | (RenewalPath::Untried | RenewalPath::Calls, _) => {
                std::future::pending().await
            }
        }
        self.heard_on = None;
    }

    /// One renewal: over the stream, or where that fails as a call of its own.
    async fn renew(&mut self) -> Result<Validity, SessionError> {
        for _ in 1..=self.pace.streams {
            match self.renew_on_stream().await {
                Ok(Some(validity)) => return Ok(validity),
                // The call says it in words.
                Ok(None) => break,
                Err(Unrenewed::Refused) => {
                    self.path = RenewalPath::Calls;
                    break;
                }
                Err(Unrenewed::Broken { endpoint }) => {
                    self.heard_on = None;
                    // Where there is another one, the next try is made there: this one may hang.
                    self.client.leave(endpoint);
                }
            }
        }
        if let RenewalPath::Calls = self.path {
            self.on_stream.send_replace(true);
        }
        let calls_max = self.pace.calls_max;
        let renewed = self.client.renew_within(&self.session, calls_max).await;
        Ok(renewed.map_err(|status| Fault::new(&status))?.validity)
    }

    /// `None` where the stream says that the session has ended, or that nothing can be said of it now.
    async fn renew_on_stream(&mut self) -> Result<Option<Validity>, Unrenewed> {
        let link = match &self.path {
            RenewalPath::Stream(link) => Arc::clone(link),
            RenewalPath::Untried => {
                let link = self.client.keep_alive();
                self.path = RenewalPath::Stream(Arc::clone(&link));
                link
            }
            RenewalPath::Calls => return Err(Unrenewed::Refused),
        };
        let attempt_max = self.client.options().attempt_timeout;
        let attempt_max = attempt_max.min(self.pace.attempt_max);
        // Before anything leaves, the opening of the stream included.
        let sent = self.client.now();
        let renewal = link.renew(&self.session, Instant::now() + attempt_max);
        let renewal = renewal.await?;
        self.heard_on = Some(renewal.stream);
        let valid_for = from_wire(renewal.answer.valid_for);
        if renewal.answer.reason != 0 || valid_for.is_zero() {
            return Ok(None);
        }
        // Who can say nothing of the lease has not told its keeper either whose stream this is.
        self.on_stream.send_replace(true);
        Ok(Some(Validity::promised(sent, valid_for)))
    }
}
