//! A key on this replica: its machine, and the callers that wait for answers. Its mutex is never held across an await.
//!
//! An unused slot is packed into a tenth of the memory. The next user unpacks it.

use std::collections::{BTreeMap, HashMap};
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use prost::Message;
use tokio::sync::{oneshot, watch};

use super::key_shares::{KeyShares, Owner};
use super::queue_shares::QueueShares;
use super::remembered::RememberedValue;
use super::time::{AlarmAt, nanos};
use super::users::{PackedUsers, Users};
use crate::key::machine::{Answer, CallError, CallId, EntryRef, EntryStatus, Event, Machine};
use crate::lock::{KeyId, Liveness, Seq, SessionId, Tag};
use crate::session::Observed;

/// So long after it was read a value is read again, for the next one who needs it (H9).
const BELIEVED_FOR: Duration = Duration::from_secs(60);

/// What a call brought.
pub(super) type CallResult = Result<Answer, CallError>;

/// A key is in use once its home was called over so long a time: one that is used once is not.
const IN_USE_FOR: Duration = Duration::from_secs(1);

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
    /// Whose share the entry uses that it makes, where that is known.
    pub share_of: Option<Arc<str>>,
    /// The tag of that entry, where it names no identity.
    pub makes: Option<Tag>,
}

/// How long nothing is answered of a key whose machine was lost (H11).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Silence {
    /// No machine was lost, or what it promised is past.
    No,
    /// One was; until when is still to be noted.
    Due,
    /// Until what it promised by its memory alone is past, by CLOCK_BOOTTIME.
    Until(Duration),
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
    /// The holder that was granted the key here last, and how long it had waited for that.
    pub granted_after: Option<(Seq, Duration)>,
    /// When it was used last, by CLOCK_BOOTTIME.
    pub used: Duration,
    /// When a client called last, as far as that is remembered, by CLOCK_BOOTTIME.
    pub called: Option<Duration>,
    /// Since when this replica is the home, by CLOCK_BOOTTIME.
    pub home_since: Option<Duration>,
    /// The holder that was served last, and when, by CLOCK_BOOTTIME.
    pub served: Option<(Seq, Duration)>,
    /// When the store was asked for the value last, by CLOCK_BOOTTIME. What this home writes says nothing of what others wrote.
    pub read_at: Option<Duration>,
    /// A panic lost what was known, and the key was not taken over since.
    pub is_lost: bool,
    pub silence: Silence,
    /// It is no longer in the registry: look it up anew.
    pub removed: bool,
    /// The value that its machine remembers, as it was counted.
    pub value: Option<RememberedValue>,
    /// From where it is used.
    pub users: Users,
    /// It stands among those that are looked at for room.
    pub is_queued: bool,
    /// The entry that was first when it was noted whose the key is.
    pub first: Option<Seq>,
    /// Whose shares the entries use that name no identity.
    pub shares: QueueShares,
}

/// One key.
pub(super) struct KeyCell {
    pub id: Arc<KeyId>,
    /// Whose it is while it has live entries here; 0: it has none. Changed by whoever has the slot.
    owner: AtomicU32,
    state: Mutex<CellState>,
}

/// What a cell has.
enum CellState {
    InUse(Box<Slot>),
    /// Nothing happened to it for a while. Nothing is lost of it, or known to memory alone.
    Packed {
        slot: Box<[u8]>,
        /// When it was used last, where nobody locks it: it may be forgotten.
        idle_since: Option<Duration>,
        /// When it is packed anew, without what it remembers of ended entries.
        forget_at: Option<Observed>,
    },
}

impl KeyCell {
    pub fn new(id: Arc<KeyId>) -> Self {
        KeyCell {
            id,
            owner: AtomicU32::new(0),
            state: Mutex::new(CellState::InUse(Box::new(Slot::new()))),
        }
    }

