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
use super::metrics::QueueNoted;
use super::queue_shares::QueueShares;
use super::remembered::RememberedValue;
use super::time::{AlarmAt, nanos};
use super::users::{PackedUsers, Users};
use crate::key::machine::{Answer, CallError, CallId, EntryRef, EntryStatus, Event, Machine};
use crate::lock::{KeyId, Liveness, Seq, SessionId, Tag};
use crate::session::Observed;

/// The age at which a remembered value is read again before its next use (H9).
const BELIEVED_FOR: Duration = Duration::from_secs(60);

/// The result of a call.
pub(super) type CallResult = Result<Answer, CallError>;

/// A key is in use once its home was called over this span, so a single use does not count.
const IN_USE_FOR: Duration = Duration::from_secs(1);

/// The receiver of a call's answer, or of news.
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
    /// The client that the new entry counts for, if known.
    pub share_of: Option<Arc<str>>,
    /// The tag of that entry, if it has no identity.
    pub makes: Option<Tag>,
}

/// The silence about a key after its machine was lost (H11).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Silence {
    /// No machine was lost, or its promises have passed.
    No,
    /// A machine was lost; the end of the silence is not set yet.
    Due,
    /// Until its volatile promises have passed, by CLOCK_BOOTTIME.
    Until(Duration),
}

/// The state of one key in the shell.
pub(super) struct Slot {
    pub machine: Machine,
    /// Raised when the machine is replaced, so that outcomes for an older machine are dropped.
    pub generation: u64,
    pub next_call: u64,
    pub calls: HashMap<CallId, PendingCall>,
    /// The live entries in sessions.
    pub sessions: BTreeMap<Seq, SessionId>,
    /// The entries of a lost machine that are still attached to sessions.
    pub lost_sessions: BTreeMap<Seq, SessionId>,
    pub alarm: Option<AlarmAt>,
    /// The queue as last noted for operators.
    pub noted: QueueNoted,
    /// The last holder granted here, and its wait.
    pub granted_after: Option<(Seq, Duration)>,
    /// The last use, by CLOCK_BOOTTIME.
    pub used: Duration,
    /// The last call of a client, if remembered, by CLOCK_BOOTTIME.
    pub called: Option<Duration>,
    /// The moment when this replica became the home, by CLOCK_BOOTTIME.
    pub home_since: Option<Duration>,
    /// The last served holder, and the moment, by CLOCK_BOOTTIME.
    pub served: Option<(Seq, Duration)>,
    /// The last read of the value from the store, by CLOCK_BOOTTIME. A write does not count: it shows no write of others.
    pub read_at: Option<Duration>,
    /// The state was lost, and the key was not taken over since.
    pub is_lost: bool,
    pub silence: Silence,
    /// The cell is no longer in the registry: look it up anew.
    pub removed: bool,
    /// The remembered value of the machine, as counted.
    pub value: Option<RememberedValue>,
    /// The zones of its calls.
    pub users: Users,
    /// It stands in the queue of remembered values.
    pub is_queued: bool,
    /// The first entry at the last note of the owner.
    pub first: Option<Seq>,
    /// The shares of entries without an identity.
    pub shares: QueueShares,
}

/// One key.
pub(super) struct KeyCell {
    pub id: Arc<KeyId>,
    /// The owner while the key has live entries here; 0: none. Changed only under the mutex of the state.
    owner: AtomicU32,
    state: Mutex<CellState>,
}

/// The state of a cell.
enum CellState {
    InUse(Box<Slot>),
    /// An unused key. Nothing of it is lost, or known to memory alone.
    Packed {
        slot: Box<[u8]>,
        /// The last use of an idle key, which may be forgotten.
        idle_since: Option<Duration>,
        /// The time to pack it anew, without its memory of ended entries.
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

    /// The owner, if the key has live entries here.
    pub fn owner(&self) -> Option<Owner> {
        Owner::new(self.owner.load(Ordering::Relaxed))
    }

    /// The slot, unless its mutex is taken.
    pub fn try_slot(&self) -> Option<SlotGuard<'_>> {
        self.state.try_lock().ok().map(SlotGuard::new)
    }

    /// The slot, unless its mutex is taken or it is packed.
    pub fn slot_in_use(&self) -> Option<SlotGuard<'_>> {
        let state = self.state.try_lock().ok()?;
        matches!(*state, CellState::InUse(_)).then(|| SlotGuard::new(state))
    }

    /// The last use of an idle key; `None` if its mutex is taken.
    pub fn idle_since(&self) -> Option<Duration> {
        match &*self.state.try_lock().ok()? {
            CellState::InUse(slot) => slot.is_idle().then_some(slot.used),
            CellState::Packed { idle_since, .. } => *idle_since,
        }
    }

    /// Whether it is packed. This answers questions about all keys, so that nothing unpacks them all.
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
        // A packed key that is not idle is held.
        match self.is_packed() {
            true => self.idle_since().is_none(),
            false => self.slot().machine.is_to_hand_over(),
        }
    }

    /// As [`Machine::is_ahead_of_row`].
    pub fn is_ahead_of_row(&self) -> bool {
        !self.is_packed() && self.slot().machine.is_ahead_of_row()
    }

    /// The last call, by CLOCK_BOOTTIME, if this replica is the home and the key is in use. A key that came since `leaving` is
    /// in use; a packed one is not.
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

    /// The slot. If a panic left it half changed, its machine starts over and takes the key over from this replica itself.
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

    /// Packs the slot if it was not used after `unused_since` (CLOCK_BOOTTIME) and its mutex is free. Returns whether it did.
    /// A slot with a remembered value is not packed.
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

