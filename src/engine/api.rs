//! The requests that the engine takes, and its answers. Parsed types only: text is checked at the edge.

use std::sync::Arc;
use std::time::Duration;

use crate::key::KeyState;
use crate::key::machine::KeyError;
pub use crate::key::machine::{Mutation, Value};
use crate::lock::{
    EndedAs, Fence, Key, KeyId, LockRef, Mode, ReplicaId, SessionId, TableName, Tag,
};
use crate::store::{SessionRow, StoreError};
use fermata_guard::shares::{self, NoShare};

/// What the engine has at the moment, and what it counted since the process started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Keys that this replica knows, idle ones included.
    pub active_keys: usize,
    /// Sessions that this replica keeps.
    pub sessions: usize,
    /// Compare-and-swaps that took effect.
    pub swaps: u64,
    /// Compare-and-swaps that met another state.
    pub conflicts: u64,
    /// Compare-and-swaps whose outcome had to be resolved.
    pub unknown: u64,
    /// Those that took effect with write-back and changed no home (H5).
    pub background_commits: u64,
    /// Grants that survived a crash of this replica when they were made.
    pub durable_grants: u64,
    /// Grants that only the memory of this replica had when they were made.
    pub volatile_grants: u64,
    /// Keys that were taken over (H3).
    pub take_overs: u64,
    /// Keys that another replica gave to this one (H4).
    pub received_keys: u64,
    /// Keys that were given to another replica (H4).
    pub hand_overs: u64,
    /// Idle keys that were forgotten to have room for others (H11).
    pub forgotten_keys: u64,
    /// Keys to which nothing happened that were packed, each time anew.
    pub packed_keys: u64,
}

/// What keeps an entry alive.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum LeaseId {
    /// A session.
    Session(SessionId),
    /// A lockRef without a session (its grant does not matter).
    LockRef(LockRef),
}

/// What a new entry shall live by.
#[derive(Clone, Debug)]
pub enum LiveBy {
    /// Its own TTL, in milliseconds.
    Ttl(u32),
    /// An open session.
    Session(SessionId),
}

/// CreateLockRef.
#[derive(Clone, Debug)]
pub struct CreateCall {
    /// What to lock.
    pub id: KeyId,
    /// What the secret of the entry comes to: names the call (I5).
    pub tag: Tag,
    /// What the entry shall live by.
    pub live_by: LiveBy,
    /// How it shall hold the key.
    pub mode: Mode,
    /// A label for people.
    pub owner: String,
    /// Who asks, as far as the server knows.
    pub identity: String,
    /// Whose share of the keys it uses; empty: nobody's.
    pub share_of: Arc<str>,
    /// Also read the value if the entry holds the key at once.
    pub read_value: bool,
    /// How long it waited to be begun.
    pub waited: Duration,
}

/// The status of a lockRef.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LockStatus {
    /// It holds its key.
    Held {
        /// The fencing token.
        grant: Fence,
        /// The value, where it was asked for.
        value: Option<Value>,
    },
    /// It waits.
    Waiting {
        /// How many are ahead.
        position: usize,
    },
}

/// The answer to CreateLockRef.
#[derive(Clone, Debug)]
pub struct CreatedLockRef {
    /// With its grant when held.
    pub lock_ref: LockRef,
    /// Its status.
    pub status: LockStatus,
    /// What keeps it alive.
    pub lease: LeaseId,
    /// The TTL in force.
    pub ttl: Duration,
    /// How long it is safe from expiry, from when the call came in.
    pub valid_for: Duration,
    /// It survives a crash of the replica that serves its key.
    pub durable: bool,
    /// An earlier call of this request had made it.
    pub existed: bool,
}

/// The answer to AcquireLock.
#[derive(Clone, Debug)]
pub struct Acquired {
    /// With its grant when held.
    pub lock_ref: LockRef,
    /// Its status.
    pub status: LockStatus,
    /// How long it is safe from expiry, from when the call came in or, after a wait, from the answer.
    pub valid_for: Duration,
    /// It survives a crash of the replica that serves its key.
    pub durable: bool,
}

/// The answer to an accepted critical call.
#[derive(Clone, Debug)]
pub struct Done<T> {
    /// What was asked for.
    pub value: T,
    /// How long the lockRef is safe from expiry, from when the call came in.
    pub valid_for: Duration,
    /// It survives a crash of the replica that serves its key.
    pub durable: bool,
}

/// What a watcher of a lockRef is told.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum WatchEvent {
    /// It waits.
    Waiting {
        /// How many are ahead.
        position: usize,
        /// How long that may take, by the turns of the last minute; `None` where there was none.
        estimate: Option<Duration>,
    },
    /// It holds its key.
    Held {
        /// The fencing token.
        grant: Fence,
    },
    /// It has ended.
    Lost(EndedAs),
}

