//! Pipeline: many calls over one stream, each of which means what it means by itself.
//!
//! A task of its own makes the calls, so that they go on also while their answers are not taken. It reads no further while as
//! much is in flight, or waits to be taken, as one stream may have.

use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use fermata_proto::pipeline_answer::Outcome;
use fermata_proto::pipeline_call::Call;
use fermata_proto::{KeyHome, PipelineAnswer, PipelineCall, PipelineRequest, PipelineResponse};
use futures_util::future::{AbortHandle as Cancel, Abortable};
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt as _, Stream, StreamExt as _};
use prost::Message as _;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep_until, timeout_at};
use tonic::{Code, Request, Status, Streaming};
use tracing::Instrument as _;

use super::calls::{
    CallContext, CloseSession, CreateLockRef, CriticalDelete, CriticalGet, CriticalPut,
    OpenSession, ReleaseLock, RenewSession, UnaryCall,
};
use super::deadline::{Deadline, later};
use super::keep_alive::Connected;
use super::parse::{self, FieldProblem, Invalid};
use super::route::{Router, Served};
use super::stopping::Stopping;
use super::{acquire, call_layer, read, renew_locks, status};

/// How many calls of one stream may be in flight, or be answered and not taken: further ones wait to be begun. While there
/// are more than that in all, no frame is read: a client that has no more calls without an answer is always heard, also where
/// it gives them up.
const CALLS_MAX: usize = 1_024;
/// How many of them may wait for a lock: else what they wait for might stand behind them, unread.
const WAITS_MAX: usize = 512;
/// How many calls a frame may have.
const FRAME_CALLS_MAX: usize = 256;
/// How many bytes the calls of one stream that are in flight may have, and the answers that are not taken, before no more
/// are begun. Answers in flight are estimated.
const BYTES_MAX: usize = 16 * 1024 * 1024;
/// What the answer of a call in flight that reads a value is counted as at least, and at most: between that by those that
/// came on the stream lately. (One that waits for a lock may do so for an hour, and counts as nothing.)
const READ_BYTES: usize = 64 * 1024;
const READ_BYTES_MAX: usize = 1024 * 1024;
/// What the answer about one lock of RenewLocks is counted as.
const RENEWED_BYTES: usize = 256;
/// How large a frame of answers becomes before the next one is begun.
const FRAME_BYTES: usize = 256 * 1024;
/// A larger answer waits for those that are not: it holds the stream for as long as it takes.
const SMALL_BYTES: usize = 64 * 1024;
/// Values up to this are copied out of the buffer that they were received in, which may be many times as large; so are
/// larger ones of which it is more than twice the size.
const COPIED_BYTES: usize = 64 * 1024;

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
    request: Request<Streaming<PipelineRequest>>,
    stopping: Stopping,
) -> Answers {
    let (sender, receiver) = mpsc::channel(1);
    let context = router.context(&request);
    let caller = Arc::new(Caller {
        connected: Arc::new(Connected::new(
            router.clone(),
            stopping.clone(),
            2 * CALLS_MAX,
        )),
        zone: router.zone_of(&request),
        router,
        context,
        stopping,
    });
    let pipe = Pipe {
        caller,
        unbegun: VecDeque::new(),
        unbegun_bytes: 0,
        in_flight: FuturesUnordered::new(),
        cancels: HashMap::new(),
        in_flight_bytes: 0,
        waits: 0,
        read_bytes: READ_BYTES,
        small: VecDeque::new(),
        large: VecDeque::new(),
        answered_bytes: 0,
        large_next: false,
        is_stopping: false,
    };
    let task = tokio::spawn(pipe.run(request.into_inner(), sender).in_current_span());
    Answers {
        frames: receiver,
        task: task.abort_handle(),
    }
}

/// A call that was answered.
struct CallMade {
    answer: PipelineAnswer,
    /// What it was counted as.
    bytes: usize,
    waited: bool,
    read: bool,
}

