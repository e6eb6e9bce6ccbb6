//! The events of a key, and the effects of its machine.

use std::sync::Arc;
use std::time::Duration;

use super::value::{Datum, Mutation, Value};
use crate::key::{Home, KeyState, NewEntry};
use crate::lock::{EndedAs, Fence, FenceError, Liveness, LockRef, ReplicaId, Seq, SessionId, Tag};

/// Names a call until it is answered. Given by whoever hands it in, and never twice to one machine.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct CallId(pub u64);

/// Names a read or a write of the value until its outcome is known. Given by the machine.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct IoId(pub u64);

/// Why the store did not do something, for people.
pub type Reason = Arc<str>;

/// A lockRef of the machine's own key.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct EntryRef {
    /// Its number.
    pub seq: Seq,
    /// Its tag.
    pub tag: Tag,
    /// The grant that the caller was given.
    pub grant: Option<Fence>,
}

impl From<&LockRef> for EntryRef {
    fn from(lock_ref: &LockRef) -> Self {
        EntryRef {
            seq: lock_ref.seq,
            tag: lock_ref.tag,
            grant: lock_ref.grant,
        }
    }
}

/// What a client, or another replica, asks for.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Call {
    /// Add an entry, or find the one that this request made.
    Create {
        /// Its arguments.
        entry: Box<NewEntry>,
        /// Read the value too, if it holds the key at once.
        read_value: bool,
    },
    /// Whether an entry holds the key; with `wait` answered once it does, or at [`Event::WaitEnded`].
    Acquire {
        /// Which.
        entry: EntryRef,
        /// Do not answer WAITING at once.
        wait: bool,
        /// Read the value too.
        read_value: bool,
    },
    /// Read the value as the holder.
    Get {
        /// Who.
        entry: EntryRef,
        /// Grows from call to call; 0 where the caller does not count.
        call_no: u64,
    },
    /// Write the value as the holder.
    Put {
        /// Who.
        entry: EntryRef,
        /// As of Get.
        call_no: u64,
        /// What.
        value: Mutation,
    },
    /// Give an entry back, after writing `put`.
    Release {
        /// Which.
        entry: EntryRef,
        /// As of Get.
        call_no: u64,
        /// What to write before.
        put: Option<Mutation>,
    },
    /// News of an entry until it ends.
    Watch {
        /// Which.
        entry: EntryRef,
    },
    /// The client of an entry is there.
    Renew {
        /// Which.
        entry: EntryRef,
    },
    /// An operator ends an entry, whose number is enough for that.
    Force {
        /// Its number.
        seq: Seq,
        /// Who.
        by: Box<str>,
        /// Why.
        why: Box<str>,
    },
    /// Become the home: this replica is known to have stopped, or to be down, and its row says so (H2, H3).
    TakeOver {
        /// Which.
        from: ReplicaId,
    },
    /// Serve the key, which another replica handed over in this term (H4). Only by news of the replica that did so, and
    /// only if this process never lost what it knew of this term.
    Adopt {
        /// The term that began with the hand-over.
        term: u64,
    },
    /// Give the key to another replica (H4).
    HandOver {
        /// To which.
        to: ReplicaId,
        /// Only where nobody locks the key or waits for it; else it is answered with this replica as the home.
        if_idle: bool,
    },
}

impl Call {
    /// The entry whose client makes it.
    pub fn of_entry(&self) -> Option<EntryRef> {
        match self {
            Call::Acquire { entry, .. }
            | Call::Get { entry, .. }
            | Call::Put { entry, .. }
            | Call::Release { entry, .. }
            | Call::Watch { entry }
            | Call::Renew { entry } => Some(*entry),
            Call::Create { .. }
            | Call::Force { .. }
            | Call::TakeOver { .. }
            | Call::Adopt { .. }
            | Call::HandOver { .. } => None,
        }
    }

    /// Whether it is a client's, for an entry.
    pub fn is_of_client(&self) -> bool {
        matches!(self, Call::Create { .. }) || self.of_entry().is_some()
    }
}

