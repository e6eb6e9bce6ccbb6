//! The KeepAlive stream of a client: one, over which the renewals of all its leases go. A task has it, opens it when
//! it is first needed and again when it broke, and gives each lease its own answer.
//!
//! The server answers in order. So the first renewal without an answer is the one that an error speaks of, and one
//! that is answered late holds up those behind it: then the stream is given up, and who waits goes another way.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use fermata_proto::{KeepAliveRequest, KeepAliveResponse};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, sleep_until, timeout_at};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status, Streaming};

use super::connect::Client;
use super::not_grpc;
use super::retry::{Verdict, judge};

/// How many renewals may be in flight, as many as a server takes; further ones wait for their turn.
const RENEWALS_MAX: usize = 256;

/// Why a renewal has no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unrenewed {
    /// The stream broke, or did not answer in time.
    Broken {
        /// Where it was opened.
        endpoint: usize,
    },
    /// The server does not take this renewal, and ends the stream that it comes on.
    Refused,
}

/// The answer to one renewal.
#[derive(Debug)]
pub(super) struct Renewal {
    pub(super) answer: KeepAliveResponse,
    /// The number of the stream that it came on.
    pub(super) stream: u64,
}

struct Ask {
    session: String,
    /// After that it is of no use.
    answer_by: Instant,
    reply: oneshot::Sender<Result<Renewal, Unrenewed>>,
}

/// The way to the task that has the stream. The stream ends with the last one who has this.
pub(super) struct KeepAliveLink {
    asks: mpsc::Sender<Ask>,
    /// The number of the last stream that ended.
    ended: watch::Receiver<u64>,
    /// Where the last stream was opened.
    endpoint: Arc<AtomicUsize>,
}

impl KeepAliveLink {
    /// Sends one renewal and returns with its answer, at `answer_by` at the latest.
    pub(super) async fn renew(
        &self,
        session: &str,
        answer_by: Instant,
    ) -> Result<Renewal, Unrenewed> {
        let (reply, answer) = oneshot::channel();
        let ask = Ask {
            session: session.to_owned(),
            answer_by,
            reply,
        };
        let answered = timeout_at(answer_by, async {
            self.asks.send(ask).await.ok()?;
            answer.await.ok()
        });
        match answered.await {
            Ok(Some(result)) => result,
            Ok(None) | Err(_) => Err(Unrenewed::Broken {
                endpoint: self.endpoint.load(Ordering::Relaxed),
            }),
        }
    }

    /// Returns once this stream has ended.
    pub(super) async fn ended(&self, stream: u64) {
        let mut ended = self.ended.clone();
        // Where the task itself is gone, so is the stream.
        let _ = ended.wait_for(|ended| *ended >= stream).await;
    }
}

/// Where a client finds its stream, if it has one.
#[derive(Default)]
pub(super) struct KeepAlives {
    link: Mutex<Weak<KeepAliveLink>>,
}

impl KeepAlives {
    /// The link to the stream of this client. Must be called inside a Tokio runtime.
    pub(super) fn link(&self, client: &Client) -> Arc<KeepAliveLink> {
        let mut link = self.link.lock().unwrap_or_else(PoisonError::into_inner);
        match link.upgrade() {
            // Else its runtime has ended, and the task with it.
            Some(present) if !present.asks.is_closed() => present,
            Some(_) | None => {
                let started = Arc::new(Keeper::start(client.clone()));
                *link = Arc::downgrade(&started);
                started
            }
        }
    }
}

type Answers = Streaming<KeepAliveResponse>;

enum Phase {
    Opening(Pin<Box<dyn Future<Output = Result<Answers, Status>> + Send>>),
    Open(Box<Answers>),
}

struct Stream {
    requests: mpsc::Sender<KeepAliveRequest>,
    phase: Phase,
}

/// What the task has.
struct Keeper {
    client: Client,
    asks: mpsc::Receiver<Ask>,
    /// Sent, and not answered.
    unanswered: VecDeque<Ask>,
    stream: Option<Stream>,
    /// The number of the stream that is open, or of the next one.
    number: u64,
    ended: watch::Sender<u64>,
    endpoint: Arc<AtomicUsize>,
}

impl Keeper {
    fn start(client: Client) -> KeepAliveLink {
        let (asks, queue) = mpsc::channel(RENEWALS_MAX);
        let (ended, ends) = watch::channel(0);
        let endpoint = Arc::new(AtomicUsize::new(0));
        let keeper = Keeper {
            client,
            asks: queue,
            unanswered: VecDeque::new(),
            stream: None,
            number: 1,
            ended,
            endpoint: Arc::clone(&endpoint),
        };
        tokio::spawn(keeper.run());
        KeepAliveLink {
            asks,
            ended: ends,
            endpoint,
        }
    }

