//! The Pipeline of a client to one replica: one stream, over which its calls go in frames. A task has it, opens it when it is
//! first needed and again after it broke, and gives each call its own answer.
//!
//! A call that was sent on a stream that broke fails as one on a connection that broke: it may have been done. Where the
//! server stopped in order it was not: such a server answers first what it has read, and says that it stops after that.

mod call;

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use fermata_proto::lock_service_client::LockServiceClient;
use fermata_proto::pipeline_answer::Outcome;
use fermata_proto::{
    DOMAIN, HOME_ADDRESS, HOME_ID, HOME_TERM, PipelineAnswer, PipelineCall, PipelineRequest,
    PipelineResponse, pipeline_call,
};
use prost::Message as _;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, MissedTickBehavior, interval};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use tonic::{Code, Request, Response, Status, Streaming};
use tonic_types::StatusExt as _;

pub use call::{Answering, Call};

use super::connect::{ANSWER_BYTES_MAX, ZONE};
use super::fault::unexpected;
use super::options::Zone;

/// How many calls may be in flight: as many as a server takes.
const IN_FLIGHT_MAX: usize = 1_024;
/// How many calls may wait for the next frame; further ones wait for room.
const QUEUE_MAX: usize = 256;
/// How many calls a frame may have.
const FRAME_CALLS_MAX: usize = 256;
/// How large a frame may be: as much as every server takes. A call that is larger goes by itself: it would hold up the others,
/// too.
const FRAME_BYTES: usize = 16 * 1024;
/// After an answer above this, reads of values go by themselves, until one is not: each would hold up the others.
const READ_BYTES: usize = 64 * 1024;
/// What a call takes in a frame beside its message: its number, its time, and how long it is.
const CALL_EXTRA_BYTES: usize = 64;
/// How often it is looked for calls that nobody waits for any more.
const LOOKED_EVERY: Duration = Duration::from_millis(250);
/// A stream that has answered nothing for so long after it was told that a call is given up, which a server answers at once,
/// is given up as well.
const SILENT_MAX: Duration = Duration::from_secs(10);
/// This process was stopped, or did not run its tasks: what it did not hear meanwhile says nothing.
const LATE: Duration = Duration::from_secs(1);
/// One without calls is ended after this, so that the connection need not be checked any more.
const IDLE_MAX: Duration = Duration::from_secs(60);

/// Calls to one replica over one stream, in frames. Clones share it.
#[derive(Clone)]
pub struct Pipeline {
    shared: Arc<Shared>,
}

struct Shared {
    opener: Opener,
    /// Where the task runs, which is not to end before its calls do: that which the client was made in.
    runtime: Option<Handle>,
    /// To the task, if there is one.
    queue: Mutex<Option<mpsc::Sender<Queued>>>,
    /// The server, or a proxy before it, does not know the call.
    is_refused: Arc<AtomicBool>,
    /// The last value that was read was a large one.
    reads_alone: AtomicBool,
}

/// A call that waits for the next frame.
struct Queued {
    call: pipeline_call::Call,
    /// As encoded.
    bytes: usize,
    /// When it is given up.
    until: Instant,
    reply: oneshot::Sender<Result<PipelineAnswer, Status>>,
}

impl std::fmt::Debug for Pipeline {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pipeline").finish_non_exhaustive()
    }
}

impl Pipeline {
    /// Calls over this connection, by a client that says that it is in this zone. Opens the stream with the first call.
    pub fn new(channel: Channel, zone: Option<Zone>) -> Pipeline {
        Pipeline {
            shared: Arc::new(Shared {
                opener: Opener { channel, zone },
                runtime: Handle::try_current().ok(),
                queue: Mutex::default(),
                is_refused: Arc::default(),
                reads_alone: AtomicBool::new(false),
            }),
        }
    }

