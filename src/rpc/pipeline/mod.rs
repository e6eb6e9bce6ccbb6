//! Pipeline: many calls over one stream, each of which means what it means by itself.
//!
//! A task of its own makes the calls, so that they go on also while their answers are not taken. It reads no further while as
//! much is in flight, or waits to be taken, as one stream may have.

mod answers;
mod caller;
mod unbegun;

use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use fermata_proto::pipeline_answer::Outcome;
use fermata_proto::pipeline_call::Call;
use fermata_proto::{PipelineAnswer, PipelineRequest, PipelineResponse};
use futures_util::future::{AbortHandle as Cancel, Abortable};
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt as _, StreamExt as _};
use prost::Message as _;
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};
use tonic::{Request, Status, Streaming};
use tracing::Instrument as _;

pub use self::answers::Answers;
use self::answers::MadeFrame;
use self::caller::Caller;
use self::unbegun::{Kind, Unbegun, Waiting, unshare, waits, writes};
use super::budget::{Charge, ConnectionInfo};
use super::deadline::Deadline;
use super::keep_alive::Connected;
use super::route::Router;
use super::stopping::Stopping;
use super::{parse, status};
use crate::engine::{Begins, EngineError};

/// How many calls of one stream may be in flight, or be answered and not taken: further ones wait to be begun. While there
/// are more than that in all, no frame is read: a client that has no more calls without an answer is always heard, also where
/// it gives them up.
const CALLS_MAX: usize = 1_024;
/// How many of them may be in flight only if they renew: these do not wait behind what hangs.
const FOR_RENEWALS: usize = 64;
/// And how many bytes there are for those alone.
const FOR_RENEWALS_BYTES: usize = 8 * 1024 * 1024;
/// How many of them may wait for a lock: else what they wait for might stand behind them, unread.
const WAITS_MAX: usize = 512;
/// How many calls a frame may have.
const FRAME_CALLS_MAX: usize = 256;
/// How many bytes the calls of one stream that are in flight may have, and the answers that are not taken, before no more
/// are begun. Values that are read are estimated, those that are read under a lock and others each by themselves.
const BYTES_MAX: usize = 16 * 1024 * 1024;
/// What the answer of a call in flight that reads a value is counted as at least: else as those that came on the stream lately.
/// (One that waits for a lock may do so for an hour, and counts as nothing.)
const READ_BYTES: usize = 64 * 1024;
/// What a call in flight takes by itself: some 10 KB were measured of one that waits (docs/performance.md).
const CALL_BYTES: u64 = 8 * 1024;
/// What the answer about one lock of RenewLocks is counted as.
const RENEWED_BYTES: usize = 256;
/// How large a frame of answers becomes before the next one is begun.
const FRAME_BYTES: usize = 256 * 1024;
/// A larger answer waits for those that are not: it holds the stream for as long as it takes.
const SMALL_BYTES: usize = 64 * 1024;
/// While the connection is full, frames are read on up to so many bytes that were not begun: renewals are among them.
const HELD_UP_BYTES: usize = 256 * 1024;
/// How often it is looked whether what was not begun is late.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Makes the calls of a stream. It ends where the client ends its side, a little before the deadline, and with a status when
/// the replica stops, where a frame makes no sense, or where its client is not known any more; all but the last two let the calls
/// in flight be answered before.
pub fn answers(
    router: Router,
    request: Request<Streaming<PipelineRequest>>,
    stopping: Stopping,
) -> Answers {
    let (sender, receiver) = mpsc::channel(1);
    let context = router.context(&request);
    let value_bytes = router.limits().value_bytes_max;
    let connection = request.extensions().get::<ConnectionInfo>();
    let held = connection.map(|info| info.account.charge(0));
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
        unbegun: Unbegun::default(),
        in_flight: FuturesUnordered::new(),
        cancels: HashMap::new(),
        asked_bytes: 0,
        waits: 0,
        // Each needs a lock.
        reads: ValuesRead::new(0),
        unlocked: ValuesRead::new(value_bytes),
        small: VecDeque::new(),
        large: VecDeque::new(),
        answered_bytes: 0,
        large_next: false,
        held,
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
    asked_bytes: usize,
    value_bytes: usize,
    kind: Kind,
    waited: bool,
}

/// The values that calls of one kind in flight read, which are not known yet.
struct ValuesRead {
    /// What one is counted as.
    each: usize,
    /// What all are.
    bytes: usize,
}

impl ValuesRead {
    /// Before any came each is counted as this.
    fn new(each: usize) -> ValuesRead {
        ValuesRead {
            each: each.max(READ_BYTES),
            bytes: 0,
        }
    }