/// The slot of a key, under its mutex.
pub(super) struct SlotGuard<'a> {
    state: MutexGuard<'a, CellState>,
    /// The last use of a slot that was packed before.
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
            // `new` unpacked it, and nobody else packs it while this guard has the mutex.
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
    /// A mere look leaves the slot packed.
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

/// A packed slot. Times are in nanoseconds.
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
    /// Of the holder.
    #[prost(uint64, optional, tag = "12")]
    held_since: Option<u64>,
}

impl Slot {
    /// The slot of an unknown key.
    fn new() -> Self {
        Slot {
            machine: Machine::new(),
            generation: 0,
            next_call: 0,
            calls: HashMap::new(),
            sessions: BTreeMap::new(),
            lost_sessions: BTreeMap::new(),
            alarm: None,
            noted: QueueNoted::default(),
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

    /// Notes the share of an entry that was made, or found again.
    pub fn note_share(&mut self, seq: Seq, share_of: Arc<str>) {
        if share_of.is_empty() {
            return;
        }
        if self.first == Some(seq) {
            // The owner was noted without this share.
            self.first = None;
        }
        self.shares
            .note(seq, share_of, self.machine.state().map(Arc::as_ref));
    }

    /// The caller is gone; an entry that its call makes uses the same share.
    pub fn note_gone(&mut self, gone: PendingCall) {
        if let (Some(share_of), Some(tag)) = (gone.share_of, gone.makes) {
            let state = self.machine.state().map(Arc::as_ref);
            self.shares.note_gone(tag, share_of, state);
        }
    }

    /// The lease of a live entry.
    pub fn liveness_of(&self, seq: Seq) -> Option<Liveness> {
        Some(self.machine.state()?.entry(seq)?.liveness)
    }

    /// Whether a client without an identity may make the entry with this tag within its share. (Entries name identities
    /// themselves.)
    pub fn admit_to_queue(&self, tag: Tag, share_of: &str, entries_max: usize) -> bool {
        let asked = self
            .calls
            .values()
            .filter_map(|call| Some((call.makes?, call.share_of.as_deref()?)));
        let state = self.machine.state().map(Arc::as_ref);
        self.shares
            .admit((tag, share_of), state, asked, entries_max)
    }

    /// Notes the owner of the key: the identity of the first live entry; without one, the address of its client, if known.
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

    /// The wait of the holder before its grant; `None` if it was granted elsewhere.
    pub fn waited(&self, holder: Seq) -> Option<Duration> {
        let granted = self.granted_after.filter(|(seq, _)| *seq == holder);
        granted.map(|(_, waited)| waited)
    }

    /// Whether the next use must read the value again.
    pub fn value_is_due(&self, now: Duration) -> bool {
        let since = self.read_at.or(self.home_since);
        since.is_some_and(|since| now.saturating_sub(since) >= BELIEVED_FOR)
    }

    /// The slot in few bytes; `None` if anything waits, is in flight or due, or if its machine cannot be packed.
    fn packed(&self) -> Option<CellState> {
        let is_quiet = self.calls.is_empty()
            && self.lost_sessions.is_empty()
            && self.alarm.is_none()
            && self.noted.waiters == 0
            && self.value.is_none()
            && self.silence == Silence::No
            && !(self.is_lost || self.removed);
        let entries = self.machine.state()?.entries.len();
        if !is_quiet || self.sessions.len() != entries {
            return None;
        }
        let holder = self.machine.state().and_then(|state| state.holder());
        let waited = holder.and_then(|holder| self.waited(holder.seq));
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
            waited_ms: u64::try_from(waited.unwrap_or_default().as_millis()).unwrap_or(u64::MAX),
            held_since: self.noted.held.and_then(|(_, since)| since.map(nanos)),
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
            // Only `packed` writes these bytes. As after a panic, the row has the truth.
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
        let holder = machine.state().and_then(|state| Some(state.holder()?.seq));
        slot.noted.held = holder.map(|seq| (seq, packed.held_since.map(Duration::from_nanos)));
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

    /// Forgets all state. Waiting callers learn that their answers are lost.
    pub fn start_over(&mut self) {
        self.machine = Machine::new();
        self.generation = self.generation.wrapping_add(1);
        self.is_lost = true;
        self.silence = Silence::Due;
        self.calls.clear();
        self.lost_sessions.append(&mut self.sessions);
    }

    /// Notifies a watcher. Returns an event if nobody watches and HELD is lost.
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

    /// Whether a volatile promise may still count.
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

    /// Frees the memory of empty collections: a lock may be held for long.
    pub fn shrink(&mut self) {
        if self.calls.is_empty() {
            self.calls.shrink_to_fit();
        }
        self.machine.shrink();
    }

    /// Whether the machine is idle and no call waits.
    pub fn is_idle(&self) -> bool {
        self.machine.is_idle() && self.is_free()
    }

    /// Whether nothing is lost if it is forgotten.
    pub fn is_forgettable(&self) -> bool {
        self.machine.is_forgettable() && self.is_free()
    }

    /// Whether no call waits, and no lost machine must be remembered.
    fn is_free(&self) -> bool {
        self.calls.is_empty() && !self.is_lost
    }
}

#[cfg(test)]
mod tests;
