//! What one connection holds.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use super::super::part_limit::PartLimit;
use super::accounts::AllAccounts;
use super::answer::UnsentAnswer;
use super::{SMALL_BYTES, ShareOf, wide};

/// What a call takes by itself: task, stream and futures. 12 to 30 KiB were measured of calls that wait (docs/performance.md).
const CALL_BYTES: u64 = 16 * 1024;

/// A call takes its headers this many times: as they came, parsed, and as metadata.
const TIMES_HEADERS: u64 = 3;

/// How many calls of a connection read a value, or list, at once: until the answer is there its size is not known.
const READS_MAX: usize = 64;

/// How many messages of a connection wait for room. What came of each stays in the window of the connection meanwhile: with more of
/// them nothing would be left for the messages that have room.
const WAITS_MAX: usize = 2;

/// What a connection holds: messages until their calls are answered, and answers until they are sent.
pub struct Account {
    shared: Arc<AllAccounts>,
    who: ShareOf,
    /// Messages and answers.
    bytes: AtomicU64,
    /// What calls take for as long as they last.
    call_bytes: AtomicU64,
    /// Half of `limits.connection_bytes_max` each, for those that are not small.
    pub(super) messages: Arc<Semaphore>,
    pub(super) answers: Arc<Semaphore>,
    /// For messages that wait for room.
    pub(super) waits: Arc<Semaphore>,
    reads: Arc<Semaphore>,
    /// Bytes were given back.
    freed: Notify,
    listings: OwnListings,
    parts: PartLimit,
    cut: Notify,
    is_cut: AtomicBool,
    used: Mutex<Use>,
    unsent: Mutex<Vec<Weak<UnsentAnswer>>>,
}

/// Listings take turns: those of a connection, and those of all connections of one address.
#[derive(Clone)]
pub struct OwnListings {
    /// Of the connection.
    pub of_connection: Arc<Semaphore>,
    /// Of its address.
    pub of_share: Arc<Semaphore>,
}

struct Use {
    calls: usize,
    /// Those of them that keep the connection in use.
    in_use: usize,
    has_called: bool,
    /// Since when none does.
    idle_since: Instant,
}

