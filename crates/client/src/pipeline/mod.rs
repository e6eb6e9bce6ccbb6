//! The Pipeline of a client to one replica: one stream, over which its calls go in frames. A task has it, opens it when it is
//! first needed and again after it broke, and gives each call its own answer.
//!
//! A call that was sent on a stream that broke fails as one on a connection that broke: it may have been done. Where the
//! server stopped in order it was not: such a server answers first what it has read, and says that it stops after that.
//!
//! Where the stream is refused, or nothing ever comes of it, calls go by themselves (`link.rs`).

mod call;
mod link;
mod sending;

use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use fermata_proto::lock_service_client::LockServiceClient;
use fermata_proto::pipeline_answer::Outcome;
use fermata_proto::{
    HOME_ADDRESS, HOME_ID, HOME_TERM, PipelineAnswer, RenewLocksRequest, pipeline_call,
};
use prost::Message as _;
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::time::{Instant, timeout_at};
use tonic::transport::Channel;
use tonic::{Code, Request, Response, Status};

pub use call::{Answering, Call, CallRoom};
use link::Link;
pub(super) use sending::NotSent;
use sending::{Sending, not_in_time, not_sent};
#[cfg(test)]
pub(super) use sending::{is_refusal, of_calls};

use super::call_metadata::CallMetadata;
use super::connect::ANSWER_BYTES_MAX;
use super::fault::unexpected;

/// How many calls may be in flight: as many as a server begins. Further ones wait for room here.
const IN_FLIGHT_MAX: usize = 960;
/// How many renewals may be beside them: as many as a server begins then. With all of these it is still heard what is given
/// up; with more a server would read nothing more.
const RENEWALS_MAX: usize = 64;
/// How large a frame may be: as much as every server takes. A call that is larger goes by itself: it would hold up the others,
/// too.
const FRAME_BYTES: usize = 16 * 1024;
/// After an answer above this, reads of values go by themselves, until one is not: each would hold up the others.
const READ_BYTES: usize = 64 * 1024;
/// What a call takes in a frame beside its message: its number, its time, and how long it is.
const CALL_EXTRA_BYTES: usize = 64;
/// A call whose time has no end that can be told is listened for so long.
const LISTENED_MAX: Duration = Duration::from_secs(60);
/// How long the answer to a call is waited for that tries whether the stream is taken.
const TRIED_FOR: Duration = Duration::from_secs(5);

/// Calls to one replica over one stream, in frames. Clones share it.
#[derive(Clone)]
pub struct Pipeline {
    shared: Arc<PipelineShared>,
}

struct PipelineShared {
    opener: Opener,
    /// Where the task runs, which is not to end before its calls do: that which the client was made in.
    runtime: Option<Handle>,
    /// To the task, if there is one. No more are in it than there is room for.
    queue: Mutex<Option<mpsc::UnboundedSender<Queued>>>,
    room: Arc<Semaphore>,
    renewals_room: Arc<Semaphore>,
    link: Arc<Link>,
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
    reply: Reply,
    /// Until its answer is there, also where it is given up: the server has it until then.
    room: OwnedSemaphorePermit,
}

type Reply = oneshot::Sender<Result<PipelineAnswer, Unanswered>>;

/// Why a call in a frame was not answered with what it asks for.
#[derive(Debug, Clone)]
enum Unanswered {
    /// It was not done, since the stream is not taken: it goes by itself.
    NotTaken,
    /// It failed so.
    Failed(Status),
}

impl From<Status> for Unanswered {
    fn from(status: Status) -> Unanswered {
        Unanswered::Failed(status)
    }
}

/// The answer to a call in a frame. The task hears at once that it is not waited for any more, so that the server ends the
/// call before a repeat of it comes.
struct Awaited<'a> {
    reply: oneshot::Receiver<Result<PipelineAnswer, Unanswered>>,
    link: &'a Link,
    is_answered: bool,
}

impl Drop for Awaited<'_> {
    fn drop(&mut self) {
        if !self.is_answered {
            self.reply.close();
            self.link.given_up.notify_one();
        }
    }
}

impl std::fmt::Debug for Pipeline {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pipeline").finish_non_exhaustive()
    }
}

