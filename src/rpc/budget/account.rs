//! The account of one connection: the bytes that it holds.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use super::super::part_limit::PartLimit;
use super::total::Total;
use super::{SMALL_BYTES, wide};
use crate::access::{Origin, ShareOf};

/// The memory of a call by itself: its task, stream and futures. Waiting calls were measured at 12 to 30 KiB
/// (docs/performance.md).
pub const CALL_BYTES: u64 = 16 * 1024;

/// A call has its headers this many times: as received, parsed, and as metadata.
const TIMES_HEADERS: u64 = 3;

/// How many calls of a connection read a value at once, under a lock and without one each: the size of a value is known only
/// once it is read.
pub const READS_MAX: usize = 64;

/// What bytes are held for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ChargeKind {
    /// A message, until its call is answered.
    Message,
    /// An answer, until it is sent.
    Answer,
    /// A call, for as long as it lasts. No call waits for these bytes.
    Call,
}

/// What a connection holds: messages until their calls are answered, answers until they are sent, and calls.
pub struct Account {
    total: Arc<Total>,
    who: ShareOf,
    /// Half of `limits.connection_bytes_max` each, for messages and answers that are not small.
    message_room: Arc<Semaphore>,
    answer_room: Arc<Semaphore>,
    reads: Arc<Semaphore>,
    unlocked_reads: Arc<Semaphore>,
    listings: Arc<Semaphore>,
    parts: PartLimit,
    cut: Notify,
    /// Bytes of messages or answers were given back.
    freed: Notify,
    state: Mutex<State>,
}

struct State {
    messages: u64,
    answers: u64,
    of_calls: u64,
    calls: usize,
    /// When a part of an answer was sent last, or the first one was made that is not sent yet.
    sent_at: Instant,
}

/// What each call knows of its connection.
#[derive(Clone)]
pub struct ConnectionInfo {
    /// What the connection holds.
    pub account: Arc<Account>,
    /// Its origin, if known.
    pub origin: Option<Origin>,
}

impl Account {
    /// `listings`: the turns of its address.
    pub(super) fn new(total: Arc<Total>, who: ShareOf, listings: Arc<Semaphore>) -> Account {
        let semaphore = |permits| Arc::new(Semaphore::new(permits));
        let half = total.room_bytes();
        Account {
            total,
            who,
            message_room: semaphore(half),
            answer_room: semaphore(half),
            reads: semaphore(READS_MAX),
            unlocked_reads: semaphore(READS_MAX),
            listings,
            parts: PartLimit::default(),
            cut: Notify::new(),
            freed: Notify::new(),
            state: Mutex::new(State {
                messages: 0,
                answers: 0,
                of_calls: 0,
                calls: 0,
                sent_at: Instant::now(),
            }),
        }
    }

    /// Whose share it counts to.
    pub fn who(&self) -> ShareOf {
        self.who
    }

    /// Whether anything is bounded here; not between replicas.
    pub fn is_bounded(&self) -> bool {
        self.total.limits.connection_bytes_max < u64::MAX
    }

    /// What it holds, in bytes.
    pub(super) fn held(&self) -> u64 {
        let state = self.state.lock();
        state.messages + state.answers + state.of_calls
    }

    /// The turns of the parts of its calls.
    pub fn parts(&self) -> &PartLimit {
        &self.parts
    }

    /// The listing turns of its address; `None` without bounds.
    pub fn listings(&self) -> Option<Arc<Semaphore>> {
        self.is_bounded().then(|| Arc::clone(&self.listings))
    }

    /// Whether its messages and answers hold less than they may.
    pub fn has_room(&self) -> bool {
        let state = self.state.lock();
        state.messages + state.answers < self.total.limits.connection_bytes_max
    }

    /// Returns once they do.
    pub async fn until_room(self: Arc<Self>) {
        loop {
            let mut freed = std::pin::pin!(self.freed.notified());
            freed.as_mut().enable();
            if self.has_room() {
                return;
            }
            freed.await;
        }
    }

    /// Counts bytes at once, whether there is room for them or not.
    pub fn charge(self: &Arc<Self>, kind: ChargeKind, bytes: u64) -> Charge {
        let mut charge = Charge {
            account: Arc::clone(self),
            kind,
            bytes: 0,
            room: None,
        };
        charge.resize(bytes);
        charge
    }

