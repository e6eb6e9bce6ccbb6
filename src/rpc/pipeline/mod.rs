//! Pipeline: many calls over one stream, each with the meaning of a separate call.
//!
//! A task of its own makes the calls, so that they go on while their answers are not taken. It reads no further frame while the
//! stream is at its limit of calls or bytes.

mod answers;
mod call_queue;
mod caller;

use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use fermata_proto::pipeline_call::Call;
use fermata_proto::{PipelineAnswer, PipelineRequest, PipelineResponse};
use futures_util::future::{AbortHandle as Cancel, Abortable};
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt as _, StreamExt as _};
use prost::Message as _;
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout_at};
use tonic::{Request, Status, Streaming};
use tracing::Instrument as _;

pub use self::answers::Answers;
use self::answers::MadeFrame;
use self::call_queue::{CallQueue, Kind, Waiting, unshare, waits, writes};
use self::caller::Caller;
use super::budget::{CALL_BYTES, Charge, ChargeKind, ConnectionInfo, READS_MAX};
use super::deadline::{Deadline, until};
use super::keep_alive::Connected;
use super::route::Router;
use super::stopping::Stopping;
use super::{parse, status};
use crate::engine::Begins;
use crate::trace;

/// How many calls of one stream may be in flight, or be answered and not taken: further ones wait to be begun. A client with no
/// more unanswered calls than this is always heard, also where it gives them up.
const CALLS_MAX: usize = 1_024;
/// How many of them only renewals may use: these do not wait behind calls that hang.
const FOR_RENEWALS: usize = 64;
/// How many of them may wait for a lock: else what they wait for might stand behind them, unread.
const WAITS_MAX: usize = 512;
/// How many calls a frame may have.
const FRAME_CALLS_MAX: usize = 256;
/// How many bytes the calls in flight and the untaken answers of one stream may have before no more calls are begun. Renewals
/// have as much again.
const BYTES_MAX: usize = 16 * 1024 * 1024;
/// How large a frame of answers becomes, unless one answer is larger. While the connection is full, as many bytes are read ahead:
/// renewals are among them.
const FRAME_BYTES: usize = 256 * 1024;
/// How often the waiting calls are searched for late ones.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Makes the calls of a stream. It ends when the client ends its side, a little before the deadline, and with a status when the
/// replica stops, a frame makes no sense, or the client is not known any more. Calls in flight are answered before, except in the
/// last two cases.
pub fn answers(
    router: Router,
    request: Request<Streaming<PipelineRequest>>,
    stopping: Stopping,
) -> Answers {
    let (sender, receiver) = mpsc::channel(1);
    let context = router.context(&request);
    let connection = request.extensions().get::<ConnectionInfo>();
    let held = connection.map(|info| info.account.charge(ChargeKind::Message, 0));
    let caller = Arc::new(Caller {
        connected: Arc::new(Connected::new(router.clone(), stopping.clone(), CALLS_MAX)),
        zone: router.zone_of(&request),
        router,
        context,
        stopping,
    });
    let pipe = Pipe {
        caller,
        queue: CallQueue::default(),
        in_flight: FuturesUnordered::new(),
        cancels: HashMap::new(),
        asked_bytes: 0,
        waits: 0,
        reads: 0,
        unlocked_reads: 0,
        answers: VecDeque::new(),
        answered_bytes: 0,
        held,
        is_stopping: false,
    };
    // Not in the trace of the stream, which may last for hours: each call has its own.
    let span = trace::log_span();
    let task = tokio::spawn(pipe.run(request.into_inner(), sender).instrument(span));
    Answers {
        frames: receiver,
        task: task.abort_handle(),
    }
}

/// A call that was answered.
struct CallMade {
    answer: PipelineAnswer,
    /// The bytes of its request.
    asked_bytes: usize,
    kind: Kind,
    waited: bool,
}

/// The end of reading.
enum ReadEnd {
    /// Calls in flight are answered first.
    Orderly,
    /// The client made no sense, or is gone.
    AtOnce(Status),
}

