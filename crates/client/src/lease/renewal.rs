//! The renewals of one lease: a call each third of the TTL. With a disconnect_grace, a message each quarter of the grace over its
//! own KeepAlive stream, because the server takes the end of the stream for the end of the client.

use std::time::Duration;

use fermata_proto::{KeepAliveRequest, KeepAliveResponse};
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status, Streaming};

use super::state::{LeaseCell, LeaseState};
use crate::calls::answer::Renewed;
use crate::calls::client::{Client, Tries};
use crate::calls::fault::{Fault, ServerError};
use crate::calls::lost::Lost;
use crate::calls::validity::Validity;
use crate::calls::wire::from_wire;
use crate::clock::{Moment, sleep_until};
use crate::transport::connections::{LongCallPermit, LongCallStream};
use crate::transport::local_status::no_answer_within;
use crate::transport::not_grpc;
use crate::transport::retry::{Backoff, PAUSE_MIN, Verdict, judge};

/// Renewals in one TTL: two may fail before its end. A wait asks as often.
pub(crate) const RENEWALS_PER_TTL: u32 = 3;
/// Renewals in one disconnect_grace, as in the contract.
const RENEWALS_PER_GRACE: u32 = 4;

/// The pace of renewals, and the time limit of one attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Pace {
    every: Duration,
    attempt_max: Duration,
}

impl Pace {
    fn of(opened: &Renewed, every_max: Duration) -> Pace {
        let of_ttl = opened.ttl / RENEWALS_PER_TTL;
        let (every, attempt_max) = match opened.disconnect_grace {
            None => (of_ttl, of_ttl / 2),
            Some(grace) => (grace / RENEWALS_PER_GRACE, grace / RENEWALS_PER_GRACE),
        };
        Pace {
            every: every.min(every_max),
            attempt_max,
        }
    }

    /// The due time of the next renewal: counted from the sending of the last one, and before half of the remaining validity has
    /// passed.
    fn due(self, validity: Validity, now: Moment) -> Moment {
        let half = (validity.left(now) / 2).max(PAUSE_MIN.min(self.every));
        validity.sent().after(self.every).min(now.after(half))
    }
}

/// A KeepAlive stream.
struct Stream {
    requests: mpsc::Sender<KeepAliveRequest>,
    answers: Streaming<KeepAliveResponse>,
    _stream: Option<LongCallStream>,
}

/// The sender of the renewals of one lease.
pub(super) struct Renewals {
    client: Client,
    session: String,
    pace: Pace,
    /// Whether renewals go over a stream: with a disconnect_grace, unless a server refused it.
    streams: bool,
    stream: Option<Stream>,
    /// When the last renewal was sent.
    sent_at: Moment,
    /// Becomes true once a server knows the stream, or once there will be no stream.
    attached: watch::Sender<bool>,
}

impl Renewals {
    pub(super) fn new(client: &Client, opened: &Renewed, attached: watch::Sender<bool>) -> Self {
        Renewals {
            client: client.clone(),
            session: opened.session.clone(),
            pace: Pace::of(opened, client.options().renewal_interval_max),
            streams: opened.disconnect_grace.is_some(),
            stream: None,
            sent_at: client.now(),
            attached,
        }
    }

