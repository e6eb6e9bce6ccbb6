//! The task that owns the stream of a Pipeline.

use std::collections::HashMap;
use std::error::Error as _;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use fermata_proto::{
    PipelineAnswer, PipelineCall, PipelineRequest, PipelineResponse, pipeline_call,
};
use futures_util::{StreamExt as _, TryFutureExt as _};
use prost::Message;
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};
use tokio::time::{Instant, sleep_until};
use tokio_stream::wrappers::ReceiverStream;
use tonic::metadata::AsciiMetadataValue;
use tonic::{Code, Status};

use super::call::Opener;
use super::link::Link;
use crate::transport::not_grpc::{self, NotGrpc};
use crate::transport::retry::{Verdict, has_reason, judge, reason};

/// The largest frame, which every server accepts. A larger call goes by itself; in a frame it would delay the others.
pub(super) const FRAME_BYTES: usize = 16 * 1024;
/// The most calls in a frame that a server accepts.
const FRAME_CALLS_MAX: usize = 256;
/// The bytes of a call in a frame beside its message, at most: its number, its time, its trace, and its length. A call that is given up
/// takes less.
const ITEM_BYTES: usize = 128;
/// A stream without an answer for this time after a caller has given up is broken. A server answers at once that a call is given
/// up.
pub(super) const SILENT_MAX: Duration = Duration::from_secs(10);
/// A stream without calls ends after this, so that its connection need not be checked any more.
const IDLE_MAX: Duration = Duration::from_secs(60);

/// The bytes of a call in a frame.
pub(super) fn bytes_of(call: &impl Message) -> usize {
    call.encoded_len().saturating_add(ITEM_BYTES)
}

/// A call that waits for the next frame.
pub(super) struct Queued {
    pub(super) call: pipeline_call::Call,
    /// The trace that it is part of.
    pub(super) traceparent: String,
    pub(super) bytes: usize,
    /// The moment when its caller gives up; `None` if never.
    pub(super) until: Option<Instant>,
    pub(super) reply: Reply,
    /// Kept until the answer, even if the caller gives up: the server has the call until then.
    pub(super) room: OwnedSemaphorePermit,
}

type Reply = oneshot::Sender<Result<PipelineAnswer, Unanswered>>;

/// Why a call in a frame has no answer of its own.
#[derive(Debug, Clone)]
pub(super) enum Unanswered {
    /// It was not done, because the stream was refused: it goes by itself.
    NotTaken,
    /// It failed with this status.
    Failed(Status),
}

impl From<Status> for Unanswered {
    fn from(status: Status) -> Unanswered {
        Unanswered::Failed(status)
    }
}

/// A call that was sent on the stream that is open.
struct Sent {
    /// `None` if the caller gave up.
    reply: Option<Reply>,
    _room: OwnedSemaphorePermit,
}

/// The state of the task.
pub(super) struct Sending {
    opener: Opener,
    queue: mpsc::UnboundedReceiver<Queued>,
    link: Arc<Link>,
    /// By call_id. The rooms bound their number below the limit at which a server reads no further frame.
    unanswered: HashMap<u64, Sent>,
    /// Given-up calls that the server does not know of yet. One frame has room for all of them.
    given_up: Vec<u64>,
    last_id: u64,
    /// The token that the stream was opened with.
    token: Option<AsciiMetadataValue>,
}

/// A stream that broke, or could not be opened.
struct StreamBroken {
    status: Status,
    /// It had answered something.
    is_answered: bool,
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

    /// Runs until no caller is left.
    pub(super) async fn run(mut self) {
        while let Some(first) = self.queue.recv().await {
            let mut waiting = vec![first];
            if let Err(broken) = self.stream(&mut waiting).await {
                self.broken(broken, waiting);
            }
        }
    }