    /// Makes one call, and tells the server that its answer is waited for this long. Where it fails without an answer the
    /// status has the code UNAVAILABLE, or a source. Must be called inside a Tokio runtime.
    pub async fn call<C: Call>(
        &self,
        call: C,
        timeout: Duration,
    ) -> Result<Response<C::Answer>, Status> {
        let shared = &self.shared;
        let bytes = call.encoded_len() + CALL_EXTRA_BYTES;
        let reads = call.reads();
        let answered = if shared.is_refused.load(Ordering::Relaxed)
            || bytes > FRAME_BYTES
            || (reads && shared.reads_alone.load(Ordering::Relaxed))
        {
            self.by_itself(call, timeout).await
        } else {
            let copy = call.clone();
            match self.in_frame(call, bytes, timeout).await {
                // Nothing was read of a stream that is not known.
                Err(status) if status.code() == Code::Unimplemented => {
                    self.by_itself(copy, timeout).await
                }
                answered => answered,
            }
        };
        if reads && let Ok(answer) = &answered {
            let is_large = answer.get_ref().encoded_len() > READ_BYTES;
            shared.reads_alone.store(is_large, Ordering::Relaxed);
        }
        answered
    }

    async fn by_itself<C: Call>(
        &self,
        call: C,
        timeout: Duration,
    ) -> Result<Response<C::Answer>, Status> {
        let request = self.shared.opener.request(call, Some(timeout));
        C::by_itself(self.shared.opener.locks(), request).await
    }

    async fn in_frame<C: Call>(
        &self,
        call: C,
        bytes: usize,
        timeout: Duration,
    ) -> Result<Response<C::Answer>, Status> {
        let (reply, answered) = oneshot::channel();
        let now = Instant::now();
        let queued = Queued {
            call: call.in_frame(),
            bytes,
            until: now.checked_add(timeout).unwrap_or(now + IDLE_MAX),
            reply,
        };
        let ended = || Status::unavailable("the runtime that the Pipeline was opened in has ended");
        let sent = self.queue().send(queued).await;
        sent.map_err(|_| not_sent(ended()))?;
        let answer = answered.await.map_err(|_| ended())??;
        let home = answer.home;
        let mut response = Response::new(match answer.outcome {
            Some(Outcome::Error(error)) => {
                let code = Code::from_i32(error.code);
                return Err(Status::with_details(code, error.message, error.details));
            }
            Some(outcome) => C::answer(outcome).ok_or_else(|| unexpected("of another call"))?,
            None => return Err(unexpected("without an outcome")),
        });
        if let Some(home) = home {
            let metadata = response.metadata_mut();
            let mut insert = |name, value: &str| {
                if let Ok(value) = value.parse() {
                    metadata.insert(name, value);
                }
            };
            insert(HOME_ID, &home.replica);
            insert(HOME_TERM, &home.term.to_string());
            if !home.address.is_empty() {
                insert(HOME_ADDRESS, &home.address);
            }
        }
        Ok(response)
    }

    /// The way to the task, which is started where there is none, or its runtime has ended.
    fn queue(&self) -> mpsc::Sender<Queued> {
        let shared = &self.shared;
        let mut queue = shared.queue.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(open) = queue.as_ref().filter(|queue| !queue.is_closed()) {
            return open.clone();
        }
        let (sender, receiver) = mpsc::channel(QUEUE_MAX);
        let sending = Sending {
            opener: shared.opener.clone(),
            queue: receiver,
            is_refused: Arc::clone(&shared.is_refused),
            unanswered: HashMap::new(),
            given_up: Vec::new(),
            last_id: 0,
        };
        match &shared.runtime {
            Some(runtime) => runtime.spawn(sending.run()),
            None => tokio::spawn(sending.run()),
        };
        *queue = Some(sender.clone());
        sender
    }
}

/// Opens streams, and makes what goes by itself.
#[derive(Clone)]
struct Opener {
    channel: Channel,
    zone: Option<Zone>,
}

impl Opener {
    fn locks(&self) -> LockServiceClient<Channel> {
        LockServiceClient::new(self.channel.clone()).max_decoding_message_size(ANSWER_BYTES_MAX)
    }