impl Pipeline {
    /// Calls over this connection, by a client that is known so. Opens the stream with the first call.
    pub fn new(channel: Channel, metadata: CallMetadata) -> Pipeline {
        Pipeline {
            shared: Arc::new(PipelineShared {
                opener: Opener { channel, metadata },
                runtime: Handle::try_current().ok(),
                queue: Mutex::default(),
                room: Arc::new(Semaphore::new(IN_FLIGHT_MAX)),
                renewals_room: Arc::new(Semaphore::new(RENEWALS_MAX)),
                link: Arc::default(),
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
        let now = Instant::now();
        let until = now.checked_add(timeout).unwrap_or(now + LISTENED_MAX);
        let bytes = call.encoded_len() + CALL_EXTRA_BYTES;
        let reads = call.reads();
        let is_large = bytes > FRAME_BYTES || (reads && shared.reads_alone.load(Ordering::Relaxed));
        let room = match is_large || self.is_alone() {
            true => None,
            // Meanwhile the stream may have been found to be silent.
            false => match timeout_at(until, self.room(call.room())).await {
                Ok(room) => room.filter(|_| !self.is_alone()),
                Err(_) => return Err(not_in_time()),
            },
        };
        let left = || until.saturating_duration_since(Instant::now());
        let answered = match room {
            None => self.by_itself(call, left()).await,
            Some(room) => {
                let copy = call.clone();
                match self.in_frame(call, bytes, until, room).await {
                    Ok(answer) => Ok(answer),
                    Err(Unanswered::NotTaken) => self.by_itself(copy, left()).await,
                    Err(Unanswered::Failed(status)) => Err(status),
                }
            }
        };
        if reads && let Ok(answer) = &answered {
            let is_large = answer.get_ref().encoded_len() > READ_BYTES;
            shared.reads_alone.store(is_large, Ordering::Relaxed);
        }
        answered
    }

    /// Room for one more call on the stream; `None`: it is to go by itself.
    async fn room(&self, room: CallRoom) -> Option<OwnedSemaphorePermit> {
        let (any, renewals) = (&self.shared.room, &self.shared.renewals_room);
        // (Nobody closes them.)
        match room {
            CallRoom::Any => Arc::clone(any).acquire_owned().await.ok(),
            // What it is to keep alive would end behind a thousand calls that hang.
            CallRoom::AnyAtOnce => Arc::clone(any).try_acquire_owned().ok(),
            CallRoom::Renewals => Arc::clone(renewals).try_acquire_owned().ok(),
        }
    }

    /// Whether calls go by themselves for now; then it is tried now and then whether they still have to.
    fn is_alone(&self) -> bool {
        let link = &self.shared.link;
        if !link.is_alone() {
            return false;
        }
        if link.is_to_be_tried() {
            let pipeline = self.clone();
            self.spawn(async move {
                let Some(room) = pipeline.room(CallRoom::Renewals).await else {
                    return;
                };
                // A server answers that this names no lock; that it answers is all there is to know.
                let ask = RenewLocksRequest::default();
                let until = Instant::now() + TRIED_FOR;
                let tried = pipeline.in_frame(ask, CALL_EXTRA_BYTES, until, room);
                let _ = tokio::time::timeout_at(until, tried).await;
            });
        }
        true
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
        until: Instant,
        room: OwnedSemaphorePermit,
    ) -> Result<Response<C::Answer>, Unanswered> {
        let (reply, answered) = oneshot::channel();
        let queued = Queued {
            call: call.in_frame(),
            bytes,
            until,
            reply,
            room,
        };
        let ended = || Status::unavailable("the runtime that the Pipeline was opened in has ended");
        let sent = self.queue().send(queued);
        sent.map_err(|_| not_sent(&ended()))?;
        let mut awaited = Awaited {
            reply: answered,
            link: &self.shared.link,
            is_answered: false,
        };
        let answer = (&mut awaited.reply).await;
        awaited.is_answered = true;
        let answer = answer.map_err(|_| ended())??;
        let home = answer.home;
        let mut response = Response::new(match answer.outcome {
            Some(Outcome::Error(error)) => {
                let code = Code::from_i32(error.code);
                return Err(Status::with_details(code, error.message, error.details).into());
            }
            Some(outcome) => C::answer(outcome).ok_or_else(|| unexpected("of another call"))?,
            None => return Err(unexpected("without an outcome").into()),
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
    fn queue(&self) -> mpsc::UnboundedSender<Queued> {
        let shared = &self.shared;
        let mut queue = shared.queue.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(open) = queue.as_ref().filter(|queue| !queue.is_closed()) {
            return open.clone();
        }
        let (sender, receiver) = mpsc::unbounded_channel();
        let sending = Sending::new(shared.opener.clone(), receiver, Arc::clone(&shared.link));
        self.spawn(sending.run());
        *queue = Some(sender.clone());
        sender
    }

    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        match &self.shared.runtime {
            Some(runtime) => runtime.spawn(task),
            None => tokio::spawn(task),
        };
    }
}

/// Opens streams, and makes what goes by itself.
#[derive(Clone)]
struct Opener {
    channel: Channel,
    metadata: CallMetadata,
}

impl Opener {
    fn locks(&self) -> LockServiceClient<Channel> {
        LockServiceClient::new(self.channel.clone()).max_decoding_message_size(ANSWER_BYTES_MAX)
    }

    fn request<T>(&self, message: T, timeout: Option<Duration>) -> Request<T> {
        let mut request = Request::new(message);
        match timeout {
            Some(timeout) => {
                request.set_timeout(timeout);
                self.metadata.put_on(&mut request);
            }
            // It stays open.
            None => self.metadata.put_on_stream(&mut request),
        }
        request
    }
}
