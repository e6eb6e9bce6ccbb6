//! A key on this replica: its machine under a mutex that is never held across an await, and who waits for answers of it.
//!
//! A slot to which nothing happens is packed: it takes a tenth of the memory, and whoever has it next unpacks it.

use std::collections::{BTreeMap, HashMap};
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use prost::Message;
use tokio::sync::{oneshot, watch};

use super::remembered::RememberedValue;
use super::sessions::OpenCall;
use super::time::{AlarmAt, nanos};
use super::users::{PackedUsers, Users};
use crate::key::machine::{Answer, CallError, CallId, EntryRef, EntryStatus, Machine};
use crate::lock::{KeyId, Liveness, Seq, SessionId};
use crate::session::Observed;

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
    state: Mutex<CellState>,
}

/// What a cell has.
enum CellState {
    InUse(Box<Slot>),
    /// Nothing happened to it for a while.
    Packed(Box<[u8]>),
}

impl KeyCell {
    pub fn new(id: Arc<KeyId>) -> Self {
        KeyCell {
            id,
            state: Mutex::new(CellState::InUse(Box::new(Slot::new()))),
        }
    }

    /// The slot, unless somebody has it now.
    pub fn try_slot(&self) -> Option<SlotGuard<'_>> {
        self.state.try_lock().ok().map(SlotGuard::new)
    }

    /// The slot, unless somebody has it now or it is packed.
    pub fn slot_in_use(&self) -> Option<SlotGuard<'_>> {
        let state = self.state.try_lock().ok()?;
        matches!(*state, CellState::InUse(_)).then(|| SlotGuard::new(state))
    }

    /// When it was used last, where nobody works at it and nobody has it now. (What is packed is held.)
    pub fn idle_since(&self) -> Option<Duration> {
        match &*self.state.try_lock().ok()? {
            CellState::InUse(slot) => slot.is_idle().then_some(slot.used),
            CellState::Packed(_) => None,
        }
    }

    /// The slot; where a panic left it half changed, with a machine that knows nothing: that one takes the key over from
    /// itself.
    pub fn slot(&self) -> SlotGuard<'_> {
        match self.state.lock() {
            Ok(state) => SlotGuard::new(state),
            Err(poisoned) => {
                self.state.clear_poison();
                let mut slot = SlotGuard::new(poisoned.into_inner());
                tracing::error!(key = %self.id, "a panic lost what this replica knew of a key: it is read again");
                slot.start_over();
                slot
            }
        }
    }

    /// Packs the slot where it was not used since, by CLOCK_BOOTTIME, and nobody has it now. Whether it is packed then. One
    /// that remembers the value is not, before that is to be read again anyway.
    pub fn pack(&self, unused_since: Duration, now: Observed, span: Duration) -> bool {
        let Ok(mut state) = self.state.try_lock() else {
            return false;
        };
        let CellState::InUse(slot) = &mut *state else {
            return true;
        };
        if slot.used > unused_since {
            return false;
        }
        slot.machine.forget_pace(now, span);
        let packed = slot.packed();
        let is_packed = packed.is_some();
        if let Some(packed) = packed {
            *state = CellState::Packed(packed);
        }
        is_packed
    }
}

/// The slot of a key, for as long as this has it.
pub(super) struct SlotGuard<'a> {
    state: MutexGuard<'a, CellState>,
    /// Of one that was packed: when it had been used last.
    was_packed: Option<Duration>,
}

impl<'a> SlotGuard<'a> {
    fn new(mut state: MutexGuard<'a, CellState>) -> Self {
        let was_packed = match &*state {
            CellState::InUse(_) => None,
            CellState::Packed(packed) => {
                let slot = Slot::unpacked(packed);
                let used = slot.used;
                *state = CellState::InUse(Box::new(slot));
                Some(used)
            }
        };
        SlotGuard { state, was_packed }
    }
}

impl Deref for SlotGuard<'_> {
    type Target = Slot;

    fn deref(&self) -> &Slot {
        match &*self.state {
            CellState::InUse(slot) => slot,
            // It was made to be in use by `new`, and is not packed by anybody else while this has the mutex.
            CellState::Packed(_) => unreachable!("a slot that somebody has is packed"),
        }
    }
}

impl DerefMut for SlotGuard<'_> {
    fn deref_mut(&mut self) -> &mut Slot {
        match &mut *self.state {
            CellState::InUse(slot) => slot,
            // As above.
            CellState::Packed(_) => unreachable!("a slot that somebody has is packed"),
        }
    }
}