    fn request<T>(&self, message: T, timeout: Option<Duration>) -> Request<T> {
        let mut request = Request::new(message);
        if let Some(timeout) = timeout {
            request.set_timeout(timeout);
        }
        if let Some(zone) = &self.zone {
            request.metadata_mut().insert(ZONE, zone.value().clone());
        }
        request
    }
}

type Frames = Streaming<PipelineResponse>;

enum Phase {
    Opening(Pin<Box<dyn Future<Output = Result<Frames, Status>> + Send>>),
    Open {
        frames: Box<Frames>,
        is_answered: bool,
    },
}

impl Phase {
    /// The next frame of answers, or what the end of the stream says of the calls on it that were not answered. May be
    /// dropped and called again.
    async fn next(&mut self) -> Result<PipelineResponse, Status> {
        loop {
            match self {
                Phase::Opening(opening) => {
                    let opened = opening.await.map_err(|status| of_calls(status, false))?;
                    let frames = Box::new(opened);
                    *self = Phase::Open {
                        frames,
                        is_answered: false,
                    };
                }
                Phase::Open {
                    frames,
                    is_answered,
                } => {
                    let frame = frames.message().await;
                    let frame = frame.map_err(|status| of_calls(status, *is_answered))?;
                    let end = || Status::unavailable("the Pipeline ended before the answer");
                    let frame = frame.ok_or_else(end)?;
                    *is_answered = true;
                    return Ok(frame);
                }
            }
        }
    }
}

/// What the task has.
struct Sending {
    opener: Opener,
    queue: mpsc::Receiver<Queued>,
    is_refused: Arc<AtomicBool>,
    /// Sent on the stream that is open, by call_id; `None` of those that were given up.
    unanswered: HashMap<u64, Option<oneshot::Sender<Result<PipelineAnswer, Status>>>>,
    /// Given up, which the server does not know yet.
    given_up: Vec<u64>,
    last_id: u64,
}

/// Why a stream ended.
enum StreamEnd {
    /// Nobody is left who could call.
    Unused,
    /// It had nothing to do.
    Idle,
    /// What is said of the calls on it that were not answered.
    Broken(Status),
}

impl Sending {
    /// Until nobody is left who could call.
    async fn run(mut self) {
        while let Some(first) = self.queue.recv().await {
            let mut waiting = vec![first];
            let status = match self.stream(&mut waiting).await {
                StreamEnd::Unused => return,
                StreamEnd::Idle => continue,
                StreamEnd::Broken(status) => status,
            };
            tracing::debug!(code = ?status.code(), "the Pipeline has ended");
            if status.code() == Code::Unimplemented {
                self.is_refused.store(true, Ordering::Relaxed);
            }
            // Who gave up meanwhile does not hear it.
            for reply in self.unanswered.drain().filter_map(|(_, reply)| reply) {
                let _ = reply.send(Err(status.clone()));
            }
            self.given_up.clear();
            // Where nothing can be sent, they are not to wait for the next one who calls.
            for queued in waiting {
                let _ = queued.reply.send(Err(not_sent(status.clone())));
            }
        }
    }

