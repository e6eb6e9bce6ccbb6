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

/// Gauges of the engine now, and its counters since the process started.
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
    /// Compare-and-swaps with write-back that took effect and changed no home (H5).
    pub background_commits: u64,
    /// Grants that were durable when they were made.
    pub durable_grants: u64,
    /// Grants that were volatile when they were made.
    pub volatile_grants: u64,
    /// Keys that were taken over (H3).
    pub take_overs: u64,
    /// Keys that another replica gave to this one (H4).
    pub received_keys: u64,
    /// Keys that were given to another replica (H4).
    pub hand_overs: u64,
    /// Idle keys that were forgotten to make room (H11).
    pub forgotten_keys: u64,
    /// Packings of unused keys.
    pub packed_keys: u64,
}

/// The lease of an entry.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum LeaseId {
    /// A session.
    Session(SessionId),
    /// The TTL of a lockRef without a session. The grant in it does not matter.
    LockRef(LockRef),
}

/// The lease of a new entry.
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
    /// The key to lock.
    pub id: KeyId,
    /// The tag of the entry's secret; identifies the call (I5).
    pub tag: Tag,
    /// The lease of the entry.
    pub live_by: LiveBy,
    /// The lock mode.
    pub mode: Mode,
    /// A label for people.
    pub owner: String,
    /// The identity of the caller; empty without one.
    pub identity: String,
    /// The name of the client in fair shares; empty: none.
    pub share_of: Arc<str>,
    /// Also read the value if the entry holds the key at once.
    pub read_value: bool,
    /// The delay before the engine got the call.
    pub waited: Duration,
}

/// The status of a lockRef.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LockStatus {
    /// It holds its key.
    Held {
        /// The fencing token.
        grant: Fence,
        /// The value, if requested.
        value: Option<Value>,
    },
    /// It waits.
    Waiting {
        /// The number of entries ahead.
        position: usize,
    },
}

/// The answer to CreateLockRef.
#[derive(Clone, Debug)]
pub struct CreatedLockRef {
    /// The lockRef, with its grant when held.
    pub lock_ref: LockRef,
    /// Its status.
    pub status: LockStatus,
    /// Its lease.
    pub lease: LeaseId,
    /// The TTL in force.
    pub ttl: Duration,
    /// The span without expiry, counted from the arrival of the call.
    pub valid_for: Duration,
    /// It survives a crash of its home.
    pub durable: bool,
    /// An earlier try of this call made it.
    pub existed: bool,
}

/// The answer to AcquireLock.
#[derive(Clone, Debug)]
pub struct Acquired {
    /// The lockRef, with its grant when held.
    pub lock_ref: LockRef,
    /// Its status.
    pub status: LockStatus,
    /// The span without expiry, counted from the arrival of the call, or after a wait from the answer.
    pub valid_for: Duration,
    /// It survives a crash of its home.
    pub durable: bool,
}

/// The answer to an accepted critical call.
#[derive(Clone, Debug)]
pub struct Done<T> {
    /// The result.
    pub value: T,
    /// The span without expiry of the lockRef, counted from the arrival of the call.
    pub valid_for: Duration,
    /// It survives a crash of its home.
    pub durable: bool,
}

/// A change of a watched lockRef.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum WatchEvent {
    /// It waits.
    Waiting {
        /// The number of entries ahead.
        position: usize,
        /// The expected wait, by the turns of the last minute; `None` without a turn.
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

/// Work that may be refused under overload.
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
    /// Its id; identifies the call as well.
    pub id: SessionId,
    /// Its time to live, in milliseconds.
    pub ttl_ms: u32,
    /// Its life after the end of its client's stream, in milliseconds; 0: the end of a stream changes nothing.
    pub disconnect_grace_ms: u32,
    /// A label for people.
    pub owner: String,
    /// The identity of the caller; empty without one.
    pub identity: String,
    /// The name of the client in fair shares: its identity or address; empty: none.
    pub share_of: Arc<str>,
    /// The delay before the engine got the call.
    pub waited: Duration,
}

/// The answer to OpenSession and RenewSession.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Renewed {
    /// The TTL in force.
    pub ttl: Duration,
    /// The grace after a disconnect, if any.
    pub disconnect_grace: Option<Duration>,
    /// The span without expiry, counted from the arrival of the call.
    pub valid_for: Duration,
    /// The lockRef survives a crash of its home; false for a session.
    pub durable: bool,
}

/// The outcome of CloseSession.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ClosedSession {
    /// The session had ended before.
    pub had_ended: bool,
    /// A replica did not confirm in time that the entries of the session have ended there.
    pub may_be_served: bool,
}

