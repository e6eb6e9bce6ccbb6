//! What one connection holds.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tokio::sync::{Notify, Semaphore};
use tokio::time::Instant;

use super::super::part_limit::PartLimit;
use super::accounts::AllAccounts;
use super::frames::FrameHead;
use super::streams::OpenStreams;
use super::unread::UnreadFrames;
use super::unsent::Unsent;
use super::{Charge, KeptBytes, ReservedBytes, SMALL_BYTES, ShareOf, wide};

/// So many times its headers a call takes besides.
const TIMES_HEADERS: u64 = 3;

/// What may be unread of a connection, in windows: as HTTP/2 counts small frames.
const UNREAD_WINDOWS: u64 = 2;

/// How many calls with a login that is refused are taken on a connection.
const STRANGERS_MAX: usize = 1_000;

/// What a value that is to be read is taken for before any came.
const VALUE_BYTES: u64 = 256 * 1024;

/// What a connection holds: messages that come in, until they are answered, and answers, until they were sent.
pub struct Account {
    shared: Arc<AllAccounts>,
    who: ShareOf,
    /// What it holds.
    bytes: AtomicU64,
    /// What its calls have for as long as they last. It has no part in `has_room`: to wait would not help.
    call_bytes: AtomicU64,
    /// What it is about to hold: what is reserved for values that are being read.
    pub(super) reserved: AtomicU64,
    /// What one more value that is read is taken for.
    value_bytes: AtomicU64,
    /// Those who wait for room take turns: with a message …
    message_turn: Semaphore,
    /// … and for an answer.
    answer_turn: Semaphore,
    waiting: AtomicU64,
    /// What came in and is not read yet. It has no part in `has_room`: to wait would not help.
    unread: Mutex<UnreadFrames>,
    /// How many bodies there are that may have some of it.
    undrained: AtomicU64,
    /// What HTTP/2 has of streams, and of headers, goes to `call_bytes`.
    streams: Mutex<OpenStreams>,
    header_bytes: AtomicU64,
    room: Notify,
    listing: OwnListings,
    parts: PartLimit,
    cut: Notify,
    is_cut: AtomicBool,
    used: Mutex<Use>,
    unsent: Mutex<BTreeMap<u64, Weak<Unsent>>>,
}

/// Listings take turns as well: those of a connection, and those of all that have its share.
#[derive(Clone)]
pub struct OwnListings {
    /// Of the connection.
    pub of_connection: Arc<Semaphore>,
    /// Of all that have its share.
    pub of_share: Arc<Semaphore>,
}

struct Use {
    calls: usize,
    /// Those of them that keep the connection in use.
    in_use: usize,
    has_called: bool,
    /// Calls whose login was refused.
    strangers: usize,
    /// Since when none does.
    idle_since: Instant,
}

impl Account {
    pub(super) fn new(
        shared: Arc<AllAccounts>,
        who: ShareOf,
        listings_of_share: Arc<Semaphore>,
    ) -> Account {
        Account {
            who,
            bytes: AtomicU64::new(0),
            call_bytes: AtomicU64::new(0),
            reserved: AtomicU64::new(0),
            value_bytes: AtomicU64::new(VALUE_BYTES),
            message_turn: Semaphore::new(1),
            answer_turn: Semaphore::new(1),
            waiting: AtomicU64::new(0),
            unread: Mutex::default(),
            undrained: AtomicU64::new(0),
            streams: Mutex::default(),
            header_bytes: AtomicU64::new(0),
            room: Notify::new(),
            listing: OwnListings {
                of_connection: Arc::new(Semaphore::new(1)),
                of_share: listings_of_share,
            },
            parts: PartLimit::default(),
            cut: Notify::new(),
            is_cut: AtomicBool::new(false),
            used: Mutex::new(Use {
                calls: 0,
                in_use: 0,
                has_called: false,
                strangers: 0,
                idle_since: Instant::now(),
            }),
            unsent: Mutex::default(),
            shared,
        }
    }

    /// At its other end.
    pub fn who(&self) -> ShareOf {
        self.who
    }

    /// Whether anything is bounded here.
    pub fn is_bounded(&self) -> bool {
        self.shared.limits.connection_bytes_max < u64::MAX
    }

    /// What it holds, in bytes.
    pub(super) fn held(&self) -> u64 {
        let unread = self.unread().held();
        let calls = self.call_bytes.load(Ordering::Relaxed);
        self.bytes.load(Ordering::Relaxed) + calls + unread
    }

