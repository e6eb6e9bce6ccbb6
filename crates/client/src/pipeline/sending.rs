//! The task that has the stream of a Pipeline.

use std::collections::HashMap;
use std::error::Error as _;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use fermata_proto::{PipelineCall, PipelineRequest, PipelineResponse};
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};
use tokio_stream::wrappers::ReceiverStream;
use tonic::metadata::AsciiMetadataValue;
use tonic::{Code, Status, Streaming};

use super::link::Link;
use super::{FRAME_BYTES, Opener, Queued, Reply, Unanswered};
use crate::not_grpc::{self, NotGrpc};
use crate::retry::{Verdict, judge, reason};

/// How many calls a frame may have.
const FRAME_CALLS_MAX: usize = 256;
/// What the number of a call takes in a frame that gives it up, at most.
const GIVEN_UP_BYTES: usize = 10;
/// How often it is looked whether the stream is silent, or not used.
const LOOKED_EVERY: Duration = Duration::from_millis(250);
/// A stream that has answered nothing for so long after a call on it was given up, which a server that is told so answers at
/// once, is given up as well.
const SILENT_MAX: Duration = Duration::from_secs(10);
/// This process was stopped, or did not run its tasks: what it did not hear meanwhile says nothing.
const LATE: Duration = Duration::from_secs(1);
/// One without calls is ended after this, so that the connection need not be checked any more.
const IDLE_MAX: Duration = Duration::from_secs(60);

type Frames = Streaming<PipelineResponse>;

enum PipelinePhase {
    Opening(Pin<Box<dyn Future<Output = Result<Frames, Status>> + Send>>),
    Open {
        frames: Box<Frames>,
        is_answered: bool,
    },
}

impl PipelinePhase {
    /// The next frame of answers, or how the stream ended. May be dropped and called again.
    async fn next(&mut self) -> Result<PipelineResponse, StreamBroken> {
        loop {
            match self {
                PipelinePhase::Opening(opening) => {
                    let opened = opening.await.map_err(|status| StreamBroken {
                        status: not_grpc::of_answer(status),
                        is_answered: false,
                    })?;
                    *self = PipelinePhase::Open {
                        frames: Box::new(opened),
                        is_answered: false,
                    };
                }
                PipelinePhase::Open {
                    frames,
                    is_answered,
                } => {
                    let frame = frames.message().await.and_then(|frame| {
                        let end = || Status::unavailable("the stream ended before the answer");
                        frame.ok_or_else(end)
                    });
                    let frame = frame.map_err(|status| StreamBroken {
                        status: not_grpc::of_answer(status),
                        is_answered: *is_answered,
                    })?;
                    *is_answered = true;
                    return Ok(frame);
                }
            }
        }
    }
}

/// A call that was sent on the stream that is open.
struct Sent {
    /// `None` where it was given up.
    reply: Option<Reply>,
    _room: OwnedSemaphorePermit,
}

/// What the task has.
pub(super) struct Sending {
    opener: Opener,
    queue: mpsc::UnboundedReceiver<Queued>,
    link: Arc<Link>,
    /// By call_id. There are no more than there is room for, which is less than a server reads on with.
    unanswered: HashMap<u64, Sent>,
    /// Given up, which the server does not know yet. Each is told once, so there are no more than one frame may have.
    given_up: Vec<u64>,
    last_id: u64,
    /// The token that the stream was asked for with.
    token: Option<AsciiMetadataValue>,
}

/// A stream that broke, or could not be opened.
struct StreamBroken {
    status: Status,
    /// It had answered something.
    is_answered: bool,
}

/// Why a stream ended.
enum StreamEnd {
    /// Nobody is left who could call.
    Unused,
    /// It had nothing to do.
    Idle,
    /// By itself.
    Broken(StreamBroken),
}

impl Sending {
    pub(super) fn new(
        opener: Opener,
        queue: mpsc::UnboundedReceiver<Queued>,
        link: Arc<Link>,
    ) -> Sending {
        Sending {
            opener,
            queue,
            link,
            unanswered: HashMap::new(),
            given_up: Vec::new(),
            last_id: 0,
            token: None,
        }
    }

    /// Until nobody is left who could call.
    pub(super) async fn run(mut self) {
        while let Some(first) = self.queue.recv().await {
            let mut waiting = vec![first];
            match self.stream(&mut waiting).await {
                StreamEnd::Unused => return,
                StreamEnd::Idle => {}
                StreamEnd::Broken(broken) => self.broken(broken, waiting),
            }
        }
    }