/// What a call begins that may be refused where too much is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Begins {
    /// An entry, or a session.
    Entry,
    /// A read without a lock.
    Read,
}

/// OpenSession.
#[derive(Clone, Debug)]
pub struct SessionCall {
    /// Its id: names the call as well.
    pub id: SessionId,
    /// Its time to live, in milliseconds.
    pub ttl_ms: u32,
    /// How long it lives on after its client's stream ended, in milliseconds; 0 where that does not matter.
    pub disconnect_grace_ms: u32,
    /// A label for people.
    pub owner: String,
    /// Who asks, as far as the server knows.
    pub identity: String,
    /// Whose share of the sessions it is of: who asks, or from where. Empty: nobody's.
    pub share_of: Arc<str>,
    /// How long it waited to be begun.
    pub waited: Duration,
}

/// The answer to OpenSession and RenewSession.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Renewed {
    /// The TTL in force.
    pub ttl: Duration,
    /// The grace for a client that is disconnected, where there is one.
    pub disconnect_grace: Option<Duration>,
    /// How long it is safe from expiry, from when the call came in.
    pub valid_for: Duration,
    /// Of a lockRef: it survives a crash of the replica that serves its key. Of a session it says nothing, and is false.
    pub durable: bool,
}

/// What came of closing a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ClosedSession {
    /// It had ended before.
    pub had_ended: bool,
    /// A replica did not say in time that nothing lives by it there any more.
    pub may_be_served: bool,
}

/// A key as operators see it.
#[derive(Clone, Debug)]
pub struct Described {
    /// The key.
    pub id: KeyId,
    /// Its state: as its home has it, or as its row says.
    pub state: KeyState,
    /// Only the row says so.
    pub from_row: bool,
    /// Who serves it; `None` before its first use.
    pub home: Option<KeyHome>,
    /// What the state does not say of its entries, by their order.
    pub entries: Vec<DescribedEntry>,
}

/// An entry as operators see it, beside what the state says of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DescribedEntry {
    /// It survives a crash of the home.
    pub durable: bool,
    /// What is left of its lease, where this replica keeps that.
    pub lease: Option<LeaseLeft>,
}

/// Which keys a listing has.
#[derive(Clone, Debug)]
pub struct KeyFilter {
    /// Those of this table.
    pub table: TableName,
    /// Those above this one.
    pub after: Option<Key>,
    /// Those that start with this.
    pub prefix: String,
    /// Those with at least one waiter.
    pub contended: bool,
}

/// Keys that a replica serves and that have live entries, from its memory.
#[derive(Clone, Debug)]
pub struct ServedKeys {
    /// The keys.
    pub page: Page<Described, Key>,
    /// Which of the keys that were named, by their index, are served there and not to be listed.
    pub left_out: Vec<usize>,
}

/// What is left of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseLeft {
    /// Its TTL.
    pub ttl: Duration,
    /// What is left of it.
    pub left: Duration,
}

/// A session as operators see it.
#[derive(Clone, Debug)]
pub struct DescribedSession {
    /// Its row.
    pub row: SessionRow,
    /// What is left of it, where this replica keeps it.
    pub left: Option<Duration>,
    /// How many lockRefs live by it, as far as this replica knows.
    pub lock_refs: usize,
}

/// The home of a key, as it was while it answered.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KeyHome {
    /// Its id.
    pub id: ReplicaId,
    /// Where clients reach it, as it announced it; may be empty.
    pub address: String,
    /// Rises by one with every change of home.
    pub term: u64,
}

/// What came of ForceRelease.
#[derive(Clone, Copy, Debug)]
pub struct ForceReleased {
    /// It had ended before.
    pub already_released: bool,
    /// It held the key.
    pub was_holder: bool,
}

/// One page of a listing.
#[derive(Clone, Debug)]
pub struct Page<T, C> {
    /// What is on it.
    pub items: Vec<T>,
    /// Where the next one begins; `None` after the last.
    pub next: Option<C>,
}