    /// How the parts of its calls take turns.
    pub fn parts(&self) -> &PartLimit {
        &self.parts
    }

    /// Whose turn it is to list; `None`: nothing is bounded there.
    pub fn listings(&self) -> Option<&OwnListings> {
        self.is_bounded().then_some(&self.listing)
    }

    /// Whether it holds less than it may, with what is reserved.
    pub fn has_room(&self) -> bool {
        self.bytes.load(Ordering::SeqCst) + self.reserved.load(Ordering::SeqCst)
            < self.shared.limits.connection_bytes_max
    }

    /// Counts so many bytes, whether there is room for them or not.
    pub fn charge(self: &Arc<Self>, bytes: u64) -> Charge {
        self.take(bytes);
        Charge {
            account: Arc::clone(self),
            bytes,
        }
    }

    pub(super) fn take(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.shared.add(bytes);
    }

    /// Whether there is room for so many bytes more. There is for anything where nothing else is held.
    fn fits(&self, bytes: u64) -> bool {
        let reserved = self.reserved.load(Ordering::SeqCst);
        let held = self.bytes.load(Ordering::SeqCst).saturating_add(reserved);
        held == 0 || held.saturating_add(bytes) <= self.shared.limits.connection_bytes_max
    }

    /// Counts so many bytes of a value, some of which may be reserved, if there is room for them. (Those who ask at the same
    /// time may all get theirs.)
    pub fn try_charge_for(
        self: &Arc<Self>,
        bytes: u64,
        reserved: Option<ReservedBytes>,
    ) -> Option<Charge> {
        let has = reserved.as_ref().map_or(0, |reserved| reserved.bytes);
        // What was reserved is kept until then: nobody else is to get it.
        self.fits(bytes.saturating_sub(has))
            .then(|| self.charge(bytes))
    }

    /// Counts so many bytes of a message once there is room for them. What is reserved for answers has no part in that: who
    /// waits for those does not keep messages out that end their waiting.
    pub async fn when_room(self: Arc<Self>, bytes: u64) -> Charge {
        let fits = || {
            let held = self.bytes.load(Ordering::SeqCst);
            held == 0 || held.saturating_add(bytes) <= self.shared.limits.connection_bytes_max
        };
        self.until(RoomFor::Message, fits).await;
        self.charge(bytes)
    }

    /// Reserves room for a value that is to be read, once there is: as much as those had that came lately.
    pub async fn reserve_value(self: Arc<Self>) -> ReservedBytes {
        let estimate = || self.value_bytes.load(Ordering::Relaxed);
        self.until(RoomFor::Answer, || self.fits(estimate())).await;
        let bytes = estimate();
        self.reserved.fetch_add(bytes, Ordering::Relaxed);
        ReservedBytes {
            account: self,
            bytes,
        }
    }

    /// Returns once this is so. Those who wait take turns.
    async fn until(self: &Arc<Self>, waits: RoomFor, is_so: impl Fn() -> bool) {
        if self.waiting.load(Ordering::SeqCst) == 0 && is_so() {
            return;
        }
        let _waiting = self.wait();
        // It is never closed.
        let turn = match waits {
            RoomFor::Message => &self.message_turn,
            RoomFor::Answer => &self.answer_turn,
        };
        let _turn = turn.acquire().await;
        self.once(is_so).await;
    }

    /// Returns once this is so, which bytes that are given back may make it.
    async fn once(&self, is_so: impl Fn() -> bool) {
        loop {
            let mut room = std::pin::pin!(self.room.notified());
            room.as_mut().enable();
            if is_so() {
                return;
            }
            room.await;
        }
    }

    /// Returns once it holds less than it may.
    pub async fn until_room(self: Arc<Self>) {
        let _waiting = self.wait();
        self.once(|| self.has_room()).await;
    }

    fn wait(self: &Arc<Self>) -> WaitingForRoom {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        WaitingForRoom(Arc::clone(self))
    }

    /// A frame comes in: what is in it may have to be kept before it is read, or a stream begins.
    pub fn frame_came(&self, head: &FrameHead) {
        let window = self.shared.limits.window_bytes;
        let most = window.saturating_mul(UNREAD_WINDOWS);
        match head.of_body() {
            None => self.change_streams(|streams| streams.came(head)),
            Some(bytes) => self.change_unread(|unread| unread.came(bytes, head, most)),
        }
    }

