//! The events of a key, and the effects of its machine.

use std::sync::Arc;
use std::time::Duration;

use super::value::{Datum, Mutation, Value};
use crate::key::{Home, KeyState, NewEntry};
use crate::lock::{EndedAs, Fence, FenceError, Liveness, LockRef, ReplicaId, Seq, SessionId, Tag};

/// Names a call until its answer. Chosen by the runner, never twice for one machine.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct CallId(pub u64);

/// Names a read or a write of the value until its outcome. Chosen by the machine.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct IoId(pub u64);

/// Why the store failed, for people.
pub type Reason = Arc<str>;

/// A lockRef of the machine's own key.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct EntryRef {
    /// Its number.
    pub seq: Seq,
    /// Its tag.
    pub tag: Tag,
    /// The grant that the caller knows.
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

/// A request of a client or another replica.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Call {
    /// Add an entry, or find that of the same request.
    Create {
        /// Its arguments.
        entry: Box<NewEntry>,
        /// Read the value too, if it holds the key at once.
        read_value: bool,
    },
    /// The status of an entry; with `wait` answered at HELD, or at [`Event::WaitEnded`].
    Acquire {
        /// The entry.
        entry: EntryRef,
        /// Do not answer WAITING at once.
        wait: bool,
        /// Read the value too.
        read_value: bool,
    },
    /// Read the value as the holder.
    Get {
        /// The holder's entry.
        entry: EntryRef,
        /// Grows from call to call; 0 without counting.
        call_no: u64,
    },
    /// Write the value as the holder.
    Put {
        /// The holder's entry.
        entry: EntryRef,
        /// As in `Get`.
        call_no: u64,
        /// The new value.
        value: Mutation,
    },
    /// Release an entry, after writing `put`.
    Release {
        /// The entry.
        entry: EntryRef,
        /// As in `Get`.
        call_no: u64,
        /// The value to write before.
        put: Option<Mutation>,
    },
    /// News of an entry until it ends.
    Watch {
        /// The entry.
        entry: EntryRef,
    },
    /// Renew the lease of an entry.
    Renew {
        /// The entry.
        entry: EntryRef,
    },
    /// End an entry for an operator. Its number is enough.
    Force {
        /// Its number.
        seq: Seq,
        /// The operator.
        by: Box<str>,
        /// The reason.
        why: Box<str>,
    },
    /// Become the home: the row of `from` says that it stopped or is down (H2, H3).
    TakeOver {
        /// The home before.
        from: ReplicaId,
    },
    /// Serve the key that another replica handed over in this term (H4). Valid only as news from that replica, and only while
    /// this process has its memory of the term.
    Adopt {
        /// The term that began with the hand-over.
        term: u64,
    },
    /// Give the key to another replica (H4).
    HandOver {
        /// The next home.
        to: ReplicaId,
        /// Only an idle key: for another one the answer names this replica as the home.
        if_idle: bool,
    },
}

impl Call {
    /// The entry of the calling client.
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

    /// Whether a client makes this call.
    pub fn is_of_client(&self) -> bool {
        matches!(self, Call::Create { .. }) || self.of_entry().is_some()
    }
}

/// An event of the key.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Event {
    /// A call came in.
    Call {
        /// Its name.
        id: CallId,
        /// The request.
        call: Call,
    },
    /// The caller left. Its operations in flight go on.
    CallGone(CallId),
    /// The time limit of a wait has passed: answer WAITING.
    WaitEnded(CallId),
    /// HELD did not reach its client.
    AnswerLost {
        /// The grant in that answer.
        grant: Fence,
    },
    /// The store's answer to [`Effect::Load`].
    Loaded(Result<Loaded, Reason>),
    /// The outcome of [`Effect::Swap`].
    Swapped(SwapOutcome),
    /// The store's answer to [`Effect::ReadData`].
    DataRead {
        /// The read.
        io: IoId,
        /// The value and its timestamp; `None` if it was never written.
        cell: Result<Option<Datum>, Reason>,
    },
    /// The outcome of [`Effect::WriteData`].
    DataWritten {
        /// The write.
        io: IoId,
        /// Its outcome.
        outcome: WriteOutcome,
    },
    /// The pause of [`Effect::Pause`] has ended.
    Resume(PauseOf),
    /// The moment of [`super::Machine::due`] has come.
    Due,
    /// The TTL of a session: it sets the claim deadline of a first entry.
    SessionTtl {
        /// The session.
        session: SessionId,
        /// Its TTL.
        ttl: Duration,
    },
    /// A session ended: it was closed, or it expired at its keeper.
    SessionEnded(SessionId),
}