    async fn run(mut self) {
        loop {
            let has_room = self.unanswered.len() < RENEWALS_MAX;
            let answer_by = self.answer_by();
            tokio::select! {
                biased;
                answer = next_answer(&mut self.stream) => match answer {
                    Ok(answer) => self.answered(answer),
                    Err(status) => self.failed(&not_grpc::of_answer(status)),
                },
                () = until(answer_by) => self.broken(),
                ask = self.asks.recv(), if has_room => match ask {
                    Some(ask) => self.send(ask),
                    None => return,
                },
            }
        }
    }

    /// When the first of the renewals in flight is late.
    fn answer_by(&self) -> Option<Instant> {
        self.unanswered.iter().map(|ask| ask.answer_by).min()
    }

    fn send(&mut self, ask: Ask) {
        if self.answer_by().is_some_and(|late| late <= Instant::now()) {
            self.broken();
        }
        let message = KeepAliveRequest {
            session: ask.session.clone(),
        };
        let stream = match &mut self.stream {
            Some(stream) => stream,
            None => {
                let (at, opened) = open(&self.client);
                self.endpoint.store(at, Ordering::Relaxed);
                self.stream.insert(opened)
            }
        };
        // There is room for all that may be in flight.
        let sent = stream.requests.try_send(message);
        self.unanswered.push_back(ask);
        if sent.is_err() {
            self.broken();
        }
    }

    fn answered(&mut self, answer: KeepAliveResponse) {
        match self.unanswered.pop_front() {
            Some(ask) if ask.session == answer.session => {
                let stream = self.number;
                // It may have given up meanwhile.
                let _ = ask.reply.send(Ok(Renewal { answer, stream }));
            }
            Some(other) => {
                self.unanswered.push_front(other);
                self.broken();
            }
            None => self.broken(),
        }
    }

    /// The server ended the stream, or it could not be opened.
    fn failed(&mut self, status: &Status) {
        tracing::debug!(code = ?status.code(), "the KeepAlive stream has ended");
        if status.code() == Code::Unimplemented {
            for ask in self.unanswered.drain(..) {
                let _ = ask.reply.send(Err(Unrenewed::Refused));
            }
        } else if judge(status) == Verdict::Final
            // That is about the stream, and not about the first of them.
            && status.code() != Code::Unauthenticated
            && let Some(ask) = self.unanswered.pop_front()
        {
            let _ = ask.reply.send(Err(Unrenewed::Refused));
        }
        self.broken();
    }

    /// The stream is of no use any more. Who has no answer yet goes another way.
    fn broken(&mut self) {
        self.stream = None;
        let endpoint = self.endpoint.load(Ordering::Relaxed);
        for ask in self.unanswered.drain(..) {
            let _ = ask.reply.send(Err(Unrenewed::Broken { endpoint }));
        }
        self.ended.send_replace(self.number);
        self.number += 1;
    }
}

/// Opens a stream on the replica in use. No deadline: it lives as long as the leases do.
fn open(client: &Client) -> (usize, Stream) {
    let (requests, queue) = mpsc::channel(RENEWALS_MAX);
    let (endpoint, attempt) = client.attempt(client.options().timeout);
    let opening = async move {
        let request = attempt.stream_request(ReceiverStream::new(queue));
        Ok(attempt.locks().keep_alive(request).await?.into_inner())
    };
    let phase = Phase::Opening(Box::pin(opening));
    (endpoint, Stream { requests, phase })
}

/// The next answer; never where no stream is open. May be dropped and called again.
async fn next_answer(stream: &mut Option<Stream>) -> Result<KeepAliveResponse, Status> {
    let Some(stream) = stream else {
        return std::future::pending().await;
    };
    loop {
        match &mut stream.phase {
            Phase::Opening(opening) => {
                let answers = opening.await?;
                stream.phase = Phase::Open(Box::new(answers));
            }
            Phase::Open(answers) => {
                let answer = answers.message().await?;
                return answer.ok_or_else(|| Status::unavailable("the stream has ended"));
            }
        }
    }
}

async fn until(moment: Option<Instant>) {
    match moment {
        Some(moment) => sleep_until(moment).await,
        None => std::future::pending().await,
    }
}