/// A key as operators see it.
#[derive(Clone, Debug)]
pub struct Described {
    /// The key.
    pub id: KeyId,
    /// Its state, from the memory of its home or from its row.
    pub state: KeyState,
    /// The state comes from the row.
    pub from_row: bool,
    /// Its home; `None` before its first use.
    pub home: Option<KeyHome>,
    /// The grant in the state is a fencing token.
    pub has_fence: bool,
    /// More about each entry, in the order of the queue.
    pub entries: Vec<DescribedEntry>,
}

/// Facts about an entry beside the state of its key, for operators.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DescribedEntry {
    /// It survives a crash of the home.
    pub durable: bool,
    /// The rest of its lease, if this replica keeps the lease.
    pub lease: Option<LeaseLeft>,
}

/// The filter of a listing of keys.
#[derive(Clone, Debug)]
pub struct KeyFilter {
    /// The table.
    pub table: TableName,
    /// Only keys above this one.
    pub after: Option<Key>,
    /// Only keys with this prefix.
    pub prefix: String,
    /// Only keys with a waiter.
    pub contended: bool,
}

/// Keys with live entries, from the memory of their home.
#[derive(Clone, Debug)]
pub struct ServedKeys {
    /// The keys.
    pub page: Page<Described, Key>,
    /// The indices of requested rows that this home serves and does not list.
    pub left_out: Vec<usize>,
}

/// The rest of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseLeft {
    /// Its TTL.
    pub ttl: Duration,
    /// The rest of the TTL.
    pub left: Duration,
}

/// A session as operators see it.
#[derive(Clone, Debug)]
pub struct DescribedSession {
    /// Its row.
    pub row: SessionRow,
    /// The rest of its lease, if this replica keeps the session.
    pub left: Option<Duration>,
    /// The number of its lockRefs that this replica knows.
    pub lock_refs: usize,
}

/// The home of a key at the time of an answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KeyHome {
    /// Its id.
    pub id: ReplicaId,
    /// Its announced address for clients; may be empty.
    pub address: String,
    /// Its term; each change of home adds one.
    pub term: u64,
}

/// The outcome of ForceRelease.
#[derive(Clone, Copy, Debug)]
pub struct ForceReleased {
    /// The entry had ended before.
    pub already_released: bool,
    /// The entry held the key.
    pub was_holder: bool,
}

/// One page of a listing.
#[derive(Clone, Debug)]
pub struct Page<T, C> {
    /// The items of the page.
    pub items: Vec<T>,
    /// The start of the next page; `None` after the last.
    pub next: Option<C>,
}