/// The state of a stream's task.
struct Pipe {
    caller: Arc<Caller>,
    /// Calls that wait for room.
    queue: CallQueue,
    in_flight: FuturesUnordered<Pin<Box<dyn Future<Output = CallMade> + Send>>>,
    /// What ends each of them, by call_id.
    cancels: HashMap<u64, Cancel>,
    /// Of those in flight: the bytes of their requests.
    asked_bytes: usize,
    /// Of those in flight: how many wait for a lock, and how many read a value, under a lock and without one.
    waits: usize,
    reads: usize,
    unlocked_reads: usize,
    /// Answers that were not taken yet: renewals first.
    answers: VecDeque<PipelineAnswer>,
    answered_bytes: usize,
    /// The bytes of the connection's account; `None` without a connection.
    held: Option<Charge>,
    /// The replica stops: calls are read, and refused.
    is_stopping: bool,
}

impl Pipe {
    async fn run(
        mut self,
        mut frames: Streaming<PipelineRequest>,
        sender: mpsc::Sender<Result<MadeFrame, Status>>,
    ) {
        let mut deadline = pin!(until(self.caller.context.deadline.answer_by()));
        let mut stopping = self.caller.stopping.clone();
        let mut stopped = pin!(stopping.stopped());
        let caller = Arc::clone(&self.caller);
        let (access, login) = (caller.router.access(), &caller.context.login);
        let mut unknown = pin!(access.until_refused(|| access.still_knows(login)));
        let mut end = None;
        let mut look = interval(LOOK_EVERY);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while !(self.is_idle() && (self.is_stopping || end.is_some())) {
            // Calls that are answered at once would not let any other task run.
            tokio::task::consume_budget().await;
            self.begin_more();
            self.count();
            let reads = end.is_none();
            let takes_more = self.takes_more();
            let until_room = self.until_room();
            tokio::select! {
                biased;
                () = &mut stopped, if !self.is_stopping => self.is_stopping = true,
                () = &mut deadline, if reads => end = Some(ReadEnd::Orderly),
                status = &mut unknown => end = Some(ReadEnd::AtOnce(status)),
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
                () = until_room => {}
                _ = look.tick(), if !self.queue.is_empty() => self.refuse_late(),
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
        self.queue.is_empty() && self.in_flight.is_empty() && !self.has_answers()
    }

    fn has_answers(&self) -> bool {
        !self.answers.is_empty()
    }

    /// Counts the bytes of calls and answers in the account.
    fn count(&mut self) {
        let bytes = self.queue.bytes() + self.asked_bytes + self.answered_bytes;
        if let Some(held) = &mut self.held {
            held.resize(u64::try_from(bytes).unwrap_or(u64::MAX));
        }
    }

    /// Whether the connection has room. A stream without calls in flight, or only with waits for locks, may always go on: the
    /// call that ends a wait may be among its waiting ones.
    fn connection_has_room(&self) -> bool {
        let has_room = |held: &Charge| held.account().has_room();
        self.in_flight.len() <= self.waits || self.held.as_ref().is_none_or(has_room)
    }

    /// Returns once the connection has room; never if it has room now.
    fn until_room(&self) -> impl Future<Output = ()> + use<> {
        let held_up = !self.connection_has_room();
        let account =
            (self.held.as_ref().filter(|_| held_up)).map(|held| Arc::clone(held.account()));
        async move {
            match account {
                Some(account) => account.until_room().await,
                None => std::future::pending().await,
            }
        }
    }

    /// Whether one more call of this kind may be begun.
    fn has_room(&self, kind: Kind) -> bool {
        if kind != Kind::Renewal && !self.connection_has_room() {
            return false;
        }
        let calls = self.in_flight.len() + self.answers.len();
        let bytes = self.asked_bytes + self.answered_bytes;
        let has_room = calls < CALLS_MAX - FOR_RENEWALS && bytes < BYTES_MAX;
        match kind {
            Kind::Renewal => calls < CALLS_MAX && bytes < 2 * BYTES_MAX,
            Kind::Begins | Kind::Other => has_room,
            Kind::Read => has_room && self.reads < READS_MAX,
            Kind::Unlocked => has_room && self.unlocked_reads < READS_MAX,
        }
    }

    /// Whether one more frame may be read.
    fn takes_more(&self) -> bool {
        let is_held_up = self.queue.bytes() > FRAME_BYTES && !self.connection_has_room();
        !is_held_up
            && self.queue.len() + self.in_flight.len() + self.answers.len() <= CALLS_MAX
            && self.queue.bytes() + self.answered_bytes < BYTES_MAX
    }

    /// Whether there are as many answers as a frame takes.
    fn has_frame(&self) -> bool {
        self.answers.len() >= FRAME_CALLS_MAX || self.answered_bytes >= FRAME_BYTES
    }

    /// The next frame of answers.
    fn frame(&mut self) -> MadeFrame {
        let (mut bytes, mut count) = (0, 0);
        for answer in self.answers.iter().take(FRAME_CALLS_MAX) {
            let more = bytes + answer.encoded_len();
            if count > 0 && more > FRAME_BYTES {
                break;
            }
            (bytes, count) = (more, count + 1);
        }
        self.answered_bytes -= bytes;
        let answers = self.answers.drain(..count).collect();
        let frame = PipelineResponse { answers };
        let bytes = u64::try_from(frame.encoded_len()).unwrap_or(u64::MAX);
        let charge = self
            .held
            .as_ref()
            .map(|held| held.account().charge(ChargeKind::Message, bytes));
        MadeFrame {
            frame,
            _charge: charge,
        }
    }

    fn made(&mut self, made: CallMade) {
        self.asked_bytes -= made.asked_bytes;
        self.waits -= usize::from(made.waited);
        self.reads -= usize::from(made.kind == Kind::Read);
        self.unlocked_reads -= usize::from(made.kind == Kind::Unlocked);
        self.cancels.remove(&made.answer.call_id);
        match made.kind {
            Kind::Renewal => {
                self.answered_bytes += made.answer.encoded_len();
                self.answers.push_front(made.answer);
            }
            Kind::Read | Kind::Unlocked | Kind::Begins | Kind::Other => self.answered(made.answer),
        }
    }

    fn answered(&mut self, answer: PipelineAnswer) {
        self.answered_bytes += answer.encoded_len();
        self.answers.push_back(answer);
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
        let received = Instant::now();
        for mut call in frame.calls {
            if let Err(invalid) = parse::call_id(self.is_known(call.call_id)) {
                return Some(ReadEnd::AtOnce(invalid.into()));
            }
            unshare(&mut call, frame_bytes);
            let too_many = match &call.call {
                Some(Call::RenewLocks(ask)) => {
                    parse::lock_refs(&ask.lock_refs, self.caller.router.limits()).err()
                }
                _ => None,
            };
            match too_many {
                None => self.queue.push(call, received),
                // Not kept until there is room for it: it may be many times as large as its bytes.
                Some(invalid) => {
                    let path = call.call.as_ref().map(caller::path);
                    let refused = self.caller.refused(call.call_id, path, invalid.into());
                    self.answered(refused);
                }
            }
        }
        for call_id in frame.given_up {
            self.give_up(call_id);
        }
        None
    }

    /// Whether a call with this number was begun, or waits for that.
    fn is_known(&self, call_id: u64) -> bool {
        self.cancels.contains_key(&call_id) || self.queue.has(call_id)
    }

    /// Ends a call that its client gave up, as the end of its stream ends a call alone.
    fn give_up(&mut self, call_id: u64) {
        if let Some(cancel) = self.cancels.get(&call_id) {
            return cancel.abort();
        }
        if self.queue.remove(call_id) {
            self.answered(self.caller.refused(call_id, None, status::given_up()));
        }
    }

    /// Begins the calls that have room.
    fn begin_more(&mut self) {
        loop {
            let room = |kind| self.is_stopping || self.has_room(kind);
            let [renews, asks, reads, unlocked] =
                [Kind::Renewal, Kind::Other, Kind::Read, Kind::Unlocked].map(room);
            let next = self.queue.next(|kind| match kind {
                Kind::Renewal => renews,
                Kind::Begins | Kind::Other => asks,
                Kind::Read => reads,
                Kind::Unlocked => unlocked,
            });
            match next {
                Some(waiting) => self.begin(waiting),
                None => return,
            }
        }
    }

    /// Answers the calls that were not begun in time.
    fn refuse_late(&mut self) {
        let call_max = self.caller.router.limits().call_max();
        let late_before = Instant::now().checked_sub(call_max);
        let late = late_before.map(|before| self.queue.take_late(before));
        for call_id in late.unwrap_or_default() {
            self.answered(self.caller.refused(call_id, None, status::message_late()));
        }
    }

    fn begin(&mut self, waiting: Waiting) {
        let Waiting {
            call,
            kind,
            received,
            bytes,
        } = waiting;
        let waits = waits(&call);
        let given = parse::timeout(call.timeout.as_ref()).ok().flatten();
        let call_max = self.caller.router.limits().call_max();
        let deadline = Deadline::since(received, given);
        let answer_within = deadline.answer_within(call_max);
        let now = Instant::now();
        let is_late = match waits {
            // It may take as long as its caller listens.
            true => deadline.answer_by().is_some_and(|by| by <= now),
            false => answer_within <= now,
        };
        let begins = match (kind, &call.call) {
            (Kind::Begins, _) | (Kind::Unlocked, Some(Call::CreateLockRef(_))) => {
                Some(Begins::Entry)
            }
            (Kind::Unlocked, _) => Some(Begins::Read),
            (Kind::Renewal | Kind::Read | Kind::Other, _) => None,
        };
        let engine = self.caller.router.engine();
        let overloaded = begins.and_then(|begins| engine.is_overloaded(begins));
        let refused = match () {
            () if self.is_stopping => Some(status::stopping()),
            // There is no time left to answer it: its client is not to find that it was done after all.
            () if is_late => Some(status::message_late()),
            () if waits && self.waits >= WAITS_MAX => Some(status::too_many_waits(WAITS_MAX)),
            () => overloaded.map(status::overloaded),
        };
        if let Some(refused) = refused {
            let path = call.call.as_ref().map(caller::path);
            return self.answered(self.caller.refused(call.call_id, path, refused));
        }
        self.asked_bytes += bytes;
        self.waits += usize::from(waits);
        self.reads += usize::from(kind == Kind::Read);
        self.unlocked_reads += usize::from(kind == Kind::Unlocked);
        let (cancel, registration) = Cancel::new_pair();
        self.cancels.insert(call.call_id, cancel);
        let caller = Arc::clone(&self.caller);
        let writes = writes(&call);
        let account = self.held.as_ref().map(|held| Arc::clone(held.account()));
        self.in_flight.push(Box::pin(async move {
            let call_id = call.call_id;
            let path = call.call.as_ref().map(caller::path);
            let _counted = caller.router.metrics().begun();
            // As by itself: a call that panics is no other one's end.
            let served = async {
                let account = account.as_ref();
                let _kept = account.map(|account| account.charge(ChargeKind::Call, CALL_BYTES));
                let _turn = match (account, kind) {
                    (Some(account), Kind::Read | Kind::Unlocked) => {
                        let turn = account.read_turn(kind == Kind::Read);
                        let turn = timeout_at(answer_within, turn).await;
                        turn.map_err(|_elapsed| status::message_late())?
                    }
                    _ => None,
                };
                caller.call(call, received).await
            };
            let served = AssertUnwindSafe(served).catch_unwind();
            let served = match Abortable::new(served, registration).await {
                Ok(served) => served.unwrap_or_else(|_| Err(status::late(writes))),
                Err(_aborted) => Err(status::given_up_begun(writes)),
            };
            let failed = served.as_ref().err();
            caller.count(path, failed, Some(received.elapsed()));
            CallMade {
                answer: caller.answer(call_id, served),
                asked_bytes: bytes,
                kind,
                waited: waits,
            }
        }));
    }
}