    /// One more is read. What it is counted as.
    fn begun(&mut self) -> usize {
        self.bytes += self.each;
        self.each
    }

    /// One that was counted so came, with this many, or did not come.
    fn came(&mut self, counted: usize, bytes: Option<usize>) {
        self.bytes -= counted;
        if let Some(bytes) = bytes {
            self.each = (self.each - self.each / 8).max(bytes).max(READ_BYTES);
        }
    }
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
    unbegun: Unbegun,
    in_flight: FuturesUnordered<Pin<Box<dyn Future<Output = CallMade> + Send>>>,
    /// What ends each of them, by call_id.
    cancels: HashMap<u64, Cancel>,
    /// Of those in flight: the bytes of what was asked (with the answers of RenewLocks).
    asked_bytes: usize,
    /// Of those in flight: how many wait for a lock.
    waits: usize,
    /// The values that calls in flight read, under a lock and without one.
    reads: ValuesRead,
    unlocked: ValuesRead,
    /// Answers that were not taken yet, and those that are large.
    small: VecDeque<PipelineAnswer>,
    large: VecDeque<PipelineAnswer>,
    answered_bytes: usize,
    /// It is a large one's turn.
    large_next: bool,
    /// What the connection holds of all that; `None` where there is no connection.
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
        let answer_by = self.caller.context.deadline.answer_by();
        let mut deadline = pin!(async {
            match answer_by {
                Some(at) => sleep_until(at).await,
                None => std::future::pending().await,
            }
        });
        let mut stopping = self.caller.stopping.clone();
        let mut stopped = pin!(stopping.stopped());
        let caller = Arc::clone(&self.caller);
        let mut unknown = pin!(caller.router.access().ended(&caller.context.login));
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
                _ = look.tick(), if !self.unbegun.is_empty() => self.refuse_late(),
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

    /// Counts what there is as held by the connection.
    fn count(&mut self) {
        let bytes = self.unbegun.bytes() + self.asked_bytes + self.answered_bytes;
        if let Some(held) = &mut self.held {
            held.resize(u64::try_from(bytes).unwrap_or(u64::MAX));
        }
    }

    /// Whether the connection holds less than it may. A stream that does nothing, or only waits for locks, may go on whatever
    /// others do: what would end its waiting may be among what was not begun.
    fn connection_has_room(&self) -> bool {
        let has_room = |held: &Charge| held.account().has_room();
        self.in_flight.len() <= self.waits || self.held.as_ref().is_none_or(has_room)
    }