/// The refusal or failure of a call. `rpc::status` maps it to a gRPC status.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EngineError {
    /// No such table. Configure it, or correct the name.
    #[error("there is no table {0:?}")]
    UnknownTable(String),
    /// This key never issued such a lockRef, and has no such entry (NOT_FOUND).
    #[error("this lockRef or entry was never issued")]
    NeverIssued,
    /// The lockRef has ended. Create another one.
    #[error("this lockRef has ended: {}", describe_end(.0))]
    Ended(EndedAs),
    /// The lockRef has ended; the outcome of its write in flight, or of an earlier try of this release, is unknown.
    #[error(
        "this lockRef ended ({}) before the outcome of its write was known: the write may have taken effect",
        describe_end(.0)
    )]
    EndedDuringWrite(EndedAs),
    /// The grant was superseded; the outcome of its write in flight is unknown.
    #[error(
        "another grant superseded the grant in this lockRef during a write; it is unknown whether the write took effect. \
         AcquireLock returns the current grant"
    )]
    SupersededDuringWrite,
    /// The session is closed, has expired, or was never opened. Open another one.
    #[error("this session is closed, has expired, or was never opened")]
    SessionEnded,
    /// The grant in the lockRef is not the current one: another replica took the key over since, or this grant was never given.
    /// AcquireLock returns the current grant.
    #[error(
        "the grant in this lockRef is not the current one; AcquireLock returns the current grant"
    )]
    GrantSuperseded,
    /// A critical call needs a lockRef from AcquireLock, or from a create that held at once.
    #[error("this lockRef carries no grant; use the lockRef that AcquireLock returned with HELD")]
    NoGrant,
    /// A ReleaseLock of this lockRef was accepted before.
    #[error("this lockRef is being released; no further calls are accepted")]
    Releasing,
    /// As [`EngineError::Releasing`], for a release with a put: the release in flight may be an earlier try of it.
    #[error(
        "a release of this lockRef is already in flight; it is unknown whether the value in this call was written"
    )]
    ReleasingDuringWrite,
    /// The number of a critical call must grow.
    #[error("call_no {given} is not greater than {last}, the last one of this lockRef")]
    CallNoNotAbove {
        /// The number of the call.
        given: u64,
        /// The last accepted number.
        last: u64,
    },
    /// The request_id belongs to an entry or session with another argument.
    #[error("this request_id was used before with another {field}")]
    RequestMismatch {
        /// The argument that differs.
        field: &'static str,
    },
    /// The protocol of the table has no such thing. Use a table with another protocol.
    #[error("the protocol {protocol} of this table has no {what}")]
    NotInProtocol {
        /// The protocol.
        protocol: &'static str,
        /// What it does not have.
        what: &'static str,
    },
    /// Other clients have lock columns in the row (ABORTED). Repeat later.
    #[error("other clients have lock columns in this row, after {retries} retries")]
    RowBusy {
        /// How often the lock was tried again.
        retries: u32,
    },
    /// A lock column of the row is stale, and the caller wants to know.
    #[error("the lock column {column} of this row is stale; ReleaseExpired removes it")]
    StaleLock {
        /// Its name.
        column: String,
    },
    /// A limit is reached. Repeat later.
    #[error("limits.{what} is at its limit of {limit}")]
    Exhausted {
        /// The name of the limit in `[limits]`.
        what: &'static str,
        /// The limit in force.
        limit: u64,
    },
    /// Nine tenths of a limit are in use, and the caller has used its share. Repeat later.
    #[error(
        "nine tenths of limits.{what} are in use; the last tenth is for clients that have fewer than {share}"
    )]
    ShareUsed {
        /// The name of the limit in `[limits]`.
        what: &'static str,
        /// The number up to which a client may use the last tenth.
        share: u64,
    },
    /// This replica or its store is overloaded; nothing was done. Repeat later.
    #[error("overloaded: this replica or its store cannot do more calls in time; nothing was done")]
    Overloaded {
        /// The shortest pause before a retry.
        again_after: Duration,
    },
    /// The key cannot give out another fencing token or number.
    #[error("{0}")]
    KeyUsedUp(String),
    /// The store could not do it, or its outcome is not known yet. Safe to repeat.
    #[error("{0}")]
    Unavailable(String),
    /// The clock of this replica is wrong: it grants nothing until that is mended. Nothing was changed. Repeat elsewhere.
    #[error(
        "this replica grants no locks, because its clock differs from the store's by more than a minute; correct the wrong clock"
    )]
    ClockOff,
    /// The outcome of a write is unknown. Safe to repeat; until then a read may show the value or not.
    #[error("it is not known whether the value was written; write it again before reading ({0})")]
    WriteUnknown(String),
    /// No heartbeat was acknowledged for too long: this replica answers nothing until its row shows its next incarnation.
    /// Repeat elsewhere.
    #[error(
        "this replica lost contact with the store; it answers no calls until the store is back"
    )]
    Silent,
    /// This replica is fenced, and answers nothing any more. Repeat elsewhere.
    #[error("this replica was fenced and restarts under a new id")]
    Fenced,
    /// Another replica is the home or the keeper. Never told to a client.
    #[error("replica {home} is the home")]
    Elsewhere {
        /// The home or keeper.
        home: ReplicaId,
        /// The term of the home, or the epoch of the session. A higher one is newer.
        version: u64,
    },
    /// This replica is stopping. Repeat elsewhere.
    #[error("this replica is stopping")]
    Stopping,
}

impl EngineError {
    /// A failure of the store.
    pub(super) fn of_store(error: StoreError) -> EngineError {
        EngineError::Unavailable(error.to_string())
    }

    /// A refusal by the limit of this name.
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

    /// The session is between two keepers.
    pub(super) fn changing_keeper() -> EngineError {
        EngineError::Unavailable("the session is changing its keeper".to_owned())
    }

    /// The session has ended at its keeper, but not yet in its row.
    pub(super) fn ending() -> EngineError {
        EngineError::Unavailable(
            "the session has expired or was closed, but the store has not recorded that yet"
                .to_owned(),
        )
    }

    /// A refusal by the machine of a key.
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

    /// This failure, for a call that may have written before it failed (H7).
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
            | EngineError::NotInProtocol { .. }
            | EngineError::RowBusy { .. }
            | EngineError::StaleLock { .. }
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

/// The end of an entry in words.
pub fn describe_end(ended: &EndedAs) -> String {
    use crate::lock::EndReason;
    match ended {
        EndedAs::Released => "it was released".to_owned(),
        EndedAs::NoLongerKept => {
            "it ended long ago, or was lost with the replica that served its key; how it ended is unknown".to_owned()
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
