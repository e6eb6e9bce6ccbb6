//! The keys that this replica has a machine for, and who waits for answers of them.
//!
//! A [`KeyCell`] is one key: its machine under a mutex that is never held across an await. Whatever happens to the key is
//! given to the machine in place (shell.rs); there is no task a key.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{oneshot, watch};

use super::counters::Counters;
use super::remembered::RememberedValue;
use super::sessions::OpenCall;
use super::time::AlarmAt;
use super::users::Users;
use crate::key::machine::{Answer, CallError, CallId, EntryRef, EntryStatus, Machine};
use crate::lock::{KeyId, Seq, SessionId};

const SHARDS: usize = 64;
/// How many idle keys are compared to find one that is idle for long.
const COMPARED_MAX: usize = 64;
/// For each key that was found in use, room is looked for so much later again: a look takes about a tenth of that.
const FULL_FOR_EACH: Duration = Duration::from_micros(1);

/// What a call brought.
pub(super) type CallResult = Result<Answer, CallError>;

/// Who waits for the answer of a call, or for news.
pub(super) enum Listener {
    Answer(oneshot::Sender<CallResult>),
    Watch {
        begun: Option<oneshot::Sender<CallResult>>,
        news: watch::Sender<Option<EntryStatus>>,
    },
}

/// A call that was handed to the machine.
pub(super) struct PendingCall {
    pub listener: Listener,
    /// The entry that it waits for, which it keeps alive.
    pub waits_for: Option<Seq>,
    /// Keeps the session alive that this entry lives by.
    pub keeps: Option<OpenCall>,
}

/// What the shell has of one key.
pub(super) struct Slot {
    pub machine: Machine,
    /// Raised when the machine is replaced: what an older one began is not told to this one.
    pub generation: u64,
    pub next_call: u64,
    pub calls: HashMap<CallId, PendingCall>,
    /// The live entries here that live by sessions.
    pub sessions: BTreeMap<Seq, SessionId>,
    /// Those of a machine that is gone, which are attached still.
    pub lost_sessions: BTreeMap<Seq, SessionId>,
    pub alarm: Option<AlarmAt>,
    /// How many waited when this was noted for operators.
    pub waiters: usize,
    /// When it was used last, by CLOCK_BOOTTIME.
    pub used: Duration,
    /// Since when this replica is the home, by CLOCK_BOOTTIME.
    pub home_since: Option<Duration>,
    /// The holder that was served last, and when, by CLOCK_BOOTTIME.
    pub served: Option<(Seq, Duration)>,
    /// A panic lost what was known, and the key was not taken over since.
    pub is_lost: bool,
    /// Nothing is answered before, by CLOCK_BOOTTIME: what a machine that is lost promised by its memory alone is past by
    /// then (H11).
    pub silent_until: Option<Duration>,
    /// A machine was lost, and since when nothing is answered is still to be noted.
    pub silence_due: bool,
    /// It is no longer in the registry: look it up anew.
    pub removed: bool,
    /// The value that its machine remembers, as it was counted.
    pub value: Option<RememberedValue>,
    /// From where it is used.
    pub users: Users,
    /// It stands among those that are looked at for room.
    pub is_queued: bool,
}

/// One key.
pub(super) struct KeyCell {
    pub id: Arc<KeyId>,
    slot: Mutex<Slot>,
}

impl KeyCell {
    fn new(id: Arc<KeyId>) -> Self {
        KeyCell {
            id,
            slot: Mutex::new(Slot {
                machine: Machine::new(),
                generation: 0,
                next_call: 0,
                calls: HashMap::new(),
                sessions: BTreeMap::new(),
                lost_sessions: BTreeMap::new(),
                alarm: None,
                waiters: 0,
                used: Duration::ZERO,
                home_since: None,
                served: None,
                is_lost: false,
                silent_until: None,
                silence_due: false,
                removed: false,
                value: None,
                users: Users::default(),
                is_queued: false,
            }),
        }
    }

    /// The slot, unless somebody has it now.
    pub fn try_slot(&self) -> Option<MutexGuard<'_, Slot>> {
        self.slot.try_lock().ok()
    }

    /// The slot; where a panic left it half changed, with a machine that knows nothing: that one takes the key over from
    /// itself.
    pub fn slot(&self) -> MutexGuard<'_, Slot> {
        match self.slot.lock() {
            Ok(slot) => slot,
            Err(poisoned) => {
                self.slot.clear_poison();
                let mut slot = poisoned.into_inner();
                tracing::error!(key = %self.id, "a panic lost what this replica knew of a key: it is read again");
                slot.start_over();
                slot
            }
        }
    }
}