    /// The table of headers may keep so much.
    pub fn note_headers(&self, bytes: u64) {
        let before = self.header_bytes.swap(bytes, Ordering::Relaxed);
        self.change_of_calls(before, bytes);
    }

    /// A frame was sent: of its stream it may be the last.
    pub fn frame_sent(&self, head: &FrameHead) {
        self.change_streams(|streams| streams.sent(head));
    }

    fn change_streams(&self, change: impl FnOnce(&mut OpenStreams)) {
        let mut streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
        let before = streams.held();
        change(&mut streams);
        let after = streams.held();
        drop(streams);
        self.change_of_calls(before, after);
    }

    fn change_of_calls(&self, before: u64, after: u64) {
        if after > before {
            self.add_of_calls(after - before);
        } else if after < before {
            self.give_back_of_calls(before - after);
        }
    }

    pub(super) fn add_of_calls(&self, bytes: u64) {
        self.call_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.shared.add(bytes);
    }

    pub(super) fn give_back_of_calls(&self, bytes: u64) {
        self.call_bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.shared.give_back(bytes);
    }

    /// The connection is gone, with what HTTP/2 had.
    pub(super) fn end(&self) {
        self.forget_unread();
        self.change_streams(OpenStreams::end);
        self.note_headers(0);
    }

    /// A body may have some of that, or has none any more.
    pub(super) fn note_drained(&self, is_drained: bool) {
        match is_drained {
            true => self.undrained.fetch_sub(1, Ordering::SeqCst),
            false => self.undrained.fetch_add(1, Ordering::SeqCst),
        };
    }

    /// What came after the end of its call nobody reads, and HTTP/2 dropped: it is forgotten while no body has anything.
    pub(super) fn forget_dropped(&self) {
        if self.undrained.load(Ordering::SeqCst) == 0 {
            self.forget_unread();
        }
    }

    fn forget_unread(&self) {
        self.change_unread(|unread| *unread = UnreadFrames::default());
    }

    /// A frame of a body was read, of so many bytes.
    pub(super) fn read(&self, bytes: u64) {
        self.change_unread(|unread| unread.read(bytes));
    }

    fn change_unread(&self, change: impl FnOnce(&mut UnreadFrames)) {
        let mut unread = self.unread();
        let before = unread.held();
        change(&mut unread);
        let after = unread.held();
        drop(unread);
        if after > before {
            self.shared.add(after - before);
        } else {
            self.shared.give_back(before - after);
        }
    }

    fn unread(&self) -> MutexGuard<'_, UnreadFrames> {
        self.unread.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn give_back(&self, bytes: u64) {
        self.bytes.fetch_sub(bytes, Ordering::SeqCst);
        self.shared.give_back(bytes);
        self.freed();
    }

    pub(super) fn freed(&self) {
        if self.waiting.load(Ordering::SeqCst) > 0 {
            self.room.notify_waiters();
        }
    }

    /// An answer with a value came, of so many bytes.
    pub fn value_came(&self, bytes: usize) {
        let before = self.value_bytes.load(Ordering::Relaxed);
        let after = (before - before / 8)
            .max(wide(bytes))
            .max(wide(SMALL_BYTES));
        self.value_bytes.store(after, Ordering::Relaxed);
    }

    /// Ends the connection.
    pub fn cut(&self, why: &'static str) {
        if !self.is_cut.swap(true, Ordering::Relaxed) {
            self.shared.log_cut(self, why);
        }
        self.cut.notify_one();
    }

    pub(super) fn is_cut(&self) -> bool {
        self.is_cut.load(Ordering::Relaxed)
    }

    /// Returns once the connection is to end.
    pub async fn until_cut(self: Arc<Self>) {
        if !self.is_cut() {
            self.cut.notified().await;
        }
    }

    /// A call of this form began, with so many bytes of headers. One that does not keep the connection in use anybody may make: it is no
    /// reason to refuse others a connection.
    pub fn begin(
        self: &Arc<Self>,
        form: CallForm,
        header_bytes: usize,
        keeps_in_use: bool,
    ) -> Arc<CallInFlight> {
        let mut used = self.used();
        used.calls += 1;
        used.in_use += usize::from(keeps_in_use);
        used.has_called |= keeps_in_use;
        drop(used);
        Arc::new(CallInFlight {
            account: Arc::clone(self),
            keeps_in_use,
            _bytes: self.keep(form.bytes() + wide(header_bytes) * TIMES_HEADERS),
            received: Mutex::default(),
        })
    }

