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
use tokio::sync::{mpsc, oneshot};
use tokio::time::sleep;
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
/// How large a frame becomes before the next one is begun …
const FRAME_BYTES: usize = 64 * 1024;
/// … and a call that is larger goes by itself: it would hold up the others.
const CALL_BYTES_MAX: usize = FRAME_BYTES;
/// How often it is looked for calls that nobody waits for any more, while there is no room.
const PURGE_EVERY: Duration = Duration::from_secs(1);

/// Calls to one replica over one stream, in frames. Clones share it.
#[derive(Clone)]
pub struct Pipeline {
    shared: Arc<Shared>,
}

struct Shared {
    opener: Opener,
    /// To the task, if there is one.
    queue: Mutex<Option<mpsc::Sender<Queued>>>,
    support: Arc<Support>,
}

/// Whether the server takes a Pipeline.
#[derive(Default)]
struct Support {
    /// It answered on one.
    taken: AtomicBool,
    /// It, or a proxy before it, does not know the call.
    refused: AtomicBool,
}

/// A call that waits for the next frame.
struct Queued {
    call: pipeline_call::Call,
    timeout: Duration,
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
                queue: Mutex::default(),
                support: Arc::default(),
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
        let support = &self.shared.support;
        if support.refused.load(Ordering::Relaxed) || call.encoded_len() > CALL_BYTES_MAX {
            return self.by_itself(call, timeout).await;
        }
        if support.taken.load(Ordering::Relaxed) {
            return self.in_frame(call, timeout).await;
        }
        let copy = call.clone();
        match self.in_frame(call, timeout).await {
            Err(status) if status.code() == Code::Unimplemented => {
                self.by_itself(copy, timeout).await
            }
            answered => answered,
        }
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
        timeout: Duration,
    ) -> Result<Response<C::Answer>, Status> {
        let (reply, answered) = oneshot::channel();
        let queued = Queued {
            call: call.in_frame(),
            timeout,
            reply,
        };
        let ended = || Status::unavailable("the runtime that the Pipeline was opened in has ended");
        self.queue().send(queued).await.map_err(|_| ended())?;
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
            support: Arc::clone(&shared.support),
            unanswered: HashMap::new(),
            last_id: 0,
        };
        tokio::spawn(sending.run());
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
    Open(Box<Frames>),
}

impl Phase {
    /// The next frame of answers, or what the end of the stream says of the calls on it that were not answered. May be
    /// dropped and called again.
    async fn next(&mut self) -> Result<PipelineResponse, Status> {
        loop {
            match self {
                // Where it was not opened no call was read.
                Phase::Opening(opening) => {
                    let frames = opening.await?;
                    *self = Phase::Open(Box::new(frames));
                }
                Phase::Open(frames) => {
                    let frame = frames.message().await.map_err(of_calls)?;
                    let end = || Status::unavailable("the Pipeline ended before the answer");
                    return frame.ok_or_else(end);
                }
            }
        }
    }
}

/// What the task has.
struct Sending {
    opener: Opener,
    queue: mpsc::Receiver<Queued>,
    support: Arc<Support>,
    /// Sent on the stream that is open, by call_id.
    unanswered: HashMap<u64, oneshot::Sender<Result<PipelineAnswer, Status>>>,
    last_id: u64,
}

impl Sending {
    /// Until nobody is left who could call.
    async fn run(mut self) {
        while let Some(first) = self.queue.recv().await {
            let mut waiting = vec![first];
            let Err(status) = self.stream(&mut waiting).await else {
                return;
            };
            tracing::debug!(code = ?status.code(), "the Pipeline has ended");
            if status.code() == Code::Unimplemented && !self.support.taken.load(Ordering::Relaxed) {
                self.support.refused.store(true, Ordering::Relaxed);
            }
            let replies = self.unanswered.drain().map(|(_, reply)| reply);
            // They were not sent; but where nothing can be sent, they are not to wait for the next one who calls.
            let replies = replies.chain(waiting.into_iter().map(|queued| queued.reply));
            for reply in replies {
                // It may have given up meanwhile.
                let _ = reply.send(Err(status.clone()));
            }
        }
    }

    /// One stream, until it ends with an error, or nobody is left who could call.
    async fn stream(&mut self, waiting: &mut Vec<Queued>) -> Result<(), Status> {
        let (frames, sent) = mpsc::channel(1);
        let mut locks = self.opener.locks();
        let request = self.opener.request(ReceiverStream::new(sent), None);
        let mut phase = Phase::Opening(Box::pin(async move {
            Ok(locks.pipeline(request).await?.into_inner())
        }));
        loop {
            let has_room = self.unanswered.len() + waiting.len() < IN_FLIGHT_MAX;
            let more = FRAME_CALLS_MAX.saturating_sub(waiting.len());
            tokio::select! {
                biased;
                frame = phase.next() => self.answered(frame?),
                count = self.queue.recv_many(waiting, more), if has_room && more > 0 => {
                    if count == 0 {
                        return Ok(());
                    }
                }
                room = frames.reserve(), if !waiting.is_empty() => match room {
                    Ok(room) => room.send(self.frame(waiting)),
                    // The server reads no more; what it answers, or its status, is there or comes.
                    Err(_) => self.answered(phase.next().await?),
                },
                () = sleep(PURGE_EVERY), if !has_room => {
                    self.unanswered.retain(|_, reply| !reply.is_closed());
                }
            }
        }
    }

    /// The next frame, of those that wait. Who gave up meanwhile is not in it.
    fn frame(&mut self, waiting: &mut Vec<Queued>) -> PipelineRequest {
        let mut bytes = 0;
        let mut calls = Vec::with_capacity(waiting.len());
        let mut rest = Vec::new();
        for queued in waiting.drain(..) {
            if queued.reply.is_closed() {
                continue;
            }
            if bytes >= FRAME_BYTES {
                rest.push(queued);
                continue;
            }
            self.last_id = self.last_id.wrapping_add(1);
            let call = PipelineCall {
                call_id: self.last_id,
                timeout: prost_types::Duration::try_from(queued.timeout).ok(),
                call: Some(queued.call),
            };
            bytes += call.encoded_len();
            self.unanswered.insert(call.call_id, queued.reply);
            calls.push(call);
        }
        *waiting = rest;
        PipelineRequest { calls }
    }

    fn answered(&mut self, frame: PipelineResponse) {
        self.support.taken.store(true, Ordering::Relaxed);
        for answer in frame.answers {
            if let Some(reply) = self.unanswered.remove(&answer.call_id) {
                // It may have given up meanwhile.
                let _ = reply.send(Ok(answer));
            }
        }
    }
}

/// What the status that a stream ended with says of the calls on it that were not answered. One from a server is about the
/// stream: only that the server stops is known to mean that they were not done.
pub(super) fn of_calls(status: Status) -> Status {
    let is_from_here = std::error::Error::source(&status).is_some();
    let info = status.get_details_error_info();
    let stops = info.is_some_and(|info| info.domain == DOMAIN && info.reason == "STOPPING");
    match is_from_here || stops {
        true => status,
        false => Status::unavailable(format!("the Pipeline ended: {}", status.message())),
    }
}
