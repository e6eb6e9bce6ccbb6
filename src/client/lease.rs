//! What keeps a session, or a lockRef without one, alive: a task that sends a renewal each third of
//! the TTL, or each quarter of the disconnect_grace, and a state that says until when that may be believed.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Request, Status, Streaming};

use super::answer::Renewed;
use super::calls::from_wire;
use super::clock::{Clock, Moment, sleep_until};
use super::connect::Client;
use super::error::SessionError;
use super::lost::Lost;
use super::retry::Backoff;
use super::validity::Validity;
use crate::proto;

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
    fn of(ttl: Duration, disconnect_grace: Option<Duration>) -> Pace {
        match disconnect_grace {
            None => Pace {
                every: ttl / RENEWALS_PER_TTL,
                attempt_max: ttl / ATTEMPTS_PER_TTL,
                streams: 1,
                calls_max: ttl / RENEWALS_PER_TTL,
                at_once: false,
            },
            // Calls do not tell that a stream is back.
            Some(grace) => Pace {
                every: grace / RENEWALS_PER_GRACE,
                attempt_max: grace / ATTEMPTS_PER_GRACE,
                streams: 2,
                calls_max: grace / ATTEMPTS_PER_GRACE,
                at_once: true,
            },
        }
    }
}

/// Whether it lives. Once ended it stays ended: who was told so has acted on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum LeaseState {
    /// Safe from expiry for as long as the validity lasts.
    Live(Validity),
    /// Over.
    Ended(Lost),
}

/// The state, shared between the task and all guards that live by it.
struct Shared {
    clock: Arc<dyn Clock>,
    state: watch::Sender<LeaseState>,
}

impl Shared {
    /// The state now. Ends it first if its time is up, so that nobody sees a live lease that is none.
    fn look(&self) -> LeaseState {
        let now = self.clock.now();
        self.state.send_if_modified(|state| match state {
            LeaseState::Live(validity) if validity.has_ended(now) => {
                *state = LeaseState::Ended(Lost::validity_ended());
                true
            }
            LeaseState::Live(_) | LeaseState::Ended(_) => false,
        });
        self.state.borrow().clone()
    }

    fn extend(&self, promised: Validity) {
        if let LeaseState::Ended(_) = self.look() {
            return;
        }
        self.state.send_if_modified(|state| match state {
            LeaseState::Live(validity) => {
                let later = validity.or_later(promised);
                let changed = later != *validity;
                *validity = later;
                changed
            }
            LeaseState::Ended(_) => false,
        });
    }

    fn end(&self, lost: Lost) {
        self.state.send_if_modified(|state| match state {
            LeaseState::Live(_) => {
                *state = LeaseState::Ended(lost);
                true
            }
            LeaseState::Ended(_) => false,
        });
    }
}

/// A session, or a lockRef without one, that is kept alive until this is dropped.
pub(super) struct Lease {
    shared: Arc<Shared>,
    session: String,
    ttl: Duration,
    disconnect_grace: Option<Duration>,
    task: JoinHandle<()>,
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Lease {
    /// Keeps alive what was opened, or renewed, from now on.
    pub(super) fn start(client: &Client, opened: Renewed) -> Lease {
        let Renewed {
            session,
            ttl,
            disconnect_grace,
            validity,
            ..
        } = opened;
        let shared = Arc::new(Shared {
            clock: client.shared_clock(),
            state: watch::Sender::new(LeaseState::Live(validity)),
        });
        let keeper = Keeper {
            client: client.clone(),
            session: session.clone(),
            ttl,
            pace: Pace::of(ttl, disconnect_grace),
            stream: StreamUse::Untried,
            endpoint: 0,
            sent_at: client.now(),
        };
        let task = tokio::spawn(keep(keeper, Arc::clone(&shared)));
        Lease {
            shared,
            session,
            ttl,
            disconnect_grace,
            task,
        }
    }

    /// What KeepAlive and RenewSession take.
    pub(super) fn session(&self) -> &str {
        &self.session
    }

    /// The TTL in force.
    pub(super) fn ttl(&self) -> Duration {
        self.ttl
    }

    /// How long it lives on once its stream ends, where that matters.
    pub(super) fn disconnect_grace(&self) -> Option<Duration> {
        self.disconnect_grace
    }

    /// The state now.
    pub(super) fn state(&self) -> LeaseState {
        self.shared.look()
    }

    /// Takes note of what another answer promised.
    pub(super) fn extend(&self, promised: Validity) {
        self.shared.extend(promised);
    }

    /// Ends it, because somebody learned that it has ended.
    pub(super) fn end(&self, lost: Lost) {
        self.shared.end(lost);
    }

    /// Returns when it has ended.
    pub(super) async fn ended(&self) -> Lost {
        let mut changes = self.shared.state.subscribe();
        loop {
            if let LeaseState::Ended(lost) = self.shared.look() {
                return lost;
            }
            if changes.changed().await.is_err() {
                return Lost::validity_ended();
            }
        }
    }
}

/// Runs until the lease has ended, or the task is aborted.
async fn keep(keeper: Keeper, shared: Arc<Shared>) {
    tokio::select! {
        // The end of the validity is looked at first: a renewal that comes with it comes too late.
        biased;
        () = validity_end(&shared) => {}
        lost = renew_always(keeper, &shared) => shared.end(lost),
    }
}

/// Returns once the lease has ended, by its validity or otherwise.
async fn validity_end(shared: &Shared) {
    while let LeaseState::Live(validity) = shared.look() {
        let now = shared.clock.now();
        // In slices, for a lease that was extended or ended meanwhile, and for suspend.
        let slice = validity.left(now).min(Duration::from_millis(500));
        sleep_until(&*shared.clock, now.after(slice)).await;
    }
}

async fn renew_always(mut keeper: Keeper, shared: &Shared) -> Lost {
    let pace = keeper.pace;
    let mut due = match pace.at_once {
        true => shared.clock.now(),
        false => shared.clock.now().after(pace.every),
    };
    let mut backoff = Backoff::new();
    let mut reopened_after = REOPENED_AFTER;
    loop {
        tokio::select! {
            biased;
            () = sleep_until(&*shared.clock, due) => reopened_after = REOPENED_AFTER,
            // Its replica stopped, or went: another one is to learn of the session soon, and take it over.
            () = keeper.broken() => {
                let soonest = keeper.sent_at.after(reopened_after.min(pace.every));
                reopened_after = reopened_after.saturating_mul(2);
                sleep_until(&*shared.clock, soonest).await;
            }
        }
        let asked = shared.clock.now();
        keeper.sent_at = asked;
        match keeper.renew().await {
            Ok(validity) => {
                shared.extend(validity);
                backoff.reset();
                due = asked.after(pace.every);
            }
            Err(SessionError::Ended(lost)) => return lost,
            // What was promised stands; until it ends it is worth trying.
            Err(
                error @ (SessionError::Invalid(_)
                | SessionError::Limit(_)
                | SessionError::Denied(_)
                | SessionError::Unavailable(_)
                | SessionError::Other(_)),
            ) => {
                tracing::debug!(%error, "a renewal was not accepted");
                due = shared.clock.now().after(backoff.next(None).min(pace.every));
            }
        }
    }
}

/// Whether renewals go over a stream.
enum StreamUse {
    /// Not yet: a short section needs none.
    Untried,
    /// They do.
    Open(Box<KeepAliveStream>),
    /// The server has no such stream.
    Unimplemented,
}

struct KeepAliveStream {
    requests: mpsc::Sender<proto::KeepAliveRequest>,
    answers: Streaming<proto::KeepAliveResponse>,
}

struct Keeper {
    client: Client,
    session: String,
    ttl: Duration,
    pace: Pace,
    stream: StreamUse,
    /// Which one the stream was opened on.
    endpoint: usize,
    /// When the last renewal was sent.
    sent_at: Moment,
}

impl Keeper {
    /// Returns once the stream that is open breaks; never where none is open.
    async fn broken(&mut self) {
        let StreamUse::Open(stream) = &mut self.stream else {
            return std::future::pending().await;
        };
        // Nothing is in flight on it: whatever comes, that stream is of no use any more.
        let _ = stream.answers.message().await;
        self.stream = StreamUse::Untried;
    }