/// Why nothing more is read.
enum ReadEnd {
    /// What is in flight is answered first.
    Orderly,
    /// The client made no sense, or is gone.
    AtOnce(Status),
}

/// What the task of a stream has.
struct Pipe {
    caller: Arc<Caller>,
    /// Calls for which there was no room yet.
    unbegun: VecDeque<PipelineCall>,
    unbegun_bytes: usize,
    in_flight: FuturesUnordered<Pin<Box<dyn Future<Output = CallMade> + Send>>>,
    /// What ends each of them, by call_id.
    cancels: HashMap<u64, Cancel>,
    in_flight_bytes: usize,
    /// Of those in flight: how many wait for a lock.
    waits: usize,
    /// What a read in flight is counted as.
    read_bytes: usize,
    /// Answers that were not taken yet, and those that are large.
    small: VecDeque<PipelineAnswer>,
    large: VecDeque<PipelineAnswer>,
    answered_bytes: usize,
    /// It is a large one's turn.
    large_next: bool,
    /// The replica stops: calls are read, and refused.
    is_stopping: bool,
}

impl Pipe {
    async fn run(
        mut self,
        mut frames: Streaming<PipelineRequest>,
        sender: mpsc::Sender<Result<PipelineResponse, Status>>,
    ) {
        let answer_by = self.caller.context.deadline.answer_by();
        let mut deadline = pin!(async {
            match answer_by {
                Some(at) => sleep_until(at).await,
                None => std::future::pending().await,
            }
        });
        let mut stopping = self.caller.stopping.clone();
        let mut stopped = pin!(stopping.stopped());
        let mut end = None;
        while !(self.is_idle() && (self.is_stopping || end.is_some())) {
            // Calls that are answered at once would not let any other task run.
            tokio::task::consume_budget().await;
            self.begin_more();
            let reads = end.is_none();
            let takes_more = self.takes_more();
            tokio::select! {
                biased;
                () = &mut stopped, if !self.is_stopping => self.is_stopping = true,
                () = &mut deadline, if reads => end = Some(ReadEnd::Orderly),
                permit = sender.reserve(), if self.has_frame() => match permit {
                    Ok(permit) => permit.send(Ok(self.frame())),
                    Err(_gone) => return,
                },
                Some(made) = self.in_flight.next() => self.made(made),
                permit = sender.reserve(), if self.has_answers() => match permit {
                    Ok(permit) => permit.send(Ok(self.frame())),
                    Err(_gone) => return,
                },
                frame = frames.message(), if reads && takes_more => end = self.read(frame),
                // All else is idle, and so is this: see the loop.
                else => break,
            }
            if let Some(ReadEnd::AtOnce(_)) = end {
                // Nobody is to hear what comes of them.
                self.in_flight.clear();
                break;
            }
        }
        let failed = match end {
            Some(ReadEnd::AtOnce(status)) => status,
            _ if self.is_stopping => status::stopping(),
            None | Some(ReadEnd::Orderly) => return,
        };
        while self.has_answers() {
            if sender.send(Ok(self.frame())).await.is_err() {
                return;
            }
        }
        // Where it is not taken the client is gone.
        let _ = sender.send(Err(failed)).await;
    }

    fn is_idle(&self) -> bool {
        self.unbegun.is_empty() && self.in_flight.is_empty() && !self.has_answers()
    }

    fn has_answers(&self) -> bool {
        !self.small.is_empty() || !self.large.is_empty()
    }

    /// Whether one more call may be begun.
    fn has_room(&self) -> bool {
        self.in_flight.len() + self.untaken() < CALLS_MAX
            && self.in_flight_bytes + self.answered_bytes < BYTES_MAX
    }

    /// Whether one more frame may be read.
    fn takes_more(&self) -> bool {
        self.unbegun.len() + self.in_flight.len() + self.untaken() <= CALLS_MAX
            && self.unbegun_bytes + self.answered_bytes < BYTES_MAX
    }

    fn untaken(&self) -> usize {
        self.small.len() + self.large.len()
    }