impl Drop for SlotGuard<'_> {
    /// Who only looked at it leaves it packed.
    fn drop(&mut self) {
        if let Some(used) = self.was_packed
            && self.used == used
            && !std::thread::panicking()
            && let Some(packed) = self.packed()
        {
            *self.state = CellState::Packed(packed);
        }
    }
}

/// What is left of a slot. Times are in nanoseconds.
#[derive(Clone, PartialEq, Message)]
struct PackedSlot {
    #[prost(bytes = "vec", tag = "1")]
    machine: Vec<u8>,
    #[prost(uint64, tag = "2")]
    generation: u64,
    #[prost(uint64, tag = "3")]
    next_call: u64,
    #[prost(uint64, tag = "4")]
    used: u64,
    #[prost(uint64, optional, tag = "5")]
    home_since: Option<u64>,
    #[prost(uint64, optional, tag = "6")]
    served: Option<u64>,
    #[prost(uint64, tag = "7")]
    served_at: u64,
    #[prost(message, optional, tag = "8")]
    users: Option<PackedUsers>,
    #[prost(bool, tag = "9")]
    is_queued: bool,
}

impl Slot {
    /// Of a key that nothing is known about.
    fn new() -> Self {
        Slot {
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
        }
    }

    /// The slot in few bytes; `None` where anything waits, is in flight or is due.
    fn packed(&self) -> Option<Box<[u8]>> {
        let is_quiet = self.calls.is_empty()
            && self.lost_sessions.is_empty()
            && self.alarm.is_none()
            && self.waiters == 0
            && self.value.is_none()
            && self.silent_until.is_none()
            && !(self.is_lost || self.silence_due || self.removed);
        // Sessions are those of the entries: there is one.
        if !is_quiet || self.sessions.len() != 1 {
            return None;
        }
        let packed = PackedSlot {
            machine: self.machine.pack()?,
            generation: self.generation,
            next_call: self.next_call,
            used: nanos(self.used),
            home_since: self.home_since.map(nanos),
            served: self.served.map(|(seq, _)| seq.0),
            served_at: self.served.map_or(0, |(_, at)| nanos(at)),
            users: self.users.to_packed(),
            is_queued: self.is_queued,
        };
        Some(packed.encode_to_vec().into_boxed_slice())
    }

