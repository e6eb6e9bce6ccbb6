//! The Pipeline of a client to one replica: one stream that carries calls in frames. A task owns the stream. The task opens the
//! stream with the first call, opens it again after a break, and gives each call its own answer.
//!
//! After a break of the stream its unanswered calls may have been done, as after a break of a connection. After an orderly stop
//! of the server they were not done: the server first answers all calls that it has read, then says that it stops.
//!
//! If the stream does not get through, calls go by themselves, without frames (`link.rs`). So do calls larger than a frame.

mod call;
mod link;
mod sending;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use fermata_proto::pipeline_answer::Outcome;
use fermata_proto::{HOME_ADDRESS, PipelineAnswer, RenewLocksRequest};
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::time::{Instant, timeout};
use tonic::transport::Channel;
use tonic::{Code, Response, Status};

pub(crate) use call::{ANSWER_BYTES_MAX, Opener};
pub use call::{Answering, Call, Room};
use link::Link;
use sending::{FRAME_BYTES, Queued, SILENT_MAX, Sending, Unanswered, bytes_of, not_sent};
pub(crate) use sending::{NotSent, not_in_time};
#[cfg(test)]
pub(crate) use sending::{is_refusal, of_calls};

use super::call_metadata::CallMetadata;
use super::local_status::unexpected;

/// The most calls in flight, as in the server. Further calls wait here.
const IN_FLIGHT_MAX: usize = 960;
/// The most renewals beside them, as in the server. With more than both together the server would read no further frame, and
/// would not learn which calls are given up.
const RENEWALS_MAX: usize = 64;

/// Calls to one replica over one stream, in frames. Clones share it.
#[derive(Clone)]
pub struct Pipeline {
    shared: Arc<PipelineShared>,
}

struct PipelineShared {
    opener: Opener,
    /// The runtime of the client, which must not end before its calls do.
    runtime: Option<Handle>,
    /// The queue to the task, if there is one. The rooms bound its length.
    queue: Mutex<Option<mpsc::UnboundedSender<Queued>>>,
    room: Arc<Semaphore>,
    renewals_room: Arc<Semaphore>,
    link: Arc<Link>,
}

/// The answer to a call in a frame. The task notices at once when the caller gives up, so that the server ends the call before
/// its repeat comes.
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
    /// Calls over this connection, with this metadata. Opens the stream with the first call.
    pub fn new(channel: Channel, metadata: CallMetadata) -> Pipeline {
        Pipeline {
            shared: Arc::new(PipelineShared {
                opener: Opener { channel, metadata },
                runtime: Handle::try_current().ok(),
                queue: Mutex::default(),
                room: Arc::new(Semaphore::new(IN_FLIGHT_MAX)),
                renewals_room: Arc::new(Semaphore::new(RENEWALS_MAX)),
                link: Arc::default(),
            }),
        }
    }

    /// Makes one call, and sends its time limit to the server. A failure without an answer has the code UNAVAILABLE, or a source.
    /// Must be called inside a Tokio runtime.
    pub async fn call<C: Call>(
        &self,
        call: C,
        within: Duration,
    ) -> Result<Response<C::Answer>, Status> {
        let opener = &self.shared.opener;
        let begun = Instant::now();
        let left = || within.saturating_sub(begun.elapsed());
        if bytes_of(&call) > FRAME_BYTES || self.is_alone() {
            return opener.by_itself(call, within).await;
        }
        let room = timeout(within, self.room(call.room())).await;
        // Meanwhile the stream may have been found to be silent.
        let Some(room) = room
            .map_err(|_| not_in_time())?
            .filter(|_| !self.is_alone())
        else {
            return opener.by_itself(call, left()).await;
        };
        let copy = call.clone();
        match self.in_frame(call, begun.checked_add(within), room).await {
            Ok(answer) => Ok(answer),
            Err(Unanswered::NotTaken) => opener.by_itself(copy, left()).await,
            Err(Unanswered::Failed(status)) => Err(status),
        }
    }

    /// Room for one more call on the stream. `None`: the call goes by itself.
    async fn room(&self, room: Room) -> Option<OwnedSemaphorePermit> {
        let shared = &self.shared;
        match room {
            Room::Renewals => Arc::clone(&shared.renewals_room).try_acquire_owned().ok(),
            Room::Holder => Arc::clone(&shared.room).try_acquire_owned().ok(),
            // (Nobody closes it.)
            Room::Begins => Arc::clone(&shared.room).acquire_owned().await.ok(),
        }
    }

    /// Whether calls go by themselves for now. Tries the stream if that is due.
    fn is_alone(&self) -> bool {
        let link = &self.shared.link;
        if !link.is_alone() {
            return false;
        }
        if link.is_to_be_tried() {
            let pipeline = self.clone();
            self.spawn(async move {
                if let Some(room) = pipeline.room(Room::Renewals).await {
                    // A server answers that this names no lock. That it answers is all that matters.
                    let probe = RenewLocksRequest::default();
                    let tried = pipeline.in_frame(probe, None, room);
                    let _ = timeout(SILENT_MAX, tried).await;
                }
            });
        }
        true
    }

    async fn in_frame<C: Call>(
        &self,
        call: C,
        until: Option<Instant>,
        room: OwnedSemaphorePermit,
    ) -> Result<Response<C::Answer>, Unanswered> {
        let (reply, answered) = oneshot::channel();
        let queued = Queued {
            bytes: bytes_of(&call),
            call: call.in_frame(),
            traceparent: self
                .shared
                .opener
                .metadata
                .traceparent()
                .unwrap_or_default(),
            until,
            reply,
            room,
        };
        let ended = || Status::unavailable("the Tokio runtime of the Pipeline has ended");
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
            Some(outcome) => {
                C::answer(outcome).ok_or_else(|| unexpected("the outcome of another call"))?
            }
            None => return Err(unexpected("no outcome").into()),
        });
        let address = home.map(|home| home.address);
        if let Some(address) = address.filter(|address| !address.is_empty())
            && let Ok(address) = address.parse()
        {
            response.metadata_mut().insert(HOME_ADDRESS, address);
        }
        Ok(response)
    }

    /// The queue to the task. Starts a task if there is none, or if its runtime has ended.
    fn queue(&self) -> mpsc::UnboundedSender<Queued> {
        let shared = &self.shared;
        let mut queue = shared.queue.lock();
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