    /// Whether there are as many answers as a frame takes.
    fn has_frame(&self) -> bool {
        self.small.len() >= FRAME_CALLS_MAX || self.answered_bytes >= FRAME_BYTES
    }

    /// The next frame of answers, taken from those that wait: the small ones, and one of the others in turns.
    fn frame(&mut self) -> PipelineResponse {
        let large = match self.large_next || self.small.is_empty() {
            true => self.large.pop_front(),
            false => None,
        };
        self.large_next = large.is_none();
        let answers = match large {
            Some(large) => {
                self.answered_bytes -= large.encoded_len();
                vec![large]
            }
            None => self.small_ones(),
        };
        PipelineResponse { answers }
    }

    fn small_ones(&mut self) -> Vec<PipelineAnswer> {
        let (mut bytes, mut count) = (0, 0);
        for answer in &self.small {
            if bytes >= FRAME_BYTES - SMALL_BYTES || count == FRAME_CALLS_MAX {
                break;
            }
            bytes += answer.encoded_len();
            count += 1;
        }
        self.answered_bytes -= bytes;
        self.small.drain(..count).collect()
    }

    fn made(&mut self, made: CallMade) {
        self.in_flight_bytes -= made.bytes;
        self.waits -= usize::from(made.waited);
        self.cancels.remove(&made.answer.call_id);
        if made.read {
            let lately = self.read_bytes - self.read_bytes / 8;
            let seen = made.answer.encoded_len().max(lately);
            self.read_bytes = seen.clamp(READ_BYTES, READ_BYTES_MAX);
        }
        self.answered(made.answer);
    }

    fn answered(&mut self, answer: PipelineAnswer) {
        let bytes = answer.encoded_len();
        self.answered_bytes += bytes;
        match bytes > SMALL_BYTES {
            true => self.large.push_back(answer),
            false => self.small.push_back(answer),
        }
    }

    fn read(&mut self, frame: Result<Option<PipelineRequest>, Status>) -> Option<ReadEnd> {
        let message_bytes_max = self.caller.router.limits().message_bytes_max;
        let frame = match frame {
            Ok(Some(frame)) => frame,
            Ok(None) => return Some(ReadEnd::Orderly),
            Err(failed) => {
                let answered =
                    status::of_library(failed.code(), failed.message(), message_bytes_max);
                return Some(ReadEnd::AtOnce(answered.unwrap_or(failed)));
            }
        };
        let counts = [
            ("calls", frame.calls.len(), FRAME_CALLS_MAX),
            ("given_up", frame.given_up.len(), CALLS_MAX),
        ];
        for (field, count, most) in counts {
            if let Err(invalid) = parse::frame_part(field, count, most) {
                return Some(ReadEnd::AtOnce(invalid.into()));
            }
        }
        let frame_bytes = frame.encoded_len();
        for mut call in frame.calls {
            unshare(&mut call, frame_bytes);
            self.unbegun_bytes += call.encoded_len();
            self.unbegun.push_back(call);
        }
        for call_id in frame.given_up {
            self.give_up(call_id);
        }
        None
    }

    /// Ends a call that nobody waits for, as one by itself ends with its stream.
    fn give_up(&mut self, call_id: u64) {
        if let Some(cancel) = self.cancels.get(&call_id) {
            return cancel.abort();
        }
        let unbegun = self.unbegun.iter();
        if let Some(at) = unbegun
            .map(|call| call.call_id)
            .position(|id| id == call_id)
        {
            if let Some(call) = self.unbegun.remove(at) {
                self.unbegun_bytes -= call.encoded_len();
            }
            self.answered(self.caller.answer(call_id, Err(given_up())));
        }
    }

    /// Begins what there is room for.
    fn begin_more(&mut self) {
        while (self.is_stopping || self.has_room())
            && let Some(call) = self.unbegun.pop_front()
        {
            self.unbegun_bytes -= call.encoded_len();
            match self.is_stopping {
                true => {
                    let refused = Err(status::stopping());
                    self.answered(self.caller.answer(call.call_id, refused));
                }
                false => self.begin(call),
            }
        }
    }