/// Why the engine did not do what it was asked. Mapped to gRPC statuses in one place (`rpc::status`).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EngineError {
    /// No such table. Configure it, or correct the name.
    #[error("there is no table {0:?}")]
    UnknownTable(String),
    /// This key never gave out such a lockRef, and has no such entry (NOT_FOUND).
    #[error("there was never such a lockRef, or such an entry")]
    NeverIssued,
    /// The lockRef has ended. Create another one.
    #[error("this lockRef has ended: {}", describe_end(.0))]
    Ended(EndedAs),
    /// The lockRef has ended, and what became of a write that was in flight, or of an earlier try of this release, is
    /// not known.
    #[error(
        "this lockRef ended before its write was known to count: {}; whether the write took effect is unknown",
        describe_end(.0)
    )]
    EndedDuringWrite(EndedAs),
    /// The grant was superseded, and what became of the write that was in flight is not known.
    #[error(
        "another grant superseded this one while a write of it was in flight; whether the write took effect is \
         unknown. AcquireLock returns the current grant"
    )]
    SupersededDuringWrite,
    /// The session is closed, has expired, or was never opened. Open another one.
    #[error("this session is closed or has expired (or was never opened)")]
    SessionEnded,
    /// The grant in the lockRef is an older one, since another replica took it over, or was never given.
    /// AcquireLock gives the one in force.
    #[error(
        "the grant in this lockRef is not the current one; AcquireLock returns the current grant"
    )]
    GrantSuperseded,
    /// A critical call needs the lockRef that AcquireLock (or a create that held at once) gave.
    #[error("this lockRef carries no grant; use the lockRef that AcquireLock returned with HELD")]
    NoGrant,
    /// A ReleaseLock of this lockRef was accepted before.
    #[error("this lockRef is being released; no further calls are accepted")]
    Releasing,
    /// The same, told to a release that carries a put: whether that is the put of the one in flight, or of an
    /// earlier try, cannot be told.
    #[error(
        "a release of this lockRef is in flight; whether the value that this one carries was written is unknown"
    )]
    ReleasingDuringWrite,
    /// The number of a critical call must grow.
    #[error("call_no {given} is not greater than {last}, the last one of this lockRef")]
    CallNoNotAbove {
        /// What was given.
        given: u64,
        /// The last one accepted.
        last: u64,
    },
    /// The request belongs to an entry, or session, with another argument.
    #[error("this request_id was used before with another {field}")]
    RequestMismatch {
        /// The argument that differs.
        field: &'static str,
    },
    /// A limit is reached. Repeat later.
    #[error("limits.{what} is at its limit of {limit}")]
    Exhausted {
        /// What, as the name in `[limits]`.
        what: &'static str,
        /// The limit in force.
        limit: u64,
    },
    /// Nine tenths of a limit are in use, and the caller has its share of it. Repeat later.
    #[error(
        "nine tenths of limits.{what} are in use, and the rest is for clients that have fewer than {share}"
    )]
    ShareUsed {
        /// Of what, as the name in `[limits]`.
        what: &'static str,
        /// What each client may have of the last tenth.
        share: u64,
    },
    /// More is asked for than this replica and its store can do; nothing was done. Repeat later.
    #[error(
        "overloaded: more is asked for than this replica and its store can do in time; nothing was done"
    )]
    Overloaded {
        /// When to come again, at the soonest.
        again_after: Duration,
    },
    /// The key cannot give out another fencing token or number.
    #[error("{0}")]
    KeyUsedUp(String),
    /// The store could not do it, or its outcome is not known yet. Safe to repeat.
    #[error("{0}")]
    Unavailable(String),
    /// The clock of this replica is wrong: it grants nothing until that is mended. Nothing was changed. Repeat
    /// elsewhere.
    #[error(
        "the clock of this replica differs from the store's by more than a minute: it grants no lock until that is mended"
    )]
    ClockOff,
    /// What became of a write is not known. Safe to repeat; until then a read may show it or not.
    #[error("it is not known whether the value was written; write it again before reading ({0})")]
    WriteUnknown(String),
    /// This replica has had no heartbeat acknowledged for too long: it answers nothing until its row shows its next incarnation.
    /// Repeat elsewhere.
    #[error("this replica lost contact with the store and answers nothing until it is back")]
    Silent,
    /// This replica is fenced, and answers nothing any more. Repeat elsewhere.
    #[error("this replica was fenced and restarts under a new id")]
    Fenced,
    /// Another replica has what was asked for: ask there. Never told to a client.
    #[error("replica {home} is the home")]
    Elsewhere {
        /// Which.
        home: ReplicaId,
        /// The term of the key's home, or the epoch of the session, that says so. A higher one is newer.
        version: u64,
    },
    /// This replica is stopping. Repeat elsewhere.
    #[error("this replica is stopping")]
    Stopping,
}

impl EngineError {
    /// What the store could not do.
    pub(super) fn of_store(error: StoreError) -> EngineError {
        EngineError::Unavailable(error.to_string())
    }