    /// Counts so many bytes that a call has for as long as it lasts.
    pub fn keep(self: &Arc<Self>, bytes: u64) -> KeptBytes {
        let mut kept = KeptBytes {
            account: Arc::clone(self),
            bytes: 0,
        };
        kept.grow(bytes);
        kept
    }

    /// Somebody who is not known called, of whom nobody was known so far: after so many such calls it is no mistake any more.
    pub fn note_stranger(&self) {
        let mut used = self.used();
        used.strangers += 1;
        let is_enough = !used.has_called && used.strangers > STRANGERS_MAX;
        drop(used);
        if is_enough {
            self.cut("nobody on it is known");
        }
    }

    /// A call was refused before it began: its client is there all the same.
    pub fn note_refused(&self) {
        let mut used = self.used();
        used.has_called = true;
        used.idle_since = Instant::now();
    }

    pub(super) fn calls(&self) -> usize {
        self.used().calls
    }

    /// Since when no call kept it in use, and whether there ever was one. `None`: there is one.
    pub(super) fn idle_since(&self) -> Option<(Instant, bool)> {
        let used = self.used();
        (used.in_use == 0).then_some((used.idle_since, used.has_called))
    }

    fn used(&self) -> MutexGuard<'_, Use> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn unsent(&self) -> MutexGuard<'_, BTreeMap<u64, Weak<Unsent>>> {
        self.unsent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An answer that is not sent yet. Its number.
    pub(super) fn note_unsent(&self, unsent: Weak<Unsent>) -> u64 {
        let mut all = self.unsent();
        let number = all.last_key_value().map_or(0, |(last, _)| last + 1);
        all.insert(number, unsent);
        number
    }

    pub(super) fn forget_unsent(&self, number: u64) {
        self.unsent().remove(&number);
    }

    /// Takes away what is left of the answers that nobody takes. Of how many calls they are.
    pub(super) fn end_untaken(&self, now: Instant) -> usize {
        let all: Vec<Weak<Unsent>> = self.unsent().values().cloned().collect();
        let answer_max = self.shared.limits.answer_max;
        let untaken = all.iter().filter_map(Weak::upgrade);
        let untaken = untaken.filter(|unsent| unsent.end_if_untaken(now, answer_max));
        let calls: BTreeSet<_> = untaken.map(|unsent| Arc::as_ptr(unsent.call())).collect();
        calls.len()
    }
}

/// What somebody waits for room for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RoomFor {
    /// A message that is not read on until there is room.
    Message,
    /// A call whose answer is not read yet.
    Answer,
}

/// Somebody waits for room.
struct WaitingForRoom(Arc<Account>);

impl Drop for WaitingForRoom {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::SeqCst);
    }
}

/// What goes over a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallForm {
    /// One message, and one answer.
    Unary,
    /// One message, and answers until one of both sides ends it.
    Answers,
    /// Messages too.
    Stream,
}

impl CallForm {
    /// What it takes by itself, in bytes, with what counts for its stream: as many that wait took (docs/performance.md).
    fn bytes(self) -> u64 {
        match self {
            CallForm::Unary => 12 * 1024,
            CallForm::Answers => 18 * 1024,
            CallForm::Stream => 30 * 1024,
        }
    }
}

/// A call, until its answer was handed over.
pub struct CallInFlight {
    account: Arc<Account>,
    keeps_in_use: bool,
    /// What it takes by itself.
    _bytes: KeptBytes,
    /// Its message.
    received: Mutex<Vec<Charge>>,
}

impl CallInFlight {
    /// Of the connection that it came on.
    pub fn account(&self) -> &Arc<Account> {
        &self.account
    }

    /// Its message holds this, until it is answered. (One that has a second message has both.)
    pub fn received(&self, charge: Charge) {
        let mut received = self.received.lock().unwrap_or_else(PoisonError::into_inner);
        received.push(charge);
    }

    /// It was answered.
    pub fn answered(&self) {
        let received = self.received.lock();
        let all = std::mem::take(&mut *received.unwrap_or_else(PoisonError::into_inner));
        drop(all);
    }
}

impl Drop for CallInFlight {
    fn drop(&mut self) {
        let mut used = self.account.used();
        used.calls -= 1;
        if self.keeps_in_use {
            used.in_use -= 1;
            if used.in_use == 0 {
                used.idle_since = Instant::now();
            }
        }
    }
}