/// The subject of a pause.
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
    /// The state; the default one without a row.
    pub state: Arc<KeyState>,
    /// The timestamp of the value in the data table, if the key has no row.
    pub past: Option<u64>,
}

/// The outcome of a compare-and-swap.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum SwapOutcome {
    /// It took effect, durably.
    Applied,
    /// The row is another one. Nothing was changed.
    Conflict(Arc<KeyState>),
    /// It may have taken effect, or may yet.
    Unknown(Reason),
    /// It did not take effect, and never will.
    NotStarted(Reason),
}

/// The outcome of a write of the value.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum WriteOutcome {
    /// It is durable.
    Done,
    /// It may have taken effect, or may yet.
    Unknown(Reason),
    /// It did not take effect, and never will.
    NotStarted(Reason),
}

/// The lease of an entry, as its client is told.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct LeaseStatus {
    /// Its own TTL, or a session.
    pub source: LeaseSource,
    /// It survives a crash of its home, as holder or waiter.
    pub durable: bool,
    /// The end of the promise to any entry but a durable holder, by CLOCK_BOOTTIME (H7).
    pub promised_until: Option<Duration>,
}

/// The source of a lease.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum LeaseSource {
    /// Its own TTL, kept here.
    Own {
        /// The TTL in force.
        ttl: Duration,
        /// How long it is safe from expiry, counted from the call.
        valid_for: Duration,
    },
    /// A session: the sender of the answer asks its keeper.
    Session(SessionId),
}

/// The result of a call.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Answer {
    /// The entry holds the key.
    Held {
        /// The entry, with its grant.
        entry: EntryRef,
        /// The value, if requested.
        value: Option<Value>,
        /// An earlier call of the same request created it.
        existed: bool,
        /// Its lease.
        lease: LeaseStatus,
    },
    /// The entry waits.
    Waiting {
        /// The entry.
        entry: EntryRef,
        /// Entries ahead.
        position: usize,
        /// As in `Held`.
        existed: bool,
        /// As in `Held`.
        lease: LeaseStatus,
    },
    /// The value.
    Value {
        /// The value read.
        value: Value,
        /// As in `Held`.
        lease: LeaseStatus,
    },
    /// The value was written.
    Written {
        /// As in `Held`.
        lease: LeaseStatus,
    },
    /// The entry was released.
    Released {
        /// It was released before.
        already: bool,
    },
    /// News follow, as [`Effect::Notify`].
    Watching,
    /// The lease of the entry was renewed.
    Renewed {
        /// As in `Held`.
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

/// The error of a call.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CallError {
    /// The cause.
    pub why: KeyError,
    /// Its write reached the store: it took effect, or its outcome is unknown.
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
    /// This key never issued such an entry.
    NeverIssued,
    /// The entry has ended.
    Ended(EndedAs),
    /// The grant in the lockRef is not the one in force.
    GrantSuperseded,
    /// The lockRef carries no grant, or its entry does not hold the key.
    NoGrant,
    /// A release of this lockRef was accepted before.
    Releasing,
    /// The number of a critical call is not above the last one.
    CallNoNotAbove {
        /// The given number.
        given: u64,
        /// The last accepted number.
        last: u64,
    },
    /// The request_id belongs to an entry with another argument.
    RequestMismatch {
        /// The argument.
        field: &'static str,
    },
    /// A limit is reached.
    Exhausted {
        /// Its name in the settings.
        what: &'static str,
        /// Its value.
        limit: usize,
    },
    /// Nine tenths of a limit are in use, and the calling identity has used its share.
    ShareUsed {
        /// Its name in the settings.
        what: &'static str,
        /// The share of each identity in the last tenth.
        share: usize,
    },
    /// The numbers of the key are used up.
    SeqUsedUp,
    /// No fence can be taken.
    Fence(FenceError),
    /// This machine's clock is wrong: it takes no fence.
    ClockIsWrong,
    /// The store failed, or the outcome is unknown.
    StoreUnavailable(Reason),
    /// Another replica is the home: ask there.
    Elsewhere(Home),
    /// The key is changing its home.
    ChangingHome,
}