/// What happened.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Event {
    /// A call came in.
    Call {
        /// Its name.
        id: CallId,
        /// What it asks for.
        call: Call,
    },
    /// Nobody waits for the answer of this call any longer. What it began goes on.
    CallGone(CallId),
    /// A wait has lasted as long as it may: WAITING is the answer now.
    WaitEnded(CallId),
    /// HELD was not heard by anybody.
    AnswerLost {
        /// The grant that it told.
        grant: Fence,
    },
    /// What the store answered to [`Effect::Load`].
    Loaded(Result<Loaded, Reason>),
    /// What became of [`Effect::Swap`].
    Swapped(SwapOutcome),
    /// What the store answered to [`Effect::ReadData`].
    DataRead {
        /// The read.
        io: IoId,
        /// The value and its timestamp; `None` where there never was one.
        cell: Result<Option<Datum>, Reason>,
    },
    /// What became of [`Effect::WriteData`].
    DataWritten {
        /// The write.
        io: IoId,
        /// Its outcome.
        outcome: WriteOutcome,
    },
    /// The pause that [`Effect::Pause`] asked for has ended.
    Resume(PauseOf),
    /// The moment that [`super::Machine::due`] named has come.
    Due,
    /// What the TTL of a session is: so long a first entry that lives by it waits for its claim.
    SessionTtl {
        /// Which.
        session: SessionId,
        /// Its TTL.
        ttl: Duration,
    },
    /// A session ended; it was closed, or expired where it is kept.
    SessionEnded(SessionId),
}

/// What the store is left alone with for a moment.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum PauseOf {
    /// The row.
    Row,
    /// The sync of the holder with this grant.
    Sync(Fence),
}

/// A row as it was read.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Loaded {
    /// The state; the default one where there is no row.
    pub state: Arc<KeyState>,
    /// The timestamp of the value that the data table has, where the key has no row.
    pub past: Option<u64>,
}

/// What became of a compare-and-swap.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum SwapOutcome {
    /// It took effect, durably.
    Applied,
    /// The row is another one. Nothing was changed.
    Conflict(Arc<KeyState>),
    /// It may have taken effect, or may yet.
    Unknown(Reason),
    /// It certainly did not, and never will.
    NotStarted(Reason),
}

/// What became of a write of the value.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum WriteOutcome {
    /// It is durable.
    Done,
    /// It may have taken effect, or may yet.
    Unknown(Reason),
    /// It certainly did not, and never will.
    NotStarted(Reason),
}

/// What an entry lives by, as its client is answered.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct LeaseStatus {
    /// By its own TTL, or by a session.
    pub source: LeaseSource,
    /// It survives a crash of its home, as what it is.
    pub durable: bool,
    /// What is not the durable holder is promised no longer than to here, by CLOCK_BOOTTIME (H7).
    pub promised_until: Option<Duration>,
}

/// What an entry lives by.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum LeaseSource {
    /// By its own TTL, which is kept here.
    Own {
        /// The TTL in force.
        ttl: Duration,
        /// How long it is safe from expiry, from when the call came in.
        valid_for: Duration,
    },
    /// By a session: whoever sends the answer asks where that is kept.
    Session(SessionId),
}

/// What a call brought.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Answer {
    /// The entry holds the key.
    Held {
        /// The entry, with its grant.
        entry: EntryRef,
        /// The value, where it was asked for.
        value: Option<Value>,
        /// An earlier call of the same request had made it.
        existed: bool,
        /// What it lives by.
        lease: LeaseStatus,
    },
    /// The entry waits.
    Waiting {
        /// The entry.
        entry: EntryRef,
        /// How many are ahead.
        position: usize,
        /// As of Held.
        existed: bool,
        /// As of Held.
        lease: LeaseStatus,
    },
    /// The value.
    Value {
        /// What was read.
        value: Value,
        /// As of Held.
        lease: LeaseStatus,
    },
    /// The value was written.
    Written {
        /// As of Held.
        lease: LeaseStatus,
    },
    /// The entry was given back.
    Released {
        /// It had been given back before.
        already: bool,
    },
    /// News follow, as [`Effect::Notify`].
    Watching,
    /// The lease of the entry was renewed.
    Renewed {
        /// As of Held.
        lease: LeaseStatus,
    },
    /// The entry was ended.
    Forced {
        /// It had ended before.
        already: bool,
        /// It held the key.
        was_holder: bool,
    },
    /// This replica is the home.
    Home(Home),
    /// The other replica is the home.
    HandedOver(Home),
}

/// Why a call failed, and whether what it was to write may have been written.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CallError {
    /// Why.
    pub why: KeyError,
    /// Its write was handed to the store, and what became of it is not known, or it took effect.
    pub may_have_written: bool,
}

impl From<KeyError> for CallError {
    fn from(why: KeyError) -> Self {
        CallError {
            why,
            may_have_written: false,
        }
    }
}

