//! Pipeline: many calls over one stream, each of which means what it means by itself.
//!
//! A task of its own makes the calls, so that they go on also while their answers are not taken. It reads no further while as
//! much is in flight, or waits to be taken, as one stream may have.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use fermata_proto::pipeline_answer::Outcome;
use fermata_proto::pipeline_call::Call;
use fermata_proto::{KeyHome, PipelineAnswer, PipelineCall, PipelineRequest, PipelineResponse};
use futures_util::stream::FuturesUnordered;
use futures_util::{Stream, StreamExt};
use prost::Message as _;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio::time::sleep_until;
use tonic::{Code, Status, Streaming};
use tracing::Instrument as _;

use super::calls::{
    CallContext, CloseSession, CreateLockRef, CriticalDelete, CriticalGet, CriticalPut,
    OpenSession, ReleaseLock, RenewSession, UnaryCall,
};
use super::deadline::Deadline;
use super::keep_alive::Connected;
use super::parse::{self, FieldProblem, Invalid};
use super::route::{Router, Served};
use super::stopping::Stopping;
use super::{acquire, call_layer, read, renew_locks, status};
use crate::lock::ReplicaId;

/// How many calls of one stream may be in flight, or be answered and not taken: reading stops at that, and so there
/// may be one frame more.
const CALLS_MAX: usize = 1_024;
/// How many of them may wait for a lock: else what they wait for might stand behind them, unread.
const WAITS_MAX: usize = 512;
/// How many calls a frame may have.
const FRAME_CALLS_MAX: usize = 256;
/// How many bytes the calls of one stream that are in flight may have, and the answers that are not taken, before reading
/// stops.
const BYTES_MAX: usize = 16 * 1024 * 1024;
/// How large a frame of answers becomes before the next one is begun.
const FRAME_BYTES: usize = 256 * 1024;

/// The answers to a stream of calls. The calls that are in flight end with it.
pub struct Answers {
    frames: mpsc::Receiver<Result<PipelineResponse, Status>>,
    task: AbortHandle,
}

impl Drop for Answers {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Stream for Answers {
    type Item = Result<PipelineResponse, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.frames.poll_recv(cx)
    }
}

/// Makes the calls of a stream. It ends where the client ends its side, a little before the deadline, and with a status when
/// the replica stops or where a frame makes no sense; all but the last let the calls in flight be answered before.
pub fn answers(
    router: Router,
    frames: Streaming<PipelineRequest>,
    context: CallContext,
    stopping: Stopping,
) -> Answers {
    let (sender, receiver) = mpsc::channel(1);
    let caller = Arc::new(Caller {
        connected: Arc::new(Connected::new(router.clone(), stopping.clone())),
        here: router.engine().replica(),
        router,
        context,
        stopping,
    });
    let pipe = Pipe {
        caller,
        in_flight: FuturesUnordered::new(),
        in_flight_bytes: 0,
        waits: 0,
        answered: Vec::new(),
        answered_bytes: 0,
    };
    let task = tokio::spawn(pipe.run(frames, sender).in_current_span());
    Answers {
        frames: receiver,
        task: task.abort_handle(),
    }
}

/// A call that was answered.
struct CallMade {
    answer: PipelineAnswer,
    /// Of the call.
    bytes: usize,
    waited: bool,
}

/// Why nothing more is read.
enum ReadEnd {
    /// What is in flight is answered first.
    Orderly(Result<(), Status>),
    /// The client made no sense, or is gone.
    AtOnce(Status),
}

/// What the task of a stream has.
struct Pipe {
    caller: Arc<Caller>,
    in_flight: FuturesUnordered<Pin<Box<dyn Future<Output = CallMade> + Send>>>,
    in_flight_bytes: usize,
    /// Of those in flight: how many wait for a lock.
    waits: usize,
    answered: Vec<PipelineAnswer>,
    answered_bytes: usize,
}