impl Slot {
    /// Forgets what is known. Who waits for an answer learns that it is lost.
    pub fn start_over(&mut self) {
        self.machine = Machine::new();
        self.generation = self.generation.wrapping_add(1);
        self.is_lost = true;
        self.silence_due = true;
        self.calls.clear();
        self.lost_sessions.append(&mut self.sessions);
    }

    /// Whether what was promised by memory alone may still count.
    pub fn is_silent(&mut self, now: Duration) -> bool {
        self.silent_until.take_if(|until| *until <= now);
        self.silence_due || self.silent_until.is_some()
    }

    /// Notes whether this replica is the home.
    pub fn note_home(&mut self, now: Duration) {
        self.home_since = match self.machine.state() {
            Some(_) => Some(self.home_since.unwrap_or(now)),
            None => None,
        };
        self.is_lost &= self.home_since.is_none();
    }

    /// Notes that a call of this entry came in, or was answered.
    pub fn note_served(&mut self, entry: EntryRef, now: Duration) {
        let holder = self.machine.state().and_then(|state| state.holder());
        if holder.is_some_and(|holder| holder.seq == entry.seq && holder.tag() == entry.tag) {
            self.served = Some((entry.seq, now));
        }
    }

    /// Gives back the memory of what is empty: a lock that is held may be so for long.
    pub fn shrink(&mut self) {
        if self.calls.is_empty() {
            self.calls.shrink_to_fit();
        }
        self.machine.shrink();
    }

    /// Whether nobody works at it.
    fn is_idle(&self) -> bool {
        self.machine.is_idle() && self.is_free()
    }

    /// Whether nothing is lost if it is forgotten.
    pub fn is_forgettable(&self) -> bool {
        self.machine.is_forgettable() && self.is_free()
    }

    /// Whether nobody waits here, and nothing need be remembered of a machine that is lost.
    fn is_free(&self) -> bool {
        self.calls.is_empty() && !self.is_lost
    }
}

type Shard = HashMap<Arc<KeyId>, Arc<KeyCell>>;

/// The cells of a replica.
pub(super) struct Keys {
    shards: Box<[Mutex<Shard>]>,
    hasher: RandomState,
    count: AtomicUsize,
    most: usize,
    /// Where room was looked for last.
    looked_at: AtomicUsize,
    /// All keys were found in use: until then it is not looked for room again. In microseconds, by CLOCK_BOOTTIME.
    full_until_us: AtomicU64,
    counters: Arc<Counters>,
}

impl Keys {
    /// For `most` keys; above that those that are idle for longest are forgotten (H11).
    pub fn new(most: usize, counters: Arc<Counters>) -> Self {
        Keys {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            hasher: RandomState::new(),
            count: AtomicUsize::new(0),
            most,
            looked_at: AtomicUsize::new(0),
            full_until_us: AtomicU64::new(0),
            counters,
        }
    }

    fn shard(&self, id: &KeyId) -> MutexGuard<'_, Shard> {
        let at = self.hasher.hash_one(id) as usize % SHARDS;
        self.shards[at]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// How many keys are known.
    pub fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    pub fn find(&self, id: &KeyId) -> Option<Arc<KeyCell>> {
        self.shard(id).get(id).cloned()
    }

    /// The cell of a key, made where there is none; `None` where there is no room: all that are known are in use.
    ///
    /// To find that takes a look at all of them, so for a while after that nobody does.
    pub fn cell(&self, id: &Arc<KeyId>, now: impl FnOnce() -> Duration) -> Option<Arc<KeyCell>> {
        let mut shard = self.shard(id);
        if let Some(cell) = shard.get(id) {
            return Some(Arc::clone(cell));
        }
        if self.count() >= self.most {
            let now = now();
            if now < Duration::from_micros(self.full_until_us.load(Ordering::Relaxed)) {
                return None;
            }
            if !self.forget_one(&mut shard) {
                drop(shard);
                // Few keys are allowed, or this shard has few: no two shards are locked at once.
                if !self.forget_elsewhere() {
                    self.note_full(now);
                    return None;
                }
                shard = self.shard(id);
                if let Some(cell) = shard.get(id) {
                    return Some(Arc::clone(cell));
                }
            }
        }
        let cell = Arc::new(KeyCell::new(Arc::clone(id)));
        shard.insert(Arc::clone(id), Arc::clone(&cell));
        self.count.fetch_add(1, Ordering::Relaxed);
        Some(cell)
    }