    /// Counts a message or an answer once the connection has room for it: a small one at once. One that is larger than all of
    /// the room takes all of it.
    pub(super) async fn room(self: Arc<Self>, kind: ChargeKind, bytes: usize) -> Charge {
        let room = match kind {
            ChargeKind::Answer => &self.answer_room,
            ChargeKind::Message | ChargeKind::Call => &self.message_room,
        };
        let permits = bytes.min(self.total.room_bytes());
        let permits = u32::try_from(permits).unwrap_or(u32::MAX);
        let room = match bytes > SMALL_BYTES && self.is_bounded() {
            // (It is never closed.)
            true => Arc::clone(room).acquire_many_owned(permits).await.ok(),
            false => None,
        };
        let mut charge = self.charge(kind, wide(bytes));
        charge.room = room;
        charge
    }

    /// A turn to read a value, under a lock or without one, until it is dropped; `None` without bounds.
    pub async fn read_turn(&self, has_lock: bool) -> Option<OwnedSemaphorePermit> {
        let turns = match has_lock {
            _ if !self.is_bounded() => return None,
            true => &self.reads,
            false => &self.unlocked_reads,
        };
        // (It is never closed.)
        Arc::clone(turns).acquire_owned().await.ok()
    }

    /// Ends the connection.
    pub(super) fn cut(&self) {
        self.cut.notify_one();
    }

    /// Returns once the connection is to end.
    pub async fn until_cut(self: Arc<Self>) {
        self.cut.notified().await;
    }

    /// A call begins, with so many bytes of headers.
    pub fn begin(self: &Arc<Self>, header_bytes: usize) -> Arc<CallInFlight> {
        self.state.lock().calls += 1;
        let bytes = CALL_BYTES + wide(header_bytes) * TIMES_HEADERS;
        Arc::new(CallInFlight {
            account: Arc::clone(self),
            _bytes: self.charge(ChargeKind::Call, bytes),
            message: Mutex::default(),
        })
    }

    /// How many calls are in flight.
    pub fn calls(&self) -> usize {
        self.state.lock().calls
    }

    /// Since when it has answers and sends none of them; `None` without answers.
    pub(super) fn untaken_since(&self) -> Option<Instant> {
        let state = self.state.lock();
        (state.answers > 0).then_some(state.sent_at)
    }
}

/// Bytes that an account holds, until this is dropped.
pub struct Charge {
    account: Arc<Account>,
    kind: ChargeKind,
    bytes: u64,
    /// Its part of the room for messages or answers.
    room: Option<OwnedSemaphorePermit>,
}

impl Charge {
    /// The account of its connection.
    pub fn account(&self) -> &Arc<Account> {
        &self.account
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// It is this many bytes from now on.
    pub fn resize(&mut self, bytes: u64) {
        let (account, before) = (&self.account, std::mem::replace(&mut self.bytes, bytes));
        if before == bytes {
            return;
        }
        let mut state = account.state.lock();
        let had_answers = state.answers > 0;
        let counter = match self.kind {
            ChargeKind::Message => &mut state.messages,
            ChargeKind::Answer => &mut state.answers,
            ChargeKind::Call => &mut state.of_calls,
        };
        *counter = *counter + bytes - before;
        if self.kind == ChargeKind::Answer && (bytes < before || !had_answers) {
            state.sent_at = Instant::now();
        }
        drop(state);
        if bytes > before {
            return account.total.add(bytes - before);
        }
        account.total.give_back(before - bytes);
        if self.kind != ChargeKind::Call {
            account.freed.notify_waiters();
        }
    }

    /// It is this many bytes, unless it is more.
    pub(super) fn grow(&mut self, bytes: u64) {
        self.resize(bytes.max(self.bytes));
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.resize(0);
    }
}

/// A call, until its answer was sent.
pub struct CallInFlight {
    account: Arc<Account>,
    _bytes: Charge,
    message: Mutex<Option<Charge>>,
}

impl CallInFlight {
    /// The account of its connection.
    pub fn account(&self) -> &Arc<Account> {
        &self.account
    }

    /// Its message holds this until the call is answered.
    pub(super) fn received(&self, message: Charge) {
        *self.message.lock() = Some(message);
    }

    /// It was answered.
    pub fn answered(&self) {
        let message = self.message.lock().take();
        drop(message);
    }
}

impl Drop for CallInFlight {
    fn drop(&mut self) {
        self.account.state.lock().calls -= 1;
    }
}
