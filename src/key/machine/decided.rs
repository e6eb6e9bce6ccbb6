//! Decisions with waiting callers, and the part of the row that each depends on (I6).

use super::event::{CallError, CallId, EntryRef, KeyError};
use crate::lock::Seq;

/// The answer to a caller.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) enum Reply {
    /// Its entry was created or found.
    Created {
        entry: EntryRef,
        read_value: bool,
        existed: bool,
    },
    /// Its entry was released, now or before.
    Released {
        already: bool,
        /// The put of this release may be durable.
        has_written: bool,
    },
    /// Its entry was released by another call.
    Ended,
    /// Its entry was ended by force, or had ended before.
    Forced { already: bool, was_holder: bool },
}

/// The condition for an answer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum CommitDependency {
    /// The row reserves this seq.
    Seq(Seq),
    /// The row allows the end of this entry to be told.
    EndOf(Seq),
    /// The row knows of the end of this entry.
    Recorded(Seq),
}

/// A decision with a waiting caller.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Decided {
    /// `None` once its call has ended.
    pub call: Option<CallId>,
    pub reply: Reply,
    pub depends_on: CommitDependency,
}

impl Decided {
    /// The error of a decision that may be missing from the row.
    pub fn failed(&self, why: KeyError) -> CallError {
        let may_have_written = matches!(
            self.reply,
            Reply::Released {
                has_written: true,
                ..
            }
        );
        CallError {
            why,
            may_have_written,
        }
    }
}