    /// Why there is no room for one more of what the limit of this name bounds.
    pub(super) fn of_no_share(no_share: NoShare, what: &'static str, limit: usize) -> EngineError {
        match no_share {
            NoShare::Full => EngineError::Exhausted {
                what,
                limit: limit as u64,
            },
            NoShare::ShareUsed => EngineError::ShareUsed {
                what,
                share: shares::share(limit) as u64,
            },
        }
    }

    /// What is said of a session that one replica no longer keeps, and another one not yet.
    pub(super) fn changing_keeper() -> EngineError {
        EngineError::Unavailable("the session is changing its keeper".to_owned())
    }

    /// What is said of a session that has ended at its keeper, before its row says so.
    pub(super) fn ending() -> EngineError {
        EngineError::Unavailable(
            "the session has expired or was closed, and the store did not take that down yet"
                .to_owned(),
        )
    }

    /// What a key answered instead of doing what was asked.
    pub(super) fn of_key(error: KeyError) -> EngineError {
        match error {
            KeyError::NeverIssued => EngineError::NeverIssued,
            KeyError::Ended(end) => EngineError::Ended(end),
            KeyError::GrantSuperseded => EngineError::GrantSuperseded,
            KeyError::NoGrant => EngineError::NoGrant,
            KeyError::Releasing => EngineError::Releasing,
            KeyError::CallNoNotAbove { given, last } => EngineError::CallNoNotAbove { given, last },
            KeyError::RequestMismatch { field } => EngineError::RequestMismatch { field },
            KeyError::Exhausted { what, limit } => EngineError::Exhausted {
                what,
                limit: limit as u64,
            },
            KeyError::ShareUsed { what, share } => EngineError::ShareUsed {
                what,
                share: share as u64,
            },
            KeyError::SeqUsedUp => {
                EngineError::KeyUsedUp("this key has given out all its lockRefs".to_owned())
            }
            KeyError::Fence(error) => EngineError::KeyUsedUp(error.to_string()),
            KeyError::ClockIsWrong => EngineError::ClockOff,
            KeyError::StoreUnavailable(why) => EngineError::Unavailable(why.to_string()),
            KeyError::Elsewhere(home) => EngineError::Elsewhere {
                home: home.replica,
                version: home.term,
            },
            KeyError::ChangingHome => {
                EngineError::Unavailable("the key is changing its home".to_owned())
            }
        }
    }

    /// The same, told of a call whose write may have been done before it failed (H7).
    #[must_use]
    pub fn with_write(self) -> EngineError {
        match self {
            EngineError::Ended(ended) => EngineError::EndedDuringWrite(ended),
            EngineError::GrantSuperseded => EngineError::SupersededDuringWrite,
            EngineError::Releasing => EngineError::ReleasingDuringWrite,
            answered @ (EngineError::EndedDuringWrite(_)
            | EngineError::SupersededDuringWrite
            | EngineError::ReleasingDuringWrite
            | EngineError::WriteUnknown(_)) => answered,
            other @ (EngineError::UnknownTable(_)
            | EngineError::NeverIssued
            | EngineError::SessionEnded
            | EngineError::NoGrant
            | EngineError::CallNoNotAbove { .. }
            | EngineError::RequestMismatch { .. }
            | EngineError::Exhausted { .. }
            | EngineError::ShareUsed { .. }
            | EngineError::Overloaded { .. }
            | EngineError::KeyUsedUp(_)
            | EngineError::Unavailable(_)
            | EngineError::ClockOff
            | EngineError::Silent
            | EngineError::Fenced
            | EngineError::Elsewhere { .. }
            | EngineError::Stopping) => EngineError::WriteUnknown(other.to_string()),
        }
    }
}

/// How an entry ended, in words.
pub fn describe_end(ended: &EndedAs) -> String {
    use crate::lock::EndReason;
    match ended {
        EndedAs::Released => "it was released".to_owned(),
        EndedAs::NoLongerKept => {
            "it ended long ago, or was lost with the replica that served its key: nothing is kept of it".to_owned()
        }
        EndedAs::Lost(EndReason::Expired) => {
            "it expired: its client sent no renewal for its TTL".to_owned()
        }
        EndedAs::Lost(EndReason::SessionClosed) => {
            "its session was closed or has expired".to_owned()
        }
        EndedAs::Lost(EndReason::Unclaimed) => {
            "it was granted, but not claimed within its TTL".to_owned()
        }
        EndedAs::Lost(EndReason::Forced { by, why }) if by.is_empty() => {
            format!("it was ended by an operator: {why}")
        }
        EndedAs::Lost(EndReason::Forced { by, why }) => {
            format!("it was ended by {by}: {why}")
        }
    }
}