    /// Renews until the lease has ended.
    pub(super) async fn run(mut self, lease: &LeaseCell) -> Lost {
        let pace = self.pace;
        let client = self.client.clone();
        let mut due = match lease.look() {
            // The first renewal over a stream is sent at once: no server knows the stream yet.
            LeaseState::Live(validity) if !self.streams => pace.due(validity, client.now()),
            LeaseState::Live(_) | LeaseState::Ended(_) => client.now(),
        };
        let mut backoff = Backoff::new();
        let mut reopening = Backoff::new();
        loop {
            tokio::select! {
                biased;
                () = sleep_until(client.clock(), due) => reopening.reset(),
                // Its replica stopped, or went: another one is to learn of the session soon.
                () = broken(&mut self.stream) => {
                    self.stream = None;
                    let pause = reopening.next(None).min(pace.every);
                    sleep_until(client.clock(), self.sent_at.after(pause)).await;
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
                Err(status) => match Fault::new(&status).ended() {
                    Ok(lost) => return lost,
                    // The promise stands; until its end a renewal is worth trying.
                    Err(_) => {
                        tracing::debug!(code = ?status.code(), "a renewal failed");
                        lease.last_failure.note(ServerError::new(&status));
                        due = client.now().after(backoff.next(None).min(pace.every));
                    }
                },
            }
        }
    }

    /// One renewal: over the stream, or by a call if the stream fails.
    async fn renew(&mut self) -> Result<Validity, Status> {
        let attempt_max = self
            .pace
            .attempt_max
            .min(self.client.options().attempt_timeout);
        // A stream that broke is opened again, at another endpoint if there is one.
        for _ in 0..2 {
            if !self.streams {
                break;
            }
            let connections = self.client.connections();
            let permit = match &self.stream {
                Some(_) => None,
                None => connections.try_watch_permit(),
            };
            if self.stream.is_none() && permit.is_none() {
                // All streams are in use: a call renews as well, and the next renewal tries again.
                self.attached.send_replace(true);
                break;
            }
            let at = connections.current();
            // Before anything leaves, the opening of the stream included.
            let sent = self.client.now();
            let answer = timeout(attempt_max, self.renew_on_stream(permit)).await;
            match answer.unwrap_or_else(|_| Err(no_answer_within(attempt_max))) {
                Ok(answer) => {
                    let valid_for = from_wire(answer.valid_for);
                    if answer.reason != 0 || valid_for.is_zero() {
                        // The call says it in words.
                        break;
                    }
                    // (A replica that can say nothing of the session has not told its keeper of the stream either.)
                    self.attached.send_replace(true);
                    return Ok(Validity::promised(sent, valid_for));
                }
                Err(status) => {
                    let status = not_grpc::of_answer(status);
                    tracing::debug!(code = ?status.code(), "the KeepAlive stream has ended");
                    self.stream = None;
                    if judge(&status) == Verdict::Final && status.code() != Code::Unauthenticated {
                        self.streams = false;
                        self.attached.send_replace(true);
                    } else {
                        self.client.leave(at);
                    }
                }
            }
        }
        let tries = Tries::Once(attempt_max);
        Ok(self.client.renew_raw(&self.session, tries).await?.validity)
    }

    /// Sends a renewal over the stream. Opens a stream with the permit if there is none.
    async fn renew_on_stream(
        &mut self,
        permit: Option<LongCallPermit>,
    ) -> Result<KeepAliveResponse, Status> {
        let ended = || Status::unavailable("the stream has ended");
        let ask = KeepAliveRequest {
            session: self.session.clone(),
        };
        let stream = match &mut self.stream {
            Some(stream) => {
                stream.requests.try_send(ask).map_err(|_| ended())?;
                stream
            }
            None => {
                let (requests, queue) = mpsc::channel(1);
                requests.try_send(ask).map_err(|_| ended())?;
                let permit = permit.ok_or_else(ended)?;
                let (_, attempt) = self.client.long_attempt(permit);
                let request = attempt.stream_request(ReceiverStream::new(queue));
                let answers = attempt.locks().keep_alive(request).await?.into_inner();
                self.stream.insert(Stream {
                    requests,
                    answers,
                    _stream: attempt.into_stream(),
                })
            }
        };
        stream.answers.message().await?.ok_or_else(ended)
    }
}

/// Returns once the stream has ended; never without a stream.
async fn broken(stream: &mut Option<Stream>) {
    match stream {
        // (An answer without a renewal breaks it as well.)
        Some(stream) => drop(stream.answers.message().await),
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn pace(ttl: Duration, disconnect_grace: Option<Duration>, every_max: Duration) -> Pace {
        let opened = Renewed {
            session: String::new(),
            ttl,
            disconnect_grace,
            validity: Validity::promised(Moment::from_zero(Duration::ZERO), ttl),
        };
        Pace::of(&opened, every_max)
    }

    #[test]
    fn a_renewal_is_due_a_third_of_the_ttl_after_the_last_or_when_half_of_the_rest_has_passed() {
        let pace = pace(30_000 * MS, None, Duration::MAX);
        let sent = Moment::from_zero(1_000 * MS);
        let validity = Validity::promised(sent, 30_000 * MS);
        assert_eq!(pace.due(validity, sent), sent.after(10_000 * MS));
        // 15 s of 27 s are left: it is due at once.
        let late = sent.after(12_000 * MS);
        assert_eq!(pace.due(validity, late), sent.after(10_000 * MS));
        let short = Validity::promised(sent, 1_000 * MS);
        assert_eq!(pace.due(short, sent), sent.after(450 * MS));
        // Nothing is left: not in a busy loop.
        let over = Validity::promised(sent, Duration::ZERO);
        assert_eq!(pace.due(over, sent), sent.after(PAUSE_MIN));
    }

    #[test]
    fn renewals_come_as_often_as_is_asked_for_and_attempts_fit_between_them() {
        let often = pace(30_000 * MS, None, 2_000 * MS);
        assert_eq!(often.every, 2_000 * MS);
        assert_eq!(often.attempt_max, 5_000 * MS);
        let graceful = pace(30_000 * MS, Some(400 * MS), Duration::MAX);
        assert_eq!((graceful.every, graceful.attempt_max), (100 * MS, 100 * MS));
    }
}