    /// Whose it is, where it has live entries here.
    pub fn owner(&self) -> Option<Owner> {
        Owner::new(self.owner.load(Ordering::Relaxed))
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

    /// When it was used last, where nobody works at it and nobody has it now.
    pub fn idle_since(&self) -> Option<Duration> {
        match &*self.state.try_lock().ok()? {
            CellState::InUse(slot) => slot.is_idle().then_some(slot.used),
            CellState::Packed { idle_since, .. } => *idle_since,
        }
    }

    /// Whether it is packed. What is asked of all keys at once is answered by that: nobody unpacks them all.
    fn is_packed(&self) -> bool {
        let state = self.state.lock();
        state.is_ok_and(|state| matches!(*state, CellState::Packed { .. }))
    }

    /// Whether this replica is the home.
    pub fn is_served(&self) -> bool {
        self.is_packed() || self.slot().machine.state().is_some()
    }

    /// As [`Slot::is_lost`].
    pub fn is_lost(&self) -> bool {
        !self.is_packed() && self.slot().is_lost
    }

    /// As [`Slot::is_silent`].
    pub fn is_silent(&self, now: Duration) -> bool {
        !self.is_packed() && self.slot().is_silent(now)
    }

    /// As [`Machine::is_to_hand_over`].
    pub fn is_to_hand_over(&self) -> bool {
        // One that is packed and not idle is held.
        match self.is_packed() {
            true => self.idle_since().is_none(),
            false => self.slot().machine.is_to_hand_over(),
        }
    }

    /// As [`Machine::is_ahead_of_row`].
    pub fn is_ahead_of_row(&self) -> bool {
        !self.is_packed() && self.slot().machine.is_ahead_of_row()
    }

    /// When a client called last for a key of which this replica is the home, where clients did so for a while, by
    /// CLOCK_BOOTTIME, or from whom it came after `leaving`. Of a key that is packed nobody did for seconds.
    pub fn in_use_at(&self, leaving: Duration) -> Option<Duration> {
        if self.is_packed() {
            return None;
        }
        let slot = self.slot();
        let since = slot.home_since?;
        if since >= leaving {
            return Some(slot.called.map_or(since, |called| called.max(since)));
        }
        let called = slot.called?;
        (called.saturating_sub(since) >= IN_USE_FOR).then_some(called)
    }

    /// As [`Machine::has_volatile`].
    pub fn has_volatile(&self) -> bool {
        !self.is_packed() && self.slot().machine.has_volatile()
    }

    /// The slot; where a panic left it half changed, with a machine that knows nothing: that one takes the key over from
    /// itself.
    pub fn slot(&self) -> SlotGuard<'_> {
        match self.state.lock() {
            Ok(state) => SlotGuard::new(state),
            Err(poisoned) => {
                self.state.clear_poison();
                let mut slot = SlotGuard::new(poisoned.into_inner());
                tracing::error!(key = %self.id, "a panic lost the state of a key: reading it again");
                slot.start_over();
                slot
            }
        }
    }

    /// Packs the slot where it was not used since, by CLOCK_BOOTTIME, and nobody has it now. Whether it did. One that
    /// remembers the value is not, before that is to be read again anyway.
    pub fn pack(&self, unused_since: Duration, now: Observed, span: Duration) -> bool {
        let Ok(mut state) = self.state.try_lock() else {
            return false;
        };
        let mut unpacked;
        let slot = match &mut *state {
            CellState::InUse(slot) if slot.used > unused_since => return false,
            CellState::InUse(slot) => slot.as_mut(),
            CellState::Packed {
                slot,
                forget_at: Some(at),
                ..
            } if *at <= now => {
                unpacked = Slot::unpacked(slot);
                &mut unpacked
            }
            CellState::Packed { .. } => return false,
        };
        slot.machine.forget_past(now, span);
        let Some(packed) = slot.packed() else {
            return false;
        };
        *state = packed;
        true
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
            CellState::Packed { slot: packed, .. } => {
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
            CellState::Packed { .. } => unreachable!("a slot that somebody has is packed"),
        }
    }
}