    /// Tells those who wait what becomes of their calls.
    fn broken(&mut self, broken: StreamBroken, mut waiting: Vec<Queued>) {
        let StreamBroken {
            status,
            is_answered,
        } = broken;
        tracing::debug!(code = ?status.code(), is_answered, "the Pipeline has ended");
        let is_refused = is_refusal(&status, is_answered);
        let (of_sent, of_unsent) = match is_refused {
            // A server of ours reads nothing of whom it does not know: nothing was done.
            _ if !is_answered && is_unknown_here(&status) => {
                let metadata = &self.opener.metadata;
                let status = metadata.unless_replaced(status, self.token.as_ref());
                (status.clone().into(), status.into())
            }
            // Nobody read what is on a stream that nobody knows.
            true if status.code() == Code::Unimplemented => {
                (Unanswered::NotTaken, Unanswered::NotTaken)
            }
            // What was sent may have been passed on before the stream was refused, whatever the code: it is in doubt, as a call
            // by itself that is refused so. Each may be repeated as its caller does that (a write with its next number, and
            // noted as in doubt), and the repeat goes by itself.
            true => (of_calls(status).into(), Unanswered::NotTaken),
            // Where nothing can be sent, they are not to wait for the next one who calls.
            false => {
                let unsent = not_sent(&status).into();
                (of_calls(status).into(), unsent)
            }
        };
        if is_refused {
            // Before anybody hears of it and repeats a call.
            self.link.refused();
            while let Ok(queued) = self.queue.try_recv() {
                waiting.push(queued);
            }
        }
        self.given_up.clear();
        // Who gave up meanwhile does not hear it.
        for reply in self.unanswered.drain().filter_map(|(_, sent)| sent.reply) {
            let _ = reply.send(Err(of_sent.clone()));
        }
        for queued in waiting {
            let _ = queued.reply.send(Err(of_unsent.clone()));
        }
    }

    /// One stream, until it ends.
    async fn stream(&mut self, waiting: &mut Vec<Queued>) -> StreamEnd {
        let (frames, sent) = mpsc::channel(1);
        let mut locks = self.opener.locks();
        let request = self.opener.request(ReceiverStream::new(sent), None);
        self.token = self.opener.metadata.sent_token();
        let mut phase = PipelinePhase::Opening(Box::pin(async move {
            Ok(locks.pipeline(request).await?.into_inner())
        }));
        let link = Arc::clone(&self.link);
        let mut looks = interval(LOOKED_EVERY);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut used = Instant::now();
        let mut looked = used;
        // Calls are given up, told or not yet, and since when nothing was answered after that.
        let mut silent_since = None;
        // Calls could not be sent, and since when.
        let mut stuck_since = None;
        let mut reads = true;
        loop {
            let due = waiting.iter().map(|queued| queued.until).min();
            // (No more come than there is room for.)
            let more = FRAME_CALLS_MAX.saturating_sub(waiting.len()).max(1);
            let has_more = !waiting.is_empty() || !self.given_up.is_empty();
            tokio::select! {
                biased;
                frame = phase.next() => match frame {
                    Ok(frame) => {
                        silent_since = None;
                        self.answered(frame);
                    }
                    Err(broken) => return StreamEnd::Broken(broken),
                },
                () = link.given_up.notified() => {
                    waiting.retain(|queued| !queued.reply.is_closed());
                    if self.find_given_up() {
                        silent_since = silent_since.or(Some(Instant::now()));
                    }
                }
                count = self.queue.recv_many(waiting, more) => {
                    if count == 0 {
                        return StreamEnd::Unused;
                    }
                }
                room = frames.reserve(), if has_more && reads => match room {
                    Ok(room) => {
                        used = Instant::now();
                        stuck_since = None;
                        let frame = self.frame(waiting);
                        if !frame.given_up.is_empty() {
                            silent_since = silent_since.or(Some(used));
                        }
                        if !frame.calls.is_empty() || !frame.given_up.is_empty() {
                            room.send(frame);
                        }
                    }
                    // The server reads no more; what it answers, or its status, is there or comes.
                    Err(_) => reads = false,
                },
                () = sleep_until(due.unwrap_or(used)), if due.is_some() => {
                    self.too_late(waiting);
                    stuck_since = stuck_since.or(Some(Instant::now()));
                }
                _ = looks.tick() => {
                    let now = Instant::now();
                    if now.saturating_duration_since(looked) > LOOKED_EVERY + LATE {
                        silent_since = silent_since.map(|_| now);
                        stuck_since = stuck_since.map(|_| now);
                    }
                    looked = now;
                    if reads && frames.capacity() > 0 {
                        stuck_since = None;
                    }
                    let is_long = |since| now.saturating_duration_since(since) >= SILENT_MAX;
                    if silent_since.is_some_and(is_long) || stuck_since.is_some_and(is_long) {
                        self.link.silent();
                        let silent = "nothing was answered on it for too long";
                        return StreamEnd::Broken(StreamBroken {
                            status: Status::unavailable(silent),
                            is_answered: true,
                        });
                    }
                    let is_idle = self.unanswered.is_empty() && waiting.is_empty();
                    if is_idle && used.elapsed() >= IDLE_MAX {
                        return StreamEnd::Idle;
                    }
                }
            }
        }
    }