    /// Returns once the connection holds less than it may, where that is what keeps calls from being begun.
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
        let calls = self.in_flight.len() + self.untaken();
        let bytes = self.asked_bytes + self.answered_bytes;
        match kind {
            Kind::Renewal => calls < CALLS_MAX && bytes < BYTES_MAX + FOR_RENEWALS_BYTES,
            Kind::Begins | Kind::Other => calls < CALLS_MAX - FOR_RENEWALS && bytes < BYTES_MAX,
            Kind::Read => calls < CALLS_MAX - FOR_RENEWALS && bytes + self.reads.bytes < BYTES_MAX,
            Kind::Unlocked => {
                calls < CALLS_MAX - FOR_RENEWALS && bytes + self.unlocked.bytes < BYTES_MAX
            }
        }
    }

    /// Whether one more frame may be read.
    fn takes_more(&self) -> bool {
        let is_held_up = self.unbegun.bytes() > HELD_UP_BYTES && !self.connection_has_room();
        !is_held_up
            && self.unbegun.len() + self.in_flight.len() + self.untaken() <= CALLS_MAX
            && self.unbegun.bytes() + self.answered_bytes < BYTES_MAX
    }

    fn untaken(&self) -> usize {
        self.small.len() + self.large.len()
    }

    /// Whether there are as many answers as a frame takes.
    fn has_frame(&self) -> bool {
        self.small.len() >= FRAME_CALLS_MAX || self.answered_bytes >= FRAME_BYTES
    }

    /// The next frame of answers, taken from those that wait: the small ones, and one of the others in turns.
    fn frame(&mut self) -> MadeFrame {
        let frame = self.next_frame();
        let bytes = u64::try_from(frame.encoded_len()).unwrap_or(u64::MAX);
        let charge = self.held.as_ref().map(|held| held.account().charge(bytes));
        MadeFrame {
            frame,
            _charge: charge,
        }
    }

    fn next_frame(&mut self) -> PipelineResponse {
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
        self.asked_bytes -= made.asked_bytes;
        self.waits -= usize::from(made.waited);
        self.cancels.remove(&made.answer.call_id);
        let came = match &made.answer.outcome {
            Some(Outcome::Error(_)) | None => None,
            Some(_) => Some(made.answer.encoded_len()),
        };
        match made.kind {
            Kind::Read => self.reads.came(made.value_bytes, came),
            Kind::Unlocked => self.unlocked.came(made.value_bytes, came),
            Kind::Renewal | Kind::Begins | Kind::Other => {}
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
                None => self.unbegun.push(call, received),
                // Not kept until there is room for it: it may be many times as large as its bytes.
                Some(invalid) => {
                    let refused = Err(invalid.into());
                    self.answered(self.caller.answer(call.call_id, refused));
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
        self.cancels.contains_key(&call_id) || self.unbegun.has(call_id)
    }

    /// Ends a call that nobody waits for, as one by itself ends with its stream.
    fn give_up(&mut self, call_id: u64) {
        if let Some(cancel) = self.cancels.get(&call_id) {
            return cancel.abort();
        }
        if self.unbegun.remove(call_id) {
            self.answered(self.caller.answer(call_id, Err(status::given_up())));
        }
    }

    /// Begins what there is room for: renewals first, of the others the one that came first.
    fn begin_more(&mut self) {
        loop {
            let room = |kind| self.is_stopping || self.has_room(kind);
            let [renews, asks, reads, unlocked] =
                [Kind::Renewal, Kind::Other, Kind::Read, Kind::Unlocked].map(room);
            let next = self.unbegun.next(|kind| match kind {
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
        let late = late_before.map(|before| self.unbegun.take_late(before));
        for call_id in late.unwrap_or_default() {
            let refused = Err(status::message_late());
            self.answered(self.caller.answer(call_id, refused));
        }
    }

    fn begin(&mut self, waiting: Waiting) {
        let Waiting {
            call,
            kind,
            received,
            mut bytes,
        } = waiting;
        let waits = waits(&call);
        let given = parse::timeout(call.timeout.as_ref()).ok().flatten();
        let call_max = self.caller.router.limits().call_max();
        let deadline = Deadline::since(received, given);
        let now = Instant::now();
        let is_late = match waits {
            // It may take as long as its caller listens.
            true => deadline.answer_by().is_some_and(|by| by <= now),
            false => deadline.answer_within(call_max) <= now,
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
            () => overloaded
                .map(|again_after| status::of_engine(&EngineError::Overloaded { again_after })),
        };
        if let Some(refused) = refused {
            return self.answered(self.caller.answer(call.call_id, Err(refused)));
        }
        if let Some(Call::RenewLocks(ask)) = &call.call {
            bytes += ask.lock_refs.len() * RENEWED_BYTES;
        }
        let value_bytes = match kind {
            Kind::Read => self.reads.begun(),
            Kind::Unlocked => self.unlocked.begun(),
            Kind::Renewal | Kind::Begins | Kind::Other => 0,
        };
        self.asked_bytes += bytes;
        self.waits += usize::from(waits);
        let (cancel, registration) = Cancel::new_pair();
        self.cancels.insert(call.call_id, cancel);
        let caller = Arc::clone(&self.caller);
        let writes = writes(&call);
        let account = self.held.as_ref().map(|held| held.account());
        let kept = account.map(|account| account.keep(CALL_BYTES));
        self.in_flight.push(Box::pin(async move {
            let call_id = call.call_id;
            // As by itself: a call that panics is no other one's end.
            let served = AssertUnwindSafe(caller.call(call, received)).catch_unwind();
            let served = match Abortable::new(served, registration).await {
                Ok(served) => served.unwrap_or_else(|_| Err(status::late(writes))),
                Err(_aborted) => Err(status::given_up_begun(writes)),
            };
            drop(kept);
            CallMade {
                answer: caller.answer(call_id, served),
                asked_bytes: bytes,
                value_bytes,
                kind,
                waited: waits,
            }
        }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_counts_as_large_until_some_came_that_were_not() {
        let mut values = ValuesRead::new(1024 * 1024);
        let first = values.begun();
        assert_eq!((first, values.bytes), (1024 * 1024, 1024 * 1024));
        values.came(first, None);
        assert_eq!((values.each, values.bytes), (1024 * 1024, 0));
        for _ in 0..30 {
            let counted = values.begun();
            values.came(counted, Some(10));
        }
        assert_eq!(values.begun(), READ_BYTES);
        let counted = values.begun();
        values.came(counted, Some(8 * 1024 * 1024));
        assert_eq!(values.begun(), 8 * 1024 * 1024);
    }
}