impl Pipe {
    async fn run(
        mut self,
        mut frames: Streaming<PipelineRequest>,
        sender: mpsc::Sender<Result<PipelineResponse, Status>>,
    ) {
        let mut end = None;
        loop {
            let answer_by = self.caller.context.deadline.answer_by();
            let deadline = async {
                match answer_by {
                    Some(at) => sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            let mut stopping = self.caller.stopping.clone();
            let reads = end.is_none();
            let has_room = self.has_room();
            tokio::select! {
                biased;
                () = stopping.stopped(), if reads => end = Some(ReadEnd::Orderly(Err(status::stopping()))),
                () = deadline, if reads => end = Some(ReadEnd::Orderly(Ok(()))),
                permit = sender.reserve(), if self.has_frame() => match permit {
                    Ok(permit) => permit.send(Ok(self.frame())),
                    Err(_gone) => return,
                },
                Some(made) = self.in_flight.next() => self.made(made),
                permit = sender.reserve(), if !self.answered.is_empty() => match permit {
                    Ok(permit) => permit.send(Ok(self.frame())),
                    Err(_gone) => return,
                },
                frame = frames.message(), if reads && has_room => end = self.read(frame),
                else => break,
            }
            if let Some(ReadEnd::AtOnce(_)) = end {
                break;
            }
        }
        let failed = match end {
            None | Some(ReadEnd::Orderly(Ok(()))) => return,
            Some(ReadEnd::Orderly(Err(status)) | ReadEnd::AtOnce(status)) => status,
        };
        while !self.answered.is_empty() {
            if sender.send(Ok(self.frame())).await.is_err() {
                return;
            }
        }
        // Where it is not taken the client is gone.
        let _ = sender.send(Err(failed)).await;
    }

    fn has_room(&self) -> bool {
        self.in_flight.len() + self.answered.len() < CALLS_MAX
            && self.in_flight_bytes + self.answered_bytes < BYTES_MAX
    }

    /// Whether there are as many answers as a frame takes.
    fn has_frame(&self) -> bool {
        self.answered.len() >= FRAME_CALLS_MAX || self.answered_bytes >= FRAME_BYTES
    }

    /// The next frame of answers, taken from those that wait.
    fn frame(&mut self) -> PipelineResponse {
        let mut bytes = 0;
        let mut count = 0;
        for answer in &self.answered {
            let more = answer.encoded_len();
            if count > 0 && (bytes + more > FRAME_BYTES || count == FRAME_CALLS_MAX) {
                break;
            }
            bytes += more;
            count += 1;
        }
        self.answered_bytes = self.answered_bytes.saturating_sub(bytes);
        let answers = match count == self.answered.len() {
            true => std::mem::take(&mut self.answered),
            false => self.answered.drain(..count).collect(),
        };
        PipelineResponse { answers }
    }

    fn made(&mut self, made: CallMade) {
        self.in_flight_bytes -= made.bytes;
        self.waits -= usize::from(made.waited);
        self.answered(made.answer);
    }

    fn answered(&mut self, answer: PipelineAnswer) {
        self.answered_bytes += answer.encoded_len();
        self.answered.push(answer);
    }

    fn read(&mut self, frame: Result<Option<PipelineRequest>, Status>) -> Option<ReadEnd> {
        let message_bytes_max = self.caller.router.limits().message_bytes_max;
        let frame = match frame {
            Ok(Some(frame)) => frame,
            Ok(None) => return Some(ReadEnd::Orderly(Ok(()))),
            Err(failed) => {
                let answered =
                    status::of_library(failed.code(), failed.message(), message_bytes_max);
                return Some(ReadEnd::AtOnce(answered.unwrap_or(failed)));
            }
        };
        if let Err(invalid) = parse::frame_calls(frame.calls.len(), FRAME_CALLS_MAX) {
            return Some(ReadEnd::AtOnce(invalid.into()));
        }
        for call in frame.calls {
            self.begin(call);
        }
        None
    }

    fn begin(&mut self, call: PipelineCall) {
        let waits = matches!(&call.call, Some(Call::AcquireLock(ask)) if ask.wait.is_some());
        if waits && self.waits >= WAITS_MAX {
            let refused = Err(status::too_many_waits(WAITS_MAX));
            return self.answered(self.caller.answer(call.call_id, refused));
        }
        let bytes = call.encoded_len();
        self.in_flight_bytes += bytes;
        self.waits += usize::from(waits);
        let caller = Arc::clone(&self.caller);
        self.in_flight.push(Box::pin(async move {
            let call_id = call.call_id;
            let served = caller.call(call).await;
            CallMade {
                answer: caller.answer(call_id, served),
                bytes,
                waited: waits,
            }
        }));
    }
}

/// Makes the calls of a stream.
struct Caller {
    router: Router,
    /// This replica.
    here: ReplicaId,
    /// Of the stream: who asks, and from where.
    context: CallContext,
    stopping: Stopping,
    connected: Arc<Connected>,
}

impl Caller {
    async fn call(&self, call: PipelineCall) -> Result<Served<Outcome>, Status> {
        let missing = Invalid {
            field: "call",
            problem: FieldProblem::Missing,
        };
        let context = CallContext {
            deadline: Deadline::from_now(parse::timeout(call.timeout.as_ref())?),
            ..self.context.clone()
        };
        let call = call.call.ok_or(missing)?;
        let span = call_layer::span("fermata.v1.LockService", method(&call));
        let served = async {
            let served = self.make(call, &context).await;
            let code = served.as_ref().map_or_else(Status::code, |_| Code::Ok);
            tracing::debug!(?code, "answered");
            served
        };
        served.instrument(span).await
    }

    async fn make(&self, call: Call, context: &CallContext) -> Result<Served<Outcome>, Status> {
        let (router, stopping) = (&self.router, self.stopping.clone());
        match call {
            Call::CreateLockRef(ask) => {
                let made = self.unary::<CreateLockRef>(ask, context, Outcome::CreateLockRef);
                made.await
            }
            Call::AcquireLock(ask) => {
                let acquired = acquire::acquire(router, stopping, ask, context).await?;
                Ok(acquired.map(Outcome::AcquireLock))
            }
            Call::RenewLocks(ask) => {
                let renewed = renew_locks::renew(router, ask, context).await?;
                Ok(without_home(Outcome::RenewLocks(renewed)))
            }
            Call::ReleaseLock(ask) => {
                let made = self.unary::<ReleaseLock>(ask, context, Outcome::ReleaseLock);
                made.await
            }
            Call::CriticalGet(ask) => {
                let made = self.unary::<CriticalGet>(ask, context, Outcome::CriticalGet);
                made.await
            }
            Call::CriticalPut(ask) => {
                let made = self.unary::<CriticalPut>(ask, context, Outcome::CriticalPut);
                made.await
            }
            Call::CriticalDelete(ask) => {
                let made = self.unary::<CriticalDelete>(ask, context, Outcome::CriticalDelete);
                made.await
            }
            Call::OpenSession(ask) => {
                let made = self.unary::<OpenSession>(ask, context, Outcome::OpenSession);
                made.await
            }
            Call::RenewSession(ask) => {
                let made = self.unary::<RenewSession>(ask, context, Outcome::RenewSession);
                made.await
            }
            Call::KeepAlive(ask) => {
                let answer_by = context.deadline.answer_by_or(router.limits().call_max());
                let renewed = self.connected.renew(ask, context, answer_by).await?;
                Ok(without_home(Outcome::KeepAlive(renewed)))
            }
            Call::CloseSession(ask) => {
                let made = self.unary::<CloseSession>(ask, context, Outcome::CloseSession);
                made.await
            }
            Call::Get(ask) => {
                let read = read::read(router, ask, context).await?;
                Ok(without_home(Outcome::Get(read)))
            }
        }
    }

    async fn unary<C: UnaryCall>(
        &self,
        ask: C::Ask,
        context: &CallContext,
        outcome: fn(C::Answer) -> Outcome,
    ) -> Result<Served<Outcome>, Status> {
        let served = self.router.call::<C>(ask, context).await?;
        Ok(served.map(outcome))
    }

    fn answer(&self, call_id: u64, served: Result<Served<Outcome>, Status>) -> PipelineAnswer {
        let (outcome, home) = match served {
            Ok(Served { answer, home }) => (answer, home.filter(|home| home.id != self.here)),
            Err(status) => (Outcome::Error(status::lock_error(&status)), None),
        };
        PipelineAnswer {
            call_id,
            home: home.map(|home| KeyHome {
                replica: home.id.to_string(),
                address: home.address,
                term: home.term,
            }),
            outcome: Some(outcome),
        }
    }
}

fn without_home(answer: Outcome) -> Served<Outcome> {
    Served { answer, home: None }
}

/// The method that makes the same call by itself.
fn method(call: &Call) -> &'static str {
    match call {
        Call::CreateLockRef(_) => "CreateLockRef",
        Call::AcquireLock(_) => "AcquireLock",
        Call::RenewLocks(_) => "RenewLocks",
        Call::ReleaseLock(_) => "ReleaseLock",
        Call::CriticalGet(_) => "CriticalGet",
        Call::CriticalPut(_) => "CriticalPut",
        Call::CriticalDelete(_) => "CriticalDelete",
        Call::OpenSession(_) => "OpenSession",
        Call::RenewSession(_) => "RenewSession",
        Call::KeepAlive(_) => "KeepAlive",
        Call::CloseSession(_) => "CloseSession",
        Call::Get(_) => "Get",
    }
}