    fn begin(&mut self, call: PipelineCall) {
        let waits = matches!(&call.call, Some(Call::AcquireLock(ask)) if waits(ask.wait.as_ref()));
        if waits && self.waits >= WAITS_MAX {
            let refused = Err(status::too_many_waits(WAITS_MAX));
            return self.answered(self.caller.answer(call.call_id, refused));
        }
        let read = match &call.call {
            Some(Call::CriticalGet(_) | Call::Get(_)) => true,
            Some(Call::CreateLockRef(ask)) => ask.read_value,
            Some(Call::AcquireLock(ask)) => ask.read_value && !waits,
            _ => false,
        };
        let to_answer = match &call.call {
            Some(Call::RenewLocks(ask)) => ask.lock_refs.len() * RENEWED_BYTES,
            _ if read => self.read_bytes,
            _ => 0,
        };
        let bytes = call.encoded_len() + to_answer;
        self.in_flight_bytes += bytes;
        self.waits += usize::from(waits);
        let (cancel, registration) = Cancel::new_pair();
        self.cancels.insert(call.call_id, cancel);
        let caller = Arc::clone(&self.caller);
        self.in_flight.push(Box::pin(async move {
            let call_id = call.call_id;
            // As by itself: a call that panics is no other one's end.
            let served = AssertUnwindSafe(caller.call(call)).catch_unwind();
            let served = match Abortable::new(served, registration).await {
                Ok(served) => served.unwrap_or_else(|_| Err(status::late_write())),
                Err(_aborted) => Err(given_up()),
            };
            CallMade {
                answer: caller.answer(call_id, served),
                bytes,
                waited: waits,
                read,
            }
        }));
    }
}

/// What the client of a call is told that it gave up.
fn given_up() -> Status {
    Status::cancelled("the client gave this call up")
}

fn waits(wait: Option<&prost_types::Duration>) -> bool {
    wait.is_some_and(|wait| (wait.seconds, wait.nanos) != (0, 0))
}

/// The value of a call is a part of the buffer that its frame came in, which lives as long as that: a small part of it, or of
/// what may have been in that buffer before, is copied.
fn unshare(call: &mut PipelineCall, frame_bytes: usize) {
    let value = match &mut call.call {
        Some(Call::CriticalPut(put)) => &mut put.value,
        Some(Call::ReleaseLock(release)) => match &mut release.put {
            Some(put) => &mut put.value,
            None => return,
        },
        _ => return,
    };
    if value.len() <= COPIED_BYTES || value.len() < frame_bytes / 2 {
        *value = Bytes::copy_from_slice(value);
    }
}

/// Makes the calls of a stream.
struct Caller {
    router: Router,
    /// Of the stream: who asks.
    context: CallContext,
    /// From where, where the client says it.
    zone: Option<Arc<str>>,
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
            zone: (self.zone.clone()).unwrap_or_else(|| self.router.engine().zone()),
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
                let acquire = acquire::acquire(router, stopping, ask, context);
                // One that leaves the queue goes on; its caller is not kept waiting for that.
                let acquired = match context.deadline.last_chance() {
                    Some(at) => timeout_at(at, acquire).await,
                    None => Ok(acquire.await),
                };
                let acquired = acquired.unwrap_or_else(|_| Err(status::outcome_unknown()))?;
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
                let call_max = later(Instant::now(), router.limits().call_max());
                let answer_by = context
                    .deadline
                    .answer_by()
                    .map_or(call_max, |at| at.min(call_max));
                // That its own time has passed is no end of the stream.
                let renewed = self.connected.renew(ask, &self.context, answer_by).await?;
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
        let here = self.router.engine().replica();
        let (outcome, home) = match served {
            Ok(Served { answer, home }) => (answer, home.filter(|home| home.id != here)),
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