impl DerefMut for SlotGuard<'_> {
    fn deref_mut(&mut self) -> &mut Slot {
        match &mut *self.state {
            CellState::InUse(slot) => slot,
            // As above.
            CellState::Packed { .. } => unreachable!("a slot that somebody has is packed"),
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
            *self.state = packed;
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
    #[prost(uint64, optional, tag = "10")]
    read_at: Option<u64>,
    /// In milliseconds.
    #[prost(uint64, tag = "11")]
    waited_ms: u64,
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
            granted_after: None,
            used: Duration::ZERO,
            called: None,
            home_since: None,
            served: None,
            read_at: None,
            is_lost: false,
            silence: Silence::No,
            removed: false,
            value: None,
            users: Users::default(),
            is_queued: false,
            first: None,
            shares: QueueShares::default(),
        }
    }

    /// Notes whose share an entry uses that was made, or found again.
    pub fn note_share(&mut self, seq: Seq, share_of: Arc<str>) {
        if share_of.is_empty() {
            return;
        }
        if self.first == Some(seq) {
            // As whose it was noted was not known yet.
            self.first = None;
        }
        self.shares
            .note(seq, share_of, self.machine.state().map(Arc::as_ref));
    }

    /// Nobody waits for this call any longer; what it makes uses the same share.
    pub fn note_gone(&mut self, gone: PendingCall) {
        if let (Some(share_of), Some(tag)) = (gone.share_of, gone.makes) {
            let state = self.machine.state().map(Arc::as_ref);
            self.shares.note_gone(tag, share_of, state);
        }
    }

    /// What this entry lives by, where it is a live one here.
    pub fn liveness_of(&self, seq: Seq) -> Option<Liveness> {
        Some(self.machine.state()?.entry(seq)?.liveness)
    }

    /// Whether one who has this share, and no identity, may make the entry with this tag, where there may be so many. (Of
    /// identities the entries themselves say.)
    pub fn admit_to_queue(&self, tag: Tag, share_of: &str, entries_max: usize) -> bool {
        let asked = self
            .calls
            .values()
            .filter_map(|call| Some((call.makes?, call.share_of.as_deref()?)));
        let state = self.machine.state().map(Arc::as_ref);
        self.shares
            .admit((tag, share_of), state, asked, entries_max)
    }

    /// Notes whose the key is: of the identity whose live entry is first; where that has none, of the machine that this came from, as far as
    /// that is known.
    pub fn note_owner(&mut self, cell: &KeyCell, shares: &KeyShares) {
        let state = self.machine.state().filter(|_| !self.removed);
        let first = state.and_then(|state| state.entries.front());
        let seq = first.map(|first| first.seq);
        if seq == self.first && first.is_some() == cell.owner().is_some() {
            return;
        }
        let from = seq.and_then(|seq| self.shares.of_first(seq));
        let owner = first.and_then(|first| {
            shares.add(match &*first.identity {
                "" => from.as_deref().unwrap_or_default(),
                identity => identity,
            })
        });
        self.first = seq;
        if first.is_none() {
            self.shares = QueueShares::default();
        }
        let number = owner.map_or(0, Owner::get);
        if let Some(before) = Owner::new(cell.owner.swap(number, Ordering::Relaxed)) {
            shares.remove(before);
        }
    }

    /// How long the holder had waited when it was granted the key; zero where that was not here.
    pub fn waited(&self, holder: Seq) -> Duration {
        let granted = self.granted_after.filter(|(seq, _)| *seq == holder);
        granted.map_or(Duration::ZERO, |(_, waited)| waited)
    }

    /// Whether the value is to be read again for the next one who needs it.
    pub fn value_is_due(&self, now: Duration) -> bool {
        let since = self.read_at.or(self.home_since);
        since.is_some_and(|since| now.saturating_sub(since) >= BELIEVED_FOR)
    }

    /// The slot in few bytes; `None` where anything waits, is in flight or is due, or where its machine is not packed.
    fn packed(&self) -> Option<CellState> {
        let is_quiet = self.calls.is_empty()
            && self.lost_sessions.is_empty()
            && self.alarm.is_none()
            && self.waiters == 0
            && self.value.is_none()
            && self.silence == Silence::No
            && !(self.is_lost || self.removed);
        let entries = self.machine.state()?.entries.len();
        if !is_quiet || self.sessions.len() != entries {
            return None;
        }
        let holder = self.machine.state().and_then(|state| state.holder());
        let waited = holder.map_or(Duration::ZERO, |holder| self.waited(holder.seq));
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
            read_at: self.read_at.map(nanos),
            waited_ms: u64::try_from(waited.as_millis()).unwrap_or(u64::MAX),
        };
        Some(CellState::Packed {
            slot: packed.encode_to_vec().into_boxed_slice(),
            idle_since: self.is_idle().then_some(self.used),
            forget_at: self.machine.remembers_until(),
        })
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
        slot.first = entries.clone().map(|entry| entry.seq).next();
        let waited = Duration::from_millis(packed.waited_ms);
        slot.granted_after = slot.first.map(|first| (first, waited));
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
        slot.read_at = packed.read_at.map(Duration::from_nanos);
        slot
    }

    /// Forgets what is known. Who waits for an answer learns that it is lost.
    pub fn start_over(&mut self) {
        self.machine = Machine::new();
        self.generation = self.generation.wrapping_add(1);
        self.is_lost = true;
        self.silence = Silence::Due;
        self.calls.clear();
        self.lost_sessions.append(&mut self.sessions);
    }

    /// Whoever watches hears it. HELD that nobody does is lost, which the machine is told.
    pub fn notify(&mut self, call: CallId, status: EntryStatus) -> Option<Event> {
        let is_last = matches!(status, EntryStatus::Ended(_) | EntryStatus::Elsewhere(_));
        if let Some(PendingCall {
            listener: Listener::Watch { news, .. },
            ..
        }) = self.calls.get(&call)
        {
            news.send_replace(Some(status));
            if is_last {
                self.calls.remove(&call);
            }
            return None;
        }
        match status {
            EntryStatus::Held { grant } => Some(Event::AnswerLost { grant }),
            EntryStatus::Waiting { .. } | EntryStatus::Ended(_) | EntryStatus::Elsewhere(_) => None,
        }
    }

    /// Whether what was promised by memory alone may still count.
    pub fn is_silent(&mut self, now: Duration) -> bool {
        if matches!(self.silence, Silence::Until(until) if until <= now) {
            self.silence = Silence::No;
        }
        self.silence != Silence::No
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
        if holder.is_some_and(|holder| holder.seq == entry.seq && holder.tag == entry.tag) {
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
mod tests;