/// News for a watcher.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum EntryStatus {
    /// It waits.
    Waiting {
        /// Entries ahead.
        position: usize,
    },
    /// It holds the key.
    Held {
        /// The fencing token.
        grant: Fence,
    },
    /// It ended.
    Ended(EndedAs),
    /// Another replica sends the news from now on.
    Elsewhere(Home),
}

/// The effects of a machine, to be performed in order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Effect {
    /// Read the row; without a row also the timestamp of the value. One load at a time, never beside a Swap.
    Load {
        /// The outcome of a swap is unknown: settle the operations in flight on the row first.
        settle: bool,
    },
    /// Replace `old` by `new`, if the row is still `old`.
    Swap {
        /// The expected row.
        old: Arc<KeyState>,
        /// The new row.
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
        /// The value, with its timestamp.
        datum: Datum,
        /// A rewrite of the value read, under a higher fence (I7), not a client's write.
        again: bool,
    },
    /// Send [`Event::Resume`] after a pause that grows with `tries`.
    Pause {
        /// The subject of the pause.
        of: PauseOf,
        /// 0 after the first failure.
        tries: u32,
    },
    /// Answer a call.
    Answer {
        /// The call.
        call: CallId,
        /// Its result.
        answer: Result<Answer, CallError>,
    },
    /// News for a watcher. `Ended` and `Elsewhere` are the last.
    Notify {
        /// The Watch call.
        call: CallId,
        /// The news.
        status: EntryStatus,
    },
    /// Renew this session: a client of its entry called.
    RenewSession(SessionId),
    /// From now on this key wants to learn of the session's end; at once, if it has ended.
    Attach {
        /// The session.
        session: SessionId,
        /// The entry that lives by it.
        seq: Seq,
    },
    /// The key need not learn of the session's end any more.
    Detach {
        /// The session.
        session: SessionId,
        /// The entry that lived by it.
        seq: Seq,
    },
    /// For operators.
    Report(Report),
}

/// News for operators.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Report {
    /// An entry was granted the key.
    Granted {
        /// The entry.
        seq: Seq,
        /// It found the queue empty.
        at_once: bool,
        /// It held the key before this replica became its home.
        held_before: bool,
    },
    /// An entry ended otherwise than by its release.
    Evicted {
        /// The entry.
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
    /// This replica handed the key over.
    HandedOver {
        /// The next home.
        to: Home,
    },
    /// Another replica took the key while this one was its home.
    Deposed {
        /// The new home.
        by: Option<Home>,
    },
    /// The row is not the last commit of this home, and nobody can have written it since.
    Contradicted {
        /// The version of the last commit.
        known: u64,
        /// The version of the row.
        found: u64,
    },
    /// The outcome of a commit is unknown; it is being resolved.
    InDoubt {
        /// The cause.
        why: Reason,
    },
}

/// The TTL of an entry outside sessions.
pub(super) fn own_ttl(liveness: Liveness) -> Option<Duration> {
    match liveness {
        Liveness::Own { ttl_ms } => Some(Duration::from_millis(u64::from(ttl_ms))),
        Liveness::Session(_) => None,
    }
}

/// Answers a call with an error.
pub(super) fn fail(call: CallId, why: impl Into<CallError>, out: &mut Vec<Effect>) {
    let answer = Err(why.into());
    out.push(Effect::Answer { call, answer });
}