    /// Reports the fate of their calls to the callers.
    fn broken(&mut self, broken: StreamBroken, mut waiting: Vec<Queued>) {
        let StreamBroken {
            status,
            is_answered,
        } = broken;
        tracing::debug!(code = ?status.code(), is_answered, "the Pipeline has ended");
        let is_refused = is_refusal(&status, is_answered);
        let (of_sent, of_unsent) = match is_refused {
            // A server of ours reads nothing from a client that it does not know: nothing was done.
            _ if !is_answered && is_unknown_here(&status) => {
                let metadata = &self.opener.metadata;
                let status = metadata.unless_replaced(status, self.token.as_ref());
                (status.clone().into(), status.into())
            }
            // Nothing of the stream was read.
            true if status.code() == Code::Unimplemented
                || NotGrpc::is_refusal_of_stream(&status) =>
            {
                (Unanswered::NotTaken, Unanswered::NotTaken)
            }
            // A part of the stream may have been passed on before it was refused: calls that were sent are in doubt. Their
            // callers repeat them (a write with its next number, and noted as in doubt), and the repeat goes by itself.
            true => (of_calls(status).into(), Unanswered::NotTaken),
            // They are not to wait for the next caller.
            false => {
                let unsent = not_sent(&status).into();
                (of_calls(status).into(), unsent)
            }
        };
        if is_refused {
            // Before a caller hears of it and repeats a call.
            self.link.refused();
            while let Ok(queued) = self.queue.try_recv() {
                waiting.push(queued);
            }
        }
        self.given_up.clear();
        // A caller that gave up meanwhile does not hear it.
        for reply in self.unanswered.drain().filter_map(|(_, sent)| sent.reply) {
            let _ = reply.send(Err(of_sent.clone()));
        }
        for queued in waiting {
            let _ = queued.reply.send(Err(of_unsent.clone()));
        }
    }

    /// One stream, until it has no calls for a while, or no caller is left.
    async fn stream(&mut self, waiting: &mut Vec<Queued>) -> Result<(), StreamBroken> {
        let (frames, sent) = mpsc::channel(1);
        let mut locks = self.opener.locks();
        let request = self.opener.request(ReceiverStream::new(sent), None);
        self.token = self.opener.metadata.sent_token();
        let answers = async move { Ok(locks.pipeline(request).await?.into_inner()) };
        let mut answers = pin!(answers.try_flatten_stream());
        let mut is_answered = false;
        let link = Arc::clone(&self.link);
        let mut used = Instant::now();
        // The first caller that gave up since the last answer.
        let mut silent_since = None;
        let mut reads = true;
        loop {
            let due = waiting.iter().filter_map(|queued| queued.until).min();
            // (No more come than there is room for.)
            let more = FRAME_CALLS_MAX.saturating_sub(waiting.len()).max(1);
            let has_more = !waiting.is_empty() || !self.given_up.is_empty();
            let is_idle = waiting.is_empty() && self.unanswered.is_empty();
            if is_idle {
                silent_since = None;
            }
            let ends = match silent_since {
                Some(since) => since + SILENT_MAX,
                None => used + IDLE_MAX,
            };
            tokio::select! {
                biased;
                frame = answers.next() => match frame {
                    Some(Ok(frame)) => {
                        silent_since = None;
                        is_answered = true;
                        self.answered(frame);
                    }
                    end => {
                        let status = match end {
                            Some(Err(status)) => not_grpc::of_answer(status),
                            _ => Status::unavailable("the stream ended before the answer"),
                        };
                        return Err(StreamBroken { status, is_answered });
                    }
                },
                () = link.given_up.notified() => {
                    waiting.retain(|queued| !queued.reply.is_closed());
                    if self.find_given_up() {
                        silent_since = silent_since.or(Some(Instant::now()));
                    }
                }
                count = self.queue.recv_many(waiting, more) => {
                    if count == 0 {
                        return Ok(());
                    }
                }
                room = frames.reserve(), if has_more && reads => match room {
                    Ok(room) => {
                        used = Instant::now();
                        let frame = self.frame(waiting);
                        if !frame.calls.is_empty() || !frame.given_up.is_empty() {
                            room.send(frame);
                        }
                    }
                    // The server reads no more. Its answers, or its status, are there or come.
                    Err(_) => reads = false,
                },
                () = sleep_until(due.unwrap_or(used)), if due.is_some() => {
                    too_late(waiting);
                    silent_since = silent_since.or(Some(Instant::now()));
                }
                () = sleep_until(ends), if is_idle || silent_since.is_some() => {
                    if is_idle {
                        return Ok(());
                    }
                    self.link.silent();
                    return Err(StreamBroken {
                        status: Status::unavailable("no answer came for too long"),
                        is_answered: true,
                    });
                }
            }
        }
    }