    fn unpacked(bytes: &[u8]) -> Self {
        let mut slot = Slot::new();
        let packed = PackedSlot::decode(bytes).ok();
        let Some((packed, machine)) = packed.and_then(|packed| {
            Some((Machine::unpack(&packed.machine)?, packed)).map(|(m, p)| (p, m))
        }) else {
            // Nobody writes there but `packed`: as after a panic, the row says what is true.
            slot.start_over();
            return slot;
        };
        let entries = machine.state().into_iter().flat_map(|state| &state.entries);
        slot.sessions = entries
            .filter_map(|entry| match entry.liveness {
                Liveness::Session(session) => Some((entry.seq, session)),
                Liveness::Own { .. } => None,
            })
            .collect();
        slot.machine = machine;
        slot.generation = packed.generation;
        slot.next_call = packed.next_call;
        slot.used = Duration::from_nanos(packed.used);
        slot.home_since = packed.home_since.map(Duration::from_nanos);
        let served_at = Duration::from_nanos(packed.served_at);
        slot.served = packed.served.map(|seq| (Seq(seq), served_at));
        slot.users = packed.users.map(Users::of_packed).unwrap_or_default();
        slot.is_queued = packed.is_queued;
        slot
    }

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
    pub fn is_idle(&self) -> bool {
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use uuid::Uuid;

    use super::*;
    use crate::key::machine::{
        Call, CommitRules, Context, Effect, Event, KeyLimits, Loaded, SwapOutcome,
    };
    use crate::key::{CommitMode, KeyState, NewEntry};
    use crate::lock::{CoreLimits, Key, Mode, ReplicaId, TableName};
    use crate::session::Observer;

    const SESSION: SessionId = SessionId(Uuid::from_u128(7));

    fn seconds(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    fn now() -> Observed {
        Observer::new(Duration::MAX).observe(seconds(100))
    }

    /// A key that a session holds, used last 50 s after boot.
    fn held() -> KeyCell {
        let cell = KeyCell::new(Arc::new(KeyId {
            table: TableName::default_table(),
            key: Key::parse("k", 64).unwrap(),
        }));
        let limits = KeyLimits {
            core: CoreLimits::default(),
            calls_max: 8,
            waits_per_lock_ref_max: 2,
            critical_calls_max: 2,
            known_value_bytes_max: 100,
            session_claim_ttl: seconds(10),
        };
        let cx = Context {
            replica: ReplicaId(Uuid::from_u128(1)),
            now: now(),
            now_us: Some(1_000),
            sure_until: seconds(1_000),
            is_alone: true,
            commit: CommitRules {
                mode: CommitMode::WriteThrough,
                keep_after: Duration::from_millis(100),
            },
            limits: &limits,
        };
        let entry = NewEntry {
            request_id: Uuid::from_u128(2),
            mode: Mode::Exclusive,
            liveness: Liveness::Session(SESSION),
            identity: "".into(),
            owner: "".into(),
            created_at_ms: 0,
        };
        let call = Call::Create {
            entry: Box::new(entry),
            read_value: false,
        };
        let loaded = Loaded {
            state: Arc::<KeyState>::default(),
            past: None,
        };
        let mut effects = Vec::new();
        let mut slot = cell.slot();
        for event in [
            Event::Call {
                id: CallId(1),
                call,
            },
            Event::Loaded(Ok(loaded)),
            Event::Swapped(SwapOutcome::Applied),
        ] {
            slot.machine.on(&cx, event, &mut effects);
        }
        let held = |effect: &Effect| {
            matches!(
                effect,
                Effect::Answer {
                    answer: Ok(Answer::Held { .. }),
                    ..
                }
            )
        };
        assert!(effects.iter().any(held), "{effects:?}");
        slot.sessions.insert(Seq(1), SESSION);
        slot.next_call = 2;
        slot.used = seconds(50);
        slot.home_since = Some(seconds(49));
        slot.served = Some((Seq(1), seconds(50)));
        slot.users.note("b", "a");
        drop(slot);
        cell
    }

    fn is_packed(cell: &KeyCell) -> bool {
        matches!(*cell.state.lock().unwrap(), CellState::Packed(_))
    }

    fn pack(cell: &KeyCell, unused_since: u64) -> bool {
        cell.pack(seconds(unused_since), now(), seconds(1))
    }

    #[test]
    fn one_that_is_packed_is_the_same_when_it_is_needed() {
        let cell = held();
        assert!(!pack(&cell, 49), "it was used since");
        let machine = cell.slot().machine.clone();
        assert!(pack(&cell, 50) && is_packed(&cell));
        let mut slot = cell.slot();
        assert_eq!(slot.machine, machine);
        assert_eq!(slot.sessions, BTreeMap::from([(Seq(1), SESSION)]));
        assert_eq!((slot.next_call, slot.used), (2, seconds(50)));
        assert_eq!(slot.home_since, Some(seconds(49)));
        assert_eq!(slot.served, Some((Seq(1), seconds(50))));
        let mut users = Users::default();
        users.note("b", "a");
        assert_eq!(slot.users, users);
        assert!(!slot.is_lost && !slot.removed);
        // Who looked at it leaves it packed, who used it does not.
        slot.is_queued = true;
        drop(slot);
        assert!(is_packed(&cell) && cell.slot().is_queued);
        cell.slot().used = seconds(60);
        assert!(!is_packed(&cell));
        assert!(!pack(&cell, 59) && pack(&cell, 60));
    }

    #[test]
    fn one_that_anything_waits_for_is_not_packed() {
        let changes: [fn(&mut Slot); 8] = [
            |slot| slot.is_lost = true,
            |slot| slot.removed = true,
            |slot| slot.silence_due = true,
            |slot| slot.silent_until = Some(seconds(200)),
            |slot| slot.alarm = Some((now(), 1)),
            |slot| slot.waiters = 1,
            |slot| {
                slot.lost_sessions.insert(Seq(9), SESSION);
            },
            |slot| {
                let (listener, _) = oneshot::channel();
                let open = PendingCall {
                    listener: Listener::Answer(listener),
                    waits_for: None,
                    keeps: None,
                };
                slot.calls.insert(CallId(2), open);
            },
        ];
        for (number, change) in changes.into_iter().enumerate() {
            let cell = held();
            change(&mut cell.slot());
            assert!(!pack(&cell, 50), "{number}");
        }
    }

    #[test]
    fn a_panic_while_it_was_looked_at_loses_it() {
        let cell = held();
        assert!(pack(&cell, 50));
        let looks = std::panic::AssertUnwindSafe(|| {
            let _slot = cell.slot();
            panic!("a test wants it so");
        });
        std::panic::catch_unwind(looks).unwrap_err();
        let slot = cell.slot();
        assert!(slot.is_lost && slot.machine.state().is_none());
        assert_eq!(slot.lost_sessions.len(), 1);
    }

    #[test]
    fn bytes_that_nobody_packed_are_as_a_panic() {
        let slot = Slot::unpacked(b"none of these");
        assert!(slot.is_lost && slot.silence_due);
    }
}