impl Account {
    pub(super) fn new(
        shared: Arc<AllAccounts>,
        who: ShareOf,
        listings_of_share: Arc<Semaphore>,
    ) -> Account {
        let half = shared.room_bytes();
        Account {
            who,
            bytes: AtomicU64::new(0),
            call_bytes: AtomicU64::new(0),
            messages: Arc::new(Semaphore::new(half)),
            answers: Arc::new(Semaphore::new(half)),
            waits: Arc::new(Semaphore::new(WAITS_MAX)),
            reads: Arc::new(Semaphore::new(READS_MAX)),
            freed: Notify::new(),
            listings: OwnListings {
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
        self.bytes.load(Ordering::Relaxed) + self.call_bytes.load(Ordering::Relaxed)
    }

    /// How the parts of its calls take turns.
    pub fn parts(&self) -> &PartLimit {
        &self.parts
    }

    /// Whose turn it is to list; `None`: nothing is bounded there.
    pub fn listings(&self) -> Option<&OwnListings> {
        self.is_bounded().then_some(&self.listings)
    }

    /// Whether its messages and answers hold less than they may.
    pub fn has_room(&self) -> bool {
        self.bytes.load(Ordering::SeqCst) < self.shared.limits.connection_bytes_max
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

    /// Counts bytes of a message or answer, whether there is room for them or not.
    pub fn charge(self: &Arc<Self>, bytes: u64) -> Charge {
        self.charged(bytes, false)
    }

    /// Counts bytes that a call has for as long as it lasts. No call waits for those.
    pub fn keep(self: &Arc<Self>, bytes: u64) -> Charge {
        self.charged(bytes, true)
    }

    fn charged(self: &Arc<Self>, bytes: u64, is_of_call: bool) -> Charge {
        let mut charge = Charge {
            account: Arc::clone(self),
            bytes: 0,
            is_of_call,
            room: None,
        };
        charge.resize(bytes);
        charge
    }

    /// Counts bytes of a message or answer once there is room for them among `all`: at once where they are few. Those that are
    /// more than all of it take all.
    pub(super) async fn room(self: Arc<Self>, all: Arc<Semaphore>, bytes: usize) -> Charge {
        let permits = bytes.min(self.shared.room_bytes());
        let permits = u32::try_from(permits).unwrap_or(u32::MAX);
        let room = match bytes > SMALL_BYTES && self.is_bounded() {
            // (It is never closed.)
            true => all.acquire_many_owned(permits).await.ok(),
            false => None,
        };
        let mut charge = self.charge(wide(bytes));
        charge.room = room;
        charge
    }

    /// As [`Account::room`], of a message, where there is room now.
    pub(super) fn room_now(self: &Arc<Self>, bytes: usize) -> Option<Charge> {
        let permits = u32::try_from(bytes.min(self.shared.room_bytes())).unwrap_or(u32::MAX);
        let room = Arc::clone(&self.messages)
            .try_acquire_many_owned(permits)
            .ok()?;
        let mut charge = self.charge(wide(bytes));
        charge.room = Some(room);
        Some(charge)
    }

    /// A turn to read a value, until it is dropped; `None` where nothing is bounded.
    pub async fn read_turn(&self) -> Option<OwnedSemaphorePermit> {
        if !self.is_bounded() {
            return None;
        }
        // (It is never closed.)
        Arc::clone(&self.reads).acquire_owned().await.ok()
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

    /// A call begins, with headers of so many bytes. One that anybody may make, known or not, does not keep the connection in
    /// use: it makes room for others.
    pub fn begin(self: &Arc<Self>, header_bytes: usize, keeps_in_use: bool) -> Arc<CallInFlight> {
        let mut used = self.used();
        used.calls += 1;
        used.in_use += usize::from(keeps_in_use);
        used.has_called |= keeps_in_use;
        drop(used);
        Arc::new(CallInFlight {
            account: Arc::clone(self),
            keeps_in_use,
            _bytes: self.keep(CALL_BYTES + wide(header_bytes) * TIMES_HEADERS),
            message: Mutex::default(),
        })
    }

    /// How many calls are in flight.
    pub fn calls(&self) -> usize {
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

    /// An answer begins to be sent.
    pub(super) fn note_unsent(&self, answer: &Arc<UnsentAnswer>) {
        let mut unsent = self.unsent.lock().unwrap_or_else(PoisonError::into_inner);
        // A few that were sent may stay until the next one begins.
        if unsent.len() == unsent.capacity() {
            unsent.retain(|answer| answer.strong_count() > 0);
        }
        unsent.push(Arc::downgrade(answer));
    }

    /// Drops the answers that nobody takes. Ends the connection where these are all that goes on, or one is of a stream, which
    /// would go on for nobody.
    pub(super) fn end_untaken(&self, now: Instant) {
        let mut unsent = self.unsent.lock().unwrap_or_else(PoisonError::into_inner);
        unsent.retain(|answer| answer.strong_count() > 0);
        let all: Vec<_> = unsent.iter().filter_map(Weak::upgrade).collect();
        drop(unsent);
        let answer_max = self.shared.limits.answer_max;
        let untaken = all
            .iter()
            .filter(|answer| answer.end_if_untaken(now, answer_max));
        let (mut count, mut has_stream) = (0, false);
        for answer in untaken {
            count += 1;
            has_stream |= answer.is_of_stream();
        }
        if count > 0 && (has_stream || count >= self.calls()) {
            self.cut("its answers are not taken");
        }
    }
}

/// Bytes that an account holds, until this is dropped.
pub struct Charge {
    account: Arc<Account>,
    bytes: u64,
    is_of_call: bool,
    /// What it takes of the room of its connection, if any. It becomes less with the bytes, and not more.
    room: Option<OwnedSemaphorePermit>,
}

impl Charge {
    /// Of this connection.
    pub fn account(&self) -> &Arc<Account> {
        &self.account
    }

    /// What it is, in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// It is so many bytes now.
    pub fn resize(&mut self, bytes: u64) {
        let counter = match self.is_of_call {
            true => &self.account.call_bytes,
            false => &self.account.bytes,
        };
        if bytes > self.bytes {
            let more = bytes - self.bytes;
            counter.fetch_add(more, Ordering::Relaxed);
            self.account.shared.add(more);
        } else if bytes < self.bytes {
            let less = self.bytes - bytes;
            counter.fetch_sub(less, Ordering::SeqCst);
            self.account.shared.give_back(less);
            self.account.freed.notify_waiters();
        }
        if let Some(room) = &mut self.room {
            let left = usize::try_from(bytes).unwrap_or(usize::MAX);
            drop(room.split(room.num_permits().saturating_sub(left)));
        }
        self.bytes = bytes;
    }

    /// It is so many bytes, unless it is more.
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
    keeps_in_use: bool,
    _bytes: Charge,
    /// Its message.
    message: Mutex<Option<Charge>>,
}

impl CallInFlight {
    /// Of the connection that it came on.
    pub fn account(&self) -> &Arc<Account> {
        &self.account
    }

    /// Its message holds this until it is answered.
    pub(super) fn received(&self, message: Charge) {
        *self.message() = Some(message);
    }

    /// It was answered.
    pub fn answered(&self) {
        let message = self.message().take();
        drop(message);
    }

    fn message(&self) -> MutexGuard<'_, Option<Charge>> {
        self.message.lock().unwrap_or_else(PoisonError::into_inner)
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
