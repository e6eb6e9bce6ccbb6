//! The states of a machine: the role of this replica for the key, and the operation on the row.

use std::sync::Arc;

use super::event::{Call, CallId, Effect, EntryRef, KeyError, fail};
use super::serving::Serving;
use crate::key::KeyState;
use crate::lock::ReplicaId;

/// The role of this replica for the key.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) enum Role {
    /// Nothing is known: the row is read before any answer.
    Unread,
    /// It is becoming the home.
    Taking(Taking),
    /// It is the home.
    Serving(Box<Serving>),
    /// It is handing the key over: no answer until that is settled (H4).
    HandingOver(Box<Serving>, HandOver),
}

/// The operation on the row.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) enum Turn {
    /// None, and none is needed.
    Free,
    /// The outcome of the last one is unknown: the row is read first.
    InDoubt,
    /// The row is being read.
    Reading,
    /// A compare-and-swap is in flight.
    Swapping,
    /// The store failed a moment ago.
    Paused {
        /// The outcome of the last operation is unknown.
        in_doubt: bool,
    },
}

/// A call that waits for the row.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Queued {
    pub id: CallId,
    pub call: Call,
}

/// A take-over that is being committed.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Taking {
    /// The row as it was read.
    pub found: Arc<KeyState>,
    /// The timestamp of the value, if the key has no row.
    pub past: Option<u64>,
    /// Its commit, sent unchanged until it is settled (I6).
    pub sent: Option<SentTakeOver>,
}

/// The commit of a take-over.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct SentTakeOver {
    /// The state of this home after the commit.
    pub state: Box<KeyState>,
    pub row: Arc<KeyState>,
    /// Its new entries, and their callers.
    pub created: Vec<Created>,
    /// A try had an unknown outcome.
    pub in_doubt: bool,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Created {
    /// `None` once its call has ended.
    pub call: Option<CallId>,
    pub entry: EntryRef,
    pub existed: bool,
    /// Decided again if the take-over fails.
    pub asked: Call,
}

/// A hand-over in flight.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct HandOver {
    pub to: ReplicaId,
    /// The calls that asked for it.
    pub calls: Vec<CallId>,
    pub stage: Stage,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) enum Stage {
    /// Operations in flight finish; nothing was sent.
    Draining,
    /// Its commit was sent, and may apply.
    Sent,
}

impl HandOver {
    /// Whether the next home may have the key already: nothing is decided here any more.
    pub fn is_sent(&self) -> bool {
        self.stage == Stage::Sent
    }

    /// Fails its calls with `why`.
    pub fn close(self, why: &KeyError, out: &mut Vec<Effect>) {
        for call in self.calls {
            fail(call, why.clone(), out);
        }
    }
}