    /// Finds the calls on the stream whose callers have given up. True if there are any.
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

    /// The next frame of waiting calls, without those that are given up by now.
    fn frame(&mut self, waiting: &mut Vec<Queued>) -> PipelineRequest {
        // Some were answered meanwhile.
        let mut given_up = std::mem::take(&mut self.given_up);
        given_up.retain(|call_id| self.unanswered.contains_key(call_id));
        let now = Instant::now();
        let mut bytes = given_up.len() * ITEM_BYTES;
        let mut calls = Vec::with_capacity(waiting.len());
        let mut rest = Vec::new();
        for queued in waiting.drain(..) {
            if queued.reply.is_closed() {
                continue;
            }
            bytes += queued.bytes;
            // (A call that is too large for any frame would wait for ever.)
            let is_full = bytes > FRAME_BYTES || calls.len() == FRAME_CALLS_MAX;
            if is_full && !(calls.is_empty() && given_up.is_empty()) {
                rest.push(queued);
                continue;
            }
            self.last_id = self.last_id.wrapping_add(1);
            let left = queued
                .until
                .map(|until| until.saturating_duration_since(now));
            let sent = Sent {
                reply: Some(queued.reply),
                _room: queued.room,
            };
            self.unanswered.insert(self.last_id, sent);
            calls.push(PipelineCall {
                call_id: self.last_id,
                timeout: left.and_then(|left| left.try_into().ok()),
                traceparent: queued.traceparent,
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
                // Its caller may have given up meanwhile.
                let _ = reply.send(Ok(answer));
            }
        }
    }
}

/// Ends the calls whose time has passed before they were sent. No write among them is in doubt.
fn too_late(waiting: &mut Vec<Queued>) {
    let now = Instant::now();
    let is_late = |queued: &mut Queued| queued.until.is_some_and(|until| until <= now);
    for queued in waiting.extract_if(.., is_late) {
        let _ = queued.reply.send(Err(not_in_time().into()));
    }
}

/// Whether a Fermata server does not know the client of the stream.
fn is_unknown_here(status: &Status) -> bool {
    status.code() == Code::Unauthenticated && reason(status).is_some()
}

/// Whether a stream with this end was refused, by a server that does not know Pipeline or by a proxy. The next stream would be
/// refused as well, but separate calls may be accepted.
pub(crate) fn is_refusal(status: &Status, is_answered: bool) -> bool {
    let is_final = judge(status) == Verdict::Final || NotGrpc::is_about_the_call(status);
    !is_answered && is_final && reason(status).is_none()
}

/// The status of the unanswered calls on a stream that ended with `status`. A status from a server or a proxy is about the
/// stream. Only STOPPING says that the calls were not done.
pub(crate) fn of_calls(status: Status) -> Status {
    let is_from_here = status.source().is_some();
    if has_reason(&status, "STOPPING") || (is_from_here && judge(&status) != Verdict::Final) {
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

pub(crate) fn not_in_time() -> Status {
    not_sent(&Status::unavailable("the deadline passed before sending"))
}

pub(super) fn not_sent(status: &Status) -> Status {
    let mut unsent = Status::unavailable(status.message());
    unsent.set_source(Arc::new(NotSent(status.message().to_owned())));
    unsent
}
