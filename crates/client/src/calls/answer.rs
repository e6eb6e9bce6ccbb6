//! Arguments and answers of the calls, in the client's own types.

use std::time::Duration;

use bytes::Bytes;
use fermata_proto as proto;

use super::validity::{Promise, Validity};
use crate::clock::Moment;
use crate::secret_text::Shown;

/// The status of a lockRef.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LockStatus {
    /// It holds its key.
    Held {
        /// Strictly greater for each later holder of the key.
        fencing_token: u64,
    },
    /// It waits.
    Waiting {
        /// The number of entries ahead in the queue.
        position: u32,
    },
}

/// A value as read; `None` if the key has none.
pub type Value = Option<Bytes>;

/// The value in an answer, if it is HELD and the value was asked for.
pub(crate) fn granted_value(
    status: LockStatus,
    read: bool,
    value: Bytes,
    exists: bool,
) -> Option<Value> {
    let is_held = matches!(status, LockStatus::Held { .. });
    (is_held && read).then_some(exists.then_some(value))
}

/// The content of a write.
#[derive(Clone, PartialEq, Eq)]
pub enum Mutation {
    /// This value.
    Put(Bytes),
    /// No value.
    Delete,
}

impl Mutation {
    pub(crate) fn to_wire(&self) -> proto::Mutation {
        match self {
            Mutation::Put(value) => proto::Mutation {
                value: value.clone(),
                delete: false,
            },
            Mutation::Delete => proto::Mutation {
                value: Bytes::new(),
                delete: true,
            },
        }
    }
}

impl std::fmt::Debug for Mutation {
    /// Values are never shown: they may be secrets.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Mutation::Put(value) => write!(f, "Put({} bytes)", value.len()),
            Mutation::Delete => f.write_str("Delete"),
        }
    }
}

/// The answer to CreateLockRef.
#[derive(Clone)]
pub struct Created {
    /// The lockRef for later calls; with its grant when held. Everybody who has it may act for the entry.
    pub lock_ref: String,
    /// Its status.
    pub status: LockStatus,
    /// The text for renewals: of its session, or of the lockRef itself.
    pub session: String,
    /// The TTL in force.
    pub ttl: Duration,
    pub(crate) promise: Promise,
    pub(crate) value: Option<Value>,
}

impl Created {
    /// The value of the key, if the lock is held and [`LockRequest::read_value`](crate::LockRequest::read_value) was called.
    pub fn value(&self) -> Option<&Value> {
        self.value.as_ref()
    }

    /// The lockRef does not expire before this moment.
    pub fn valid_until(&self) -> Moment {
        self.promise.validity.until()
    }

    /// Whether the lockRef survives a crash of the replica that serves its key. If not, ask again before
    /// [`Created::valid_until`].
    pub fn durable(&self) -> bool {
        self.promise.durable
    }
}

/// The answer to AcquireLock.
#[derive(Clone)]
pub struct Acquired {
    /// The lockRef to use from now on; with its grant when held.
    pub lock_ref: String,
    /// Its status.
    pub status: LockStatus,
    pub(crate) promise: Promise,
    pub(crate) value: Option<Value>,
}

impl Acquired {
    /// The lockRef does not expire before this moment.
    pub fn valid_until(&self) -> Moment {
        self.promise.validity.until()
    }

    /// Whether the lockRef survives a crash of the replica that serves its key. If not, ask again before
    /// [`Acquired::valid_until`].
    pub fn durable(&self) -> bool {
        self.promise.durable
    }
}

/// The answer to OpenSession and RenewSession.
#[derive(Clone)]
pub struct Renewed {
    /// The text of the session. Everybody who has it may act for the session.
    pub session: String,
    /// The TTL in force.
    pub ttl: Duration,
    /// How long the session lives on after its connection is closed, if it has such a grace.
    pub disconnect_grace: Option<Duration>,
    pub(crate) validity: Validity,
}

impl Renewed {
    /// The session does not expire before this moment.
    pub fn valid_until(&self) -> Moment {
        self.validity.until()
    }
}

// Values, and the texts that let their bearer act, are never shown.

impl std::fmt::Debug for Created {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Created")
            .field("entry", &Shown(&self.lock_ref))
            .field("status", &self.status)
            .finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Acquired {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Acquired")
            .field("entry", &Shown(&self.lock_ref))
            .field("status", &self.status)
            .finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Renewed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Renewed")
            .field("session", &Shown(&self.session))
            .field("ttl", &self.ttl)
            .finish_non_exhaustive()
    }
}