    /// One renewal: over the stream, or where that fails as a call of its own.
    async fn renew(&mut self) -> Result<Validity, SessionError> {
        let attempt_max = self
            .client
            .options()
            .attempt_timeout
            .min(self.pace.attempt_max);
        for tried in 0..self.pace.streams {
            if tried > 0 {
                self.client.leave(self.endpoint);
            }
            match tokio::time::timeout(attempt_max, self.renew_on_stream()).await {
                Ok(Ok(Some(validity))) => return Ok(validity),
                // Over, says the stream; the call says it in words.
                Ok(Ok(None)) => break,
                Ok(Err(status)) if status.code() == Code::Unimplemented => {
                    self.stream = StreamUse::Unimplemented;
                    break;
                }
                Ok(Err(_)) | Err(_) => self.stream = StreamUse::Untried,
            }
        }
        let calls_max = self.pace.calls_max;
        let renewed = self.client.renew_within(&self.session, calls_max).await?;
        Ok(renewed.validity)
    }

    /// `None` where the stream says that the session has ended.
    async fn renew_on_stream(&mut self) -> Result<Option<Validity>, Status> {
        let message = proto::KeepAliveRequest {
            session: self.session.clone(),
        };
        // Before anything leaves, the opening of the stream included.
        let sent: Moment = self.client.clock().now();
        // Taken out while in use: a stream that was given up half way must not be used again, its next
        // answer would belong to an earlier request.
        let mut stream = match std::mem::replace(&mut self.stream, StreamUse::Untried) {
            StreamUse::Open(stream) => {
                let sending = stream.requests.send(message).await;
                sending.map_err(|_| Status::unavailable("the stream is closed"))?;
                stream
            }
            StreamUse::Untried => Box::new(self.open(message).await?),
            StreamUse::Unimplemented => return Err(Status::unimplemented("KeepAlive")),
        };
        let answer = stream.answers.message().await?;
        let answer = answer.ok_or_else(|| Status::unavailable("the stream has ended"))?;
        if answer.session != self.session {
            return Err(Status::internal("an answer for another session"));
        }
        self.stream = StreamUse::Open(stream);
        if answer.reason != 0 {
            return Ok(None);
        }
        Ok(Some(Validity::promised(sent, from_wire(answer.valid_for))))
    }

    async fn open(&mut self, first: proto::KeepAliveRequest) -> Result<KeepAliveStream, Status> {
        let (requests, queue) = mpsc::channel(1);
        // Sent before the call: the server may wait for it before it answers at all.
        requests
            .send(first)
            .await
            .map_err(|_| Status::unavailable("the stream is closed"))?;
        let (endpoint, attempt) = self.client.attempt(self.ttl);
        self.endpoint = endpoint;
        // No deadline: the stream lives as long as the lease.
        let request = Request::new(ReceiverStream::new(queue));
        let answers = attempt.locks().keep_alive(request).await?.into_inner();
        Ok(KeepAliveStream { requests, answers })
    }
}
