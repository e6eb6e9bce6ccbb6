//! What the next compare-and-swap shall do. It becomes a command only when it is decided, from what is known then.

use std::sync::Arc;

use super::event::{CallError, CallId, EntryRef, KeyError};
use crate::key::{Command, KeyState, NewEntry, Outcome, WritesOfHolder};
use crate::lock::{EndReason, Fence, Seq};

/// How many commands go into one compare-and-swap.
pub(super) const BATCH_MAX: usize = 256;

/// What the next compare-and-swap shall do.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Intent {
    /// Who is answered; nobody where that has ended, or nobody asked.
    pub call: Option<CallId>,
    /// An earlier try of it was of unknown outcome: it is decided to its end, whoever waits, and what it finds done may
    /// be its own doing.
    pub in_doubt: bool,
    /// That try was to end the holder.
    pub was_holder: bool,
    pub what: Wish,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) enum Wish {
    Create {
        entry: Box<NewEntry>,
        read_value: bool,
    },
    Release {
        entry: EntryRef,
        /// The put that came with it is durable.
        has_written: bool,
    },
    Evict {
        entry: EntryRef,
        reason: EndReason,
        only_under: Option<Fence>,
    },
    Grant,
    Extend {
        fence: Fence,
        past: Option<u64>,
    },
}

impl Intent {
    pub fn new(call: Option<CallId>, what: Wish) -> Self {
        Intent {
            call,
            in_doubt: false,
            was_holder: false,
            what,
        }
    }

    /// Whether it is to be done although nobody waits for it any longer: because it cleans up, or may be done already.
    pub fn is_wanted(&self) -> bool {
        match self.what {
            Wish::Create { .. } => self.call.is_some() || self.in_doubt,
            Wish::Release { .. } | Wish::Evict { .. } | Wish::Grant | Wish::Extend { .. } => true,
        }
    }

    /// Why it failed: a put that came with it is durable all the same, and what may be done already was not refused.
    pub fn failed(&self, why: KeyError) -> CallError {
        let why = match why {
            KeyError::Exhausted { .. }
            | KeyError::SeqUsedUp
            | KeyError::Fence(_)
            | KeyError::ClockIsWrong
                if self.in_doubt =>
            {
                KeyError::StoreUnavailable("an earlier try of it may have been done".into())
            }
            other => other,
        };
        let may_have_written = match &self.what {
            Wish::Release { has_written, .. } => *has_written,
            Wish::Create { .. } | Wish::Evict { .. } | Wish::Grant | Wish::Extend { .. } => false,
        };
        CallError {
            why,
            may_have_written,
        }
    }

    /// As a command; `writes` are those of the holder with this seq.
    pub fn command(&self, writes: impl Fn(Seq) -> WritesOfHolder) -> Command {
        match &self.what {
            Wish::Create { entry, .. } => Command::Create(NewEntry::clone(entry)),
            Wish::Release { entry, .. } => Command::Release {
                seq: entry.seq,
                tag: entry.tag,
                writes: writes(entry.seq),
            },
            Wish::Evict {
                entry,
                reason,
                only_under,
            } => Command::Evict {
                seq: entry.seq,
                tag: entry.tag,
                reason: reason.clone(),
                only_under: *only_under,
            },
            Wish::Grant => Command::Grant,
            Wish::Extend { fence, past } => Command::Extend {
                fence: *fence,
                past: *past,
            },
        }
    }
}

/// A compare-and-swap in flight.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Swapping {
    pub new: Arc<KeyState>,
    /// What it does, and what each comes to if it takes effect.
    pub batch: Vec<(Intent, Outcome)>,
}