    /// All keys are in use.
    fn note_full(&self, now: Duration) {
        let count = u32::try_from(self.count()).unwrap_or(u32::MAX);
        let until = now.saturating_add(FULL_FOR_EACH.saturating_mul(count));
        let until = u64::try_from(until.as_micros()).unwrap_or(u64::MAX);
        self.full_until_us.store(until, Ordering::Relaxed);
    }

    /// Forgets a key that nobody works at now: of the first that are found in a shard the one that is idle for longest.
    fn forget_one(&self, shard: &mut Shard) -> bool {
        let idle = |cell: &Arc<KeyCell>| {
            let slot = cell.slot.try_lock().ok()?;
            slot.is_idle().then_some(slot.used)
        };
        let found = shard
            .iter()
            .filter_map(|(id, cell)| Some((idle(cell)?, Arc::clone(id))))
            .take(COMPARED_MAX)
            .min();
        let Some((_, id)) = found else {
            return false;
        };
        let Some(cell) = shard.get(&id) else {
            return false;
        };
        {
            let mut slot = cell.slot();
            if !slot.is_idle() {
                return false;
            }
            slot.removed = true;
        }
        shard.remove(&id);
        self.count.fetch_sub(1, Ordering::Relaxed);
        Counters::add(&self.counters.forgotten_keys, 1);
        true
    }

    /// Forgets an idle key of any shard.
    fn forget_elsewhere(&self) -> bool {
        // From another one each time, so that none keeps its keys for good.
        let from = self.looked_at.fetch_add(1, Ordering::Relaxed) % SHARDS;
        let (before, after) = self.shards.split_at(from);
        after.iter().chain(before).any(|shard| {
            let mut shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            self.forget_one(&mut shard)
        })
    }

    /// Forgets a key of which nothing is known.
    pub fn forget(&self, cell: &KeyCell) {
        let mut shard = self.shard(&cell.id);
        {
            let mut slot = cell.slot();
            if slot.removed || !slot.is_forgettable() {
                return;
            }
            slot.removed = true;
        }
        shard.remove(&cell.id);
        self.count.fetch_sub(1, Ordering::Relaxed);
    }

    /// All cells, as they are found one shard after the other.
    pub fn all(&self) -> impl Iterator<Item = Arc<KeyCell>> + '_ {
        self.shards.iter().flat_map(|shard| {
            let shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            shard.values().cloned().collect::<Vec<_>>()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::{Key, TableName};

    #[test]
    fn idle_keys_make_room_in_whichever_shard_they_are() {
        let counters = Arc::<Counters>::default();
        let keys = Keys::new(2, Arc::clone(&counters));
        for n in 0..200 {
            let id = Arc::new(KeyId {
                table: TableName::default_table(),
                key: Key::parse(&format!("k{n}"), 64).unwrap(),
            });
            let cell = keys.cell(&id, || Duration::ZERO);
            assert!(cell.is_some(), "no room for key {n}");
            assert!(keys.count() <= 2);
        }
        assert_eq!(counters.forgotten_keys.load(Ordering::Relaxed), 198);
    }

    #[test]
    fn where_all_keys_are_in_use_room_is_not_looked_for_by_each_call() {
        let keys = Keys::new(1_000, Arc::default());
        let id = |n: usize| {
            Arc::new(KeyId {
                table: TableName::default_table(),
                key: Key::parse(&format!("k{n}"), 64).unwrap(),
            })
        };
        let now = Duration::from_secs(1);
        let cells: Vec<_> = (0..1_000)
            .map(|n| keys.cell(&id(n), || now).unwrap())
            .collect();
        let in_use: Vec<_> = cells.iter().map(|cell| cell.slot()).collect();
        assert!(keys.cell(&id(1_000), || now).is_none());
        drop(in_use);
        // There is room again; but it was looked for just now.
        assert!(keys.cell(&id(1_000), || now + FULL_FOR_EACH).is_none());
        assert!(
            keys.cell(&id(1_000), || now + 1_000 * FULL_FOR_EACH)
                .is_some()
        );
    }
}