    /// Ends the calls whose time has passed before they were sent. A write among them is in no doubt.
    fn too_late(&mut self, waiting: &mut Vec<Queued>) {
        let now = Instant::now();
        for queued in waiting.extract_if(.., |queued| queued.until <= now) {
            let _ = queued.reply.send(Err(not_in_time().into()));
        }
    }

    /// Finds the calls on the stream that nobody waits for any more. True if there are any.
    fn find_given_up(&mut self) -> bool {
        let known = self.given_up.len();
        for (call_id, sent) in &mut self.unanswered {
            if sent.reply.take_if(|reply| reply.is_closed()).is_some() {
                self.given_up.push(*call_id);
            }
        }
        let found = self.given_up.len() > known;
        if found {
            self.link.waited_in_vain();
        }
        found
    }

    /// The next frame, of those that wait. Who gave up meanwhile is not in it.
    fn frame(&mut self, waiting: &mut Vec<Queued>) -> PipelineRequest {
        // What was answered meanwhile is not answered again.
        let mut given_up = std::mem::take(&mut self.given_up);
        given_up.retain(|call_id| self.unanswered.contains_key(call_id));
        let now = Instant::now();
        let mut bytes = given_up.len() * GIVEN_UP_BYTES;
        let mut calls = Vec::with_capacity(waiting.len());
        let mut rest = Vec::new();
        for queued in waiting.drain(..) {
            if queued.reply.is_closed() {
                continue;
            }
            bytes += queued.bytes;
            // (One that is too large for any would wait for ever.)
            let is_full = bytes > FRAME_BYTES || calls.len() == FRAME_CALLS_MAX;
            if is_full && !(calls.is_empty() && given_up.is_empty()) {
                rest.push(queued);
                continue;
            }
            self.last_id = self.last_id.wrapping_add(1);
            let left = queued.until.saturating_duration_since(now);
            let sent = Sent {
                reply: Some(queued.reply),
                _room: queued.room,
            };
            self.unanswered.insert(self.last_id, sent);
            calls.push(PipelineCall {
                call_id: self.last_id,
                timeout: prost_types::Duration::try_from(left).ok(),
                call: Some(queued.call),
            });
        }
        *waiting = rest;
        PipelineRequest { calls, given_up }
    }

    fn answered(&mut self, frame: PipelineResponse) {
        self.link.answered();
        for answer in frame.answers {
            let sent = self.unanswered.remove(&answer.call_id);
            if let Some(reply) = sent.and_then(|sent| sent.reply) {
                // It may have given up meanwhile.
                let _ = reply.send(Ok(answer));
            }
        }
    }
}

/// Whether a server of ours does not know who began the stream.
fn is_unknown_here(status: &Status) -> bool {
    status.code() == Code::Unauthenticated && reason(status).is_some()
}

/// Whether a stream that ended so was refused, by a server that does not know it, or by a proxy before it: the next one would
/// be as well, and calls by themselves may be taken.
pub(crate) fn is_refusal(status: &Status, is_answered: bool) -> bool {
    let is_final = judge(status) == Verdict::Final || NotGrpc::is_about_the_call(status);
    !is_answered && is_final && reason(status).is_none()
}

/// What the status that a stream ended with says of the calls on it that were not answered. One from a server, or from a proxy,
/// is about the stream: only that the server stops is known to mean that they were not done.
pub(crate) fn of_calls(status: Status) -> Status {
    let is_from_here = status.source().is_some();
    let stops = reason(&status).is_some_and(|reason| reason == "STOPPING");
    if stops || (is_from_here && judge(&status) != Verdict::Final) {
        return status;
    }
    let words = format!("the Pipeline ended: {}", status.message());
    let mut unknown = Status::unavailable(words);
    if is_from_here {
        unknown.set_source(Arc::new(status));
    }
    unknown
}

/// Why a call did not leave: it was not done.
#[derive(Debug, thiserror::Error)]
#[error("the call was not sent: {0}")]
pub(crate) struct NotSent(String);

pub(super) fn not_in_time() -> Status {
    not_sent(&Status::unavailable("it could not be sent in time"))
}

pub(super) fn not_sent(status: &Status) -> Status {
    let mut unsent = Status::unavailable(status.message());
    unsent.set_source(Arc::new(NotSent(status.message().to_owned())));
    unsent
}