/// Why a call failed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum KeyError {
    /// This key never gave out such an entry.
    NeverIssued,
    /// The entry has ended.
    Ended(EndedAs),
    /// The grant in the lockRef is not the one in force.
    GrantSuperseded,
    /// The lockRef carries no grant, or its entry does not hold the key.
    NoGrant,
    /// A release of this lockRef was accepted before.
    Releasing,
    /// The number of a critical call must grow.
    CallNoNotAbove {
        /// What was given.
        given: u64,
        /// The last one accepted.
        last: u64,
    },
    /// The request_id belongs to an entry with another argument.
    RequestMismatch {
        /// Which.
        field: &'static str,
    },
    /// A limit is reached.
    Exhausted {
        /// Which, as in the settings.
        what: &'static str,
        /// What it is set to.
        limit: usize,
    },
    /// Nine tenths of a limit are in use, and the identity that asks has its share of it.
    ShareUsed {
        /// Which, as in the settings.
        what: &'static str,
        /// How many each may have of the last tenth.
        share: usize,
    },
    /// The numbers of the key are used up.
    SeqUsedUp,
    /// No fence can be taken.
    Fence(FenceError),
    /// This machine's clock is known to be wrong: no fence is taken.
    ClockIsWrong,
    /// The store could not do it, or its outcome is not known.
    StoreUnavailable(Reason),
    /// Another replica is the home: ask there.
    Elsewhere(Home),
    /// The key is changing its home.
    ChangingHome,
}

/// What a watcher hears.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum EntryStatus {
    /// It waits.
    Waiting {
        /// How many are ahead.
        position: usize,
    },
    /// It holds the key.
    Held {
        /// The fencing token.
        grant: Fence,
    },
    /// It ended.
    Ended(EndedAs),
    /// Another replica tells from now on.
    Elsewhere(Home),
}

/// What a machine wants done. In their order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Effect {
    /// Read the row; of a key without one the timestamp of its value, too. Once at a time, never beside a Swap.
    Load {
        /// What became of a swap is not known: whatever is in flight at the row is settled first.
        settle: bool,
    },
    /// Replace `old` by `new`, if the row is still `old`.
    Swap {
        /// What the row must be.
        old: Arc<KeyState>,
        /// What it becomes.
        new: Arc<KeyState>,
    },
    /// Read the value.
    ReadData {
        /// Names the read.
        io: IoId,
    },
    /// Write the value.
    WriteData {
        /// Names the write.
        io: IoId,
        /// What, with its timestamp.
        datum: Datum,
        /// It is what was read there, under a higher fence (I7), and not what a client writes.
        again: bool,
    },
    /// Send [`Event::Resume`] after a pause, the longer the more tries there were.
    Pause {
        /// For it to name.
        of: PauseOf,
        /// 0 after the first failure.
        tries: u32,
    },
    /// Answer a call.
    Answer {
        /// Which.
        call: CallId,
        /// With what.
        answer: Result<Answer, CallError>,
    },
    /// News for a watcher. After `Ended` and `Elsewhere` there are none.
    Notify {
        /// The Watch call.
        call: CallId,
        /// The news.
        status: EntryStatus,
    },
    /// The client of an entry that lives by this session is there.
    RenewSession(SessionId),
    /// From now on this key wants to learn of the session's end; at once, if it ended before.
    Attach {
        /// The session.
        session: SessionId,
        /// The entry that lives by it.
        seq: Seq,
    },
    /// No longer.
    Detach {
        /// The session.
        session: SessionId,
        /// The entry that lived by it.
        seq: Seq,
    },
    /// For operators.
    Report(Report),
}

/// What operators want to know.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Report {
    /// An entry was granted the key.
    Granted {
        /// Which.
        seq: Seq,
        /// It found the queue empty.
        at_once: bool,
        /// It held the key already when this replica became its home.
        held_before: bool,
    },
    /// An entry ended otherwise than by its release.
    Evicted {
        /// Which.
        entry: EntryRef,
        /// How.
        end: EndedAs,
        /// It held the key.
        was_holder: bool,
    },
    /// This replica became the home.
    TookOver {
        /// The home before.
        from: Option<Home>,
    },
    /// This replica gave the key to another one.
    HandedOver {
        /// To which.
        to: Home,
    },
    /// Another replica took the key while this one was its home.
    Deposed {
        /// By whom.
        by: Option<Home>,
    },
    /// The row is not what this home committed last, and nobody can have written it after that.
    Contradicted {
        /// The version that was committed last.
        known: u64,
        /// That of the row.
        found: u64,
    },
    /// What became of a commit is not known; it is resolved.
    InDoubt {
        /// Why.
        why: Reason,
    },
}

/// The TTL that a liveness has by itself.
pub(super) fn own_ttl(liveness: Liveness) -> Option<Duration> {
    match liveness {
        Liveness::Own { ttl_ms } => Some(Duration::from_millis(u64::from(ttl_ms))),
        Liveness::Session(_) => None,
    }
}

/// A call is answered with an error.
pub(super) fn fail(call: CallId, why: impl Into<CallError>, out: &mut Vec<Effect>) {
    let answer = Err(why.into());
    out.push(Effect::Answer { call, answer });
}
