//! The states of a machine: what this replica is to the key, and the operation on the row.

use std::sync::Arc;

use super::event::{Call, CallId, Effect, EntryRef, KeyError, fail};
use super::serving::Serving;
use crate::key::KeyState;
use crate::lock::ReplicaId;

/// What this replica is to the key.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) enum Role {
    /// Nothing is known: the row is read before anything is answered.
    Unread,
    /// It is becoming the home.
    Taking(Taking),
    /// It is the home.
    Serving(Box<Serving>),
    /// It is giving the key to another replica: nothing is answered until that is settled (H4).
    HandingOver(Box<Serving>, HandOver),
}

/// The operation on the row.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) enum Turn {
    /// None, and none is needed.
    Free,
    /// What became of the last one is not known: the row is read before anything else.
    InDoubt,
    /// The row is being read.
    Reading,
    /// A compare-and-swap is in flight.
    Swapping,
    /// The store failed a moment ago; with `in_doubt` as in that.
    Paused {
        /// What became of the last one is not known.
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
    /// The timestamp of the value, where the key has no row.
    pub past: Option<u64>,
    /// Its commit, which is sent as it is until it is settled (I6).
    pub sent: Option<SentTakeOver>,
}

/// The commit of a take-over.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct SentTakeOver {
    /// What this replica knows as the home once it applied.
    pub state: Box<KeyState>,
    pub row: Arc<KeyState>,
    /// The entries that it makes, and who waits for them.
    pub created: Vec<Created>,
    /// A try of it was of unknown outcome.
    pub in_doubt: bool,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Created {
    /// Nobody where that has ended.
    pub call: Option<CallId>,
    pub entry: EntryRef,
    pub existed: bool,
    /// To be decided again, where the take-over fails.
    pub asked: Call,
}

/// A hand-over in flight.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct HandOver {
    pub to: ReplicaId,
    /// Who asked for it.
    pub calls: Vec<CallId>,
    pub stage: Stage,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) enum Stage {
    /// What was begun is brought to its end; nothing was sent.
    Draining,
    /// Its commit was sent, and may apply.
    Sent,
}

impl HandOver {
    /// Whether the next home may have the key already: nothing is decided here any more.
    pub fn is_sent(&self) -> bool {
        self.stage == Stage::Sent
    }

    /// Those who asked for it, who learn that it came otherwise.
    pub fn close(self, why: &KeyError, out: &mut Vec<Effect>) {
        for call in self.calls {
            fail(call, why.clone(), out);
        }
    }
}
