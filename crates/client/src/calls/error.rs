//! The errors of the operations: one enum per operation, one variant per remedy of the caller.

use super::fault::{Fault, ServerError};
use super::lost::{Lost, LostReason};

/// The error of an operation for each fault. All have Invalid, Limit, Denied, Unavailable and Other; the rest is given.
macro_rules! from_fault {
    ($error:ident: Ended => $ended:ident, $($fault:ident => $variant:ident),*) => {
        impl From<Fault> for $error {
            fn from(fault: Fault) -> $error {
                match fault {
                    Fault::Ended(lost) => $error::$ended(lost),
                    Fault::Invalid(error) => $error::Invalid(error),
                    Fault::Limit(error) => $error::Limit(error),
                    Fault::Denied(error) => $error::Denied(error),
                    Fault::Unavailable(error) => $error::Unavailable(error),
                    Fault::Other(error) => $error::Other(error),
                    $(Fault::$fault(error) => $error::$variant(error.into()),)*
                }
            }
        }
    };
}

/// Why no entry in the queue was made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CreateError {
    /// The request is malformed. Correct it.
    #[error("the request is malformed: {0}")]
    Invalid(#[source] ServerError),
    /// There is no such table. Correct its name, or configure the table.
    #[error("{0}")]
    NotFound(#[source] ServerError),
    /// The session has ended: open another one. Or the entry of an earlier try of this call has ended.
    #[error("the session, or the entry, has ended: {0}")]
    SessionEnded(#[source] Lost),
    /// A limit is reached. Repeat later.
    #[error("a limit is reached: {0}")]
    Limit(#[source] ServerError),
    /// The server does not allow this, or does not know the client.
    #[error("not allowed: {0}")]
    Denied(#[source] ServerError),
    /// No server made the entry in time. If a server makes it later, it is released in the background.
    #[error("no server could serve the call in time: {0}")]
    Unavailable(#[source] ServerError),
    /// The server failed. Only its message says more.
    #[error("the server failed: {0}")]
    Other(#[source] ServerError),
}

from_fault!(CreateError: Ended => SessionEnded, NotFound => NotFound, Superseded => Other, Overtaken => Other);

/// Why an entry in the queue did not become a lock.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WaitError {
    /// The time limit of the wait is reached. The entry is still in the queue: wait again, or give it up.
    #[error("the wait timed out with {position} ahead in the queue")]
    TimedOut {
        /// The number of entries ahead at the end.
        position: u32,
    },
    /// The entry has ended. Make another one.
    #[error("the lock is not held: {0}")]
    Lost(#[source] Lost),
    /// No server answered for a whole TTL, so the entry has likely expired.
    #[error("no server could be reached: {0}")]
    Unavailable(#[source] ServerError),
    /// The given text is not a lockRef.
    #[error("the request is malformed: {0}")]
    Invalid(#[source] ServerError),
    /// The server does not allow this, or does not know the client.
    #[error("not allowed: {0}")]
    Denied(#[source] ServerError),
    /// Too many calls wait for this lockRef. Repeat later.
    #[error("a limit is reached: {0}")]
    Limit(#[source] ServerError),
    /// The server failed. Only its message says more.
    #[error("the server failed: {0}")]
    Other(#[source] ServerError),
}

from_fault!(WaitError: Ended => Lost, NotFound => Lost, Superseded => Other, Overtaken => Other);

/// Why there is no lock.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LockError {
    /// No entry in the queue was made.
    #[error(transparent)]
    Create(#[from] CreateError),
    /// The entry in the queue did not become a lock. It is released.
    #[error(transparent)]
    Wait(#[from] WaitError),
}

/// Why a read or write under the lock failed. After `Invalid`, `Limit`, `Denied`, `Unavailable` and `Overtaken` the write was not
/// done. After all others it may have been done: while the lock is held, write again before reading.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CriticalError {
    /// The lock is lost. Stop the protected work. Writes without an `Ok` may or may not have taken effect.
    #[error("the lock is lost: {0}")]
    Lost(#[source] Lost),
    /// The request is malformed, or the value too large. Nothing was written.
    #[error("the request is malformed: {0}")]
    Invalid(#[source] ServerError),
    /// A limit is reached. Repeat later.
    #[error("a limit is reached: {0}")]
    Limit(#[source] ServerError),
    /// The server does not allow this, or does not know the client.
    #[error("not allowed: {0}")]
    Denied(#[source] ServerError),
    /// No server made the call in time; nothing was written. Repeat the call while the lock is valid.
    #[error("no server could serve the call in time: {0}")]
    Unavailable(#[source] ServerError),
    /// Another replica took the lock over while this call asked for the grant of an earlier take-over. Repeat the call.
    #[error("the lock was taken over by another replica: {0}")]
    Superseded(#[source] ServerError),
    /// Calls of other processes with this lockRef overtook every attempt of this call. This call did nothing: repeat it.
    #[error("another process used this lockRef at the same time; this call did nothing: {0}")]
    Overtaken(#[source] ServerError),
    /// An attempt of this write may have taken effect. Either the time ended before an answer, or the repeat was refused, as
    /// after a take-over, because another process with this lockRef may have written meanwhile. The lock may still be held: read
    /// the value, or write again.
    #[error("the write may or may not have taken effect: {0}")]
    WriteUnknown(#[source] ServerError),
    /// The server failed. Only its message says more.
    #[error("the server failed: {0}")]
    Other(#[source] ServerError),
}

impl CriticalError {
    /// As `from`; `in_doubt`: an earlier attempt of this write may have taken effect.
    pub(crate) fn of(fault: Fault, in_doubt: bool) -> CriticalError {
        if !in_doubt {
            return fault.into();
        }
        match fault.refusal() {
            Ok(error) | Err(Fault::Unavailable(error)) => CriticalError::WriteUnknown(error),
            Err(fault) => fault.into(),
        }
    }
}

from_fault!(CriticalError: Ended => Lost, NotFound => Lost, Superseded => Superseded, Overtaken => Overtaken);

/// Why a release failed. After `Invalid`, `Limit`, `Denied` and `Unavailable` the carried write was not done; after all others it
/// may have been done. The lock is released in the background, without the write. This is tried until the lock has ended: with
/// its session, or without a session after its TTL.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReleaseError {
    /// The lock had ended before, and not by this release: a later holder may have followed. With the reason RELEASED another
    /// process released the lock before the carried write, which was not done.
    #[error("the lock was lost before it was released: {0}")]
    Lost(#[source] Lost),
    /// The carried write is malformed, or its value too large.
    #[error("the request is malformed: {0}")]
    Invalid(#[source] ServerError),
    /// A limit is reached.
    #[error("a limit is reached: {0}")]
    Limit(#[source] ServerError),
    /// The server does not allow this, or does not know the client.
    #[error("not allowed: {0}")]
    Denied(#[source] ServerError),
    /// No server made the call in time. The release is tried further in the background, without the write, which was not done.
    #[error("no server could serve the call in time: {0}")]
    Unavailable(#[source] ServerError),
    /// An attempt may have written the carried value. Either the time ended before an answer, or the repeat was refused, as after
    /// a take-over or once the lock was released. If the lock is not released yet, the release is tried further in the
    /// background, without the write.
    #[error("the write may or may not have taken effect: {0}")]
    WriteUnknown(#[source] ServerError),
    /// The server failed. Only its message says more.
    #[error("the server failed: {0}")]
    Other(#[source] ServerError),
}

impl ReleaseError {
    /// As `from`; `in_doubt`: an earlier attempt of the carried write may have taken effect.
    pub(crate) fn of(fault: Fault, in_doubt: bool) -> ReleaseError {
        if !in_doubt {
            return fault.into();
        }
        match fault.refusal() {
            Ok(error) => ReleaseError::WriteUnknown(error),
            // By an earlier attempt, with the write, or by somebody else, before it.
            Err(Fault::Ended(lost))
                if matches!(lost.reason, LostReason::Released | LostReason::NoLongerKept) =>
            {
                ReleaseError::WriteUnknown(lost.into())
            }
            Err(Fault::Unavailable(error)) => ReleaseError::WriteUnknown(error),
            Err(fault) => fault.into(),
        }
    }
}

from_fault!(ReleaseError: Ended => Lost, NotFound => Lost, Superseded => Other, Overtaken => Other);

/// Why a session could not be opened, renewed or closed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SessionError {
    /// The session has ended. Open another one.
    #[error("the session has ended: {0}")]
    Ended(#[source] Lost),
    /// The request is malformed. Correct it.
    #[error("the request is malformed: {0}")]
    Invalid(#[source] ServerError),
    /// Too many sessions are open. Repeat later.
    #[error("a limit is reached: {0}")]
    Limit(#[source] ServerError),
    /// The server does not allow this, or does not know the client.
    #[error("not allowed: {0}")]
    Denied(#[source] ServerError),
    /// No server made the call in time.
    #[error("no server could serve the call in time: {0}")]
    Unavailable(#[source] ServerError),
    /// The server failed. Only its message says more.
    #[error("the server failed: {0}")]
    Other(#[source] ServerError),
}

from_fault!(SessionError: Ended => Ended, NotFound => Ended, Superseded => Other, Overtaken => Other);

/// Why a call that needs no lock failed: a read that may be outdated, or an operator's call.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The request is malformed. Correct it.
    #[error("the request is malformed: {0}")]
    Invalid(#[source] ServerError),
    /// There is no such table or lockRef.
    #[error("{0}")]
    NotFound(#[source] ServerError),
    /// The named lockRef has already ended.
    #[error("the lockRef has already ended: {0}")]
    Ended(#[source] Lost),
    /// A limit is reached. Repeat later.
    #[error("a limit is reached: {0}")]
    Limit(#[source] ServerError),
    /// The server does not allow this, or does not know the client.
    #[error("not allowed: {0}")]
    Denied(#[source] ServerError),
    /// No server made the call in time.
    #[error("no server could serve the call in time: {0}")]
    Unavailable(#[source] ServerError),
    /// The server failed. Only its message says more.
    #[error("the server failed: {0}")]
    Other(#[source] ServerError),
}

from_fault!(CallError: Ended => Ended, NotFound => NotFound, Superseded => Other, Overtaken => Other);