    /// One stream, until it ends.
    async fn stream(&mut self, waiting: &mut Vec<Queued>) -> StreamEnd {
        let (frames, sent) = mpsc::channel(1);
        let mut locks = self.opener.locks();
        let request = self.opener.request(ReceiverStream::new(sent), None);
        let mut phase = Phase::Opening(Box::pin(async move {
            Ok(locks.pipeline(request).await?.into_inner())
        }));
        let mut looks = interval(LOOKED_EVERY);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut used = Instant::now();
        let mut looked = used;
        // The server was told that calls are given up, and since when nothing was answered after that.
        let mut silent_since = None;
        let mut reads = true;
        loop {
            let has_room = self.unanswered.len() + waiting.len() < IN_FLIGHT_MAX;
            let more = FRAME_CALLS_MAX.saturating_sub(waiting.len());
            let has_more = !waiting.is_empty() || !self.given_up.is_empty();
            tokio::select! {
                biased;
                frame = phase.next() => match frame {
                    Ok(frame) => {
                        silent_since = None;
                        self.answered(frame);
                    }
                    Err(status) => return StreamEnd::Broken(status),
                },
                count = self.queue.recv_many(waiting, more), if has_room && more > 0 => {
                    if count == 0 {
                        return StreamEnd::Unused;
                    }
                }
                room = frames.reserve(), if has_more && reads => match room {
                    Ok(room) => {
                        used = Instant::now();
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
                _ = looks.tick() => {
                    let now = Instant::now();
                    if now.saturating_duration_since(looked) > LOOKED_EVERY + LATE {
                        silent_since = silent_since.map(|_| now);
                    }
                    looked = now;
                    waiting.retain(|queued| !queued.reply.is_closed());
                    for (call_id, reply) in &mut self.unanswered {
                        if reply.take_if(|reply| reply.is_closed()).is_some() {
                            self.given_up.push(*call_id);
                        }
                    }
                    if silent_since.is_some_and(|since| now.saturating_duration_since(since) >= SILENT_MAX) {
                        let silent = "nothing was answered on the Pipeline for too long";
                        return StreamEnd::Broken(Status::unavailable(silent));
                    }
                    let is_idle = self.unanswered.is_empty() && waiting.is_empty();
                    if is_idle && used.elapsed() >= IDLE_MAX {
                        return StreamEnd::Idle;
                    }
                }
            }
        }
    }

    /// The next frame, of those that wait. Who gave up meanwhile is not in it.
    fn frame(&mut self, waiting: &mut Vec<Queued>) -> PipelineRequest {
        let now = Instant::now();
        let mut bytes = 0;
        let mut calls = Vec::with_capacity(waiting.len());
        let mut rest = Vec::new();
        for queued in waiting.drain(..) {
            if queued.reply.is_closed() {
                continue;
            }
            bytes += queued.bytes;
            if bytes > FRAME_BYTES && !calls.is_empty() {
                rest.push(queued);
                continue;
            }
            self.last_id = self.last_id.wrapping_add(1);
            let left = queued.until.saturating_duration_since(now);
            self.unanswered.insert(self.last_id, Some(queued.reply));
            calls.push(PipelineCall {
                call_id: self.last_id,
                timeout: prost_types::Duration::try_from(left).ok(),
                call: Some(queued.call),
            });
        }
        *waiting = rest;
        // What was answered meanwhile is not answered again.
        let mut given_up = std::mem::take(&mut self.given_up);
        given_up.retain(|call_id| self.unanswered.contains_key(call_id));
        PipelineRequest { calls, given_up }
    }

    fn answered(&mut self, frame: PipelineResponse) {
        for answer in frame.answers {
            if let Some(Some(reply)) = self.unanswered.remove(&answer.call_id) {
                // It may have given up meanwhile.
                let _ = reply.send(Ok(answer));
            }
        }
    }
}

/// What the status that a stream ended with says of the calls on it that were not answered. One from a server is about the
/// stream: only that the server stops, or that nobody knows the call, is known to mean that they were not done.
pub(super) fn of_calls(status: Status, is_answered: bool) -> Status {
    let is_from_here = std::error::Error::source(&status).is_some();
    let info = status.get_details_error_info();
    let stops = info.is_some_and(|info| info.domain == DOMAIN && info.reason == "STOPPING");
    let is_unknown = status.code() == Code::Unimplemented && !is_answered;
    match is_from_here || stops || is_unknown {
        true => status,
        false => Status::unavailable(format!("the Pipeline ended: {}", status.message())),
    }
}

/// Why a call did not leave: it was not done.
#[derive(Debug, thiserror::Error)]
#[error("the call was not sent: {0}")]
pub(super) struct NotSent(String);

fn not_sent(status: Status) -> Status {
    // It is tried again where the stream was not opened for good, too.
    let code = match status.code() {
        Code::Unimplemented => Code::Unimplemented,
        _ => Code::Unavailable,
    };
    let mut unsent = Status::new(code, status.message());
    unsent.set_source(Arc::new(NotSent(status.message().to_owned())));
    unsent
}
