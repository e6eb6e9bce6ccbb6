//! Decisions whose callers wait, and the part of the row that each rests on (I6).

use super::event::{CallError, CallId, EntryRef, KeyError};
use crate::lock::Seq;

/// What a caller is told.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) enum Reply {
    /// Its entry was made, or found.
    Created {
        entry: EntryRef,
        read_value: bool,
        existed: bool,
    },
    /// Its entry was given back, now or before.
    Released {
        already: bool,
        /// A put that came with it may be durable.
        has_written: bool,
    },
    /// Its entry was released, which it did not ask for.
    Ended,
    /// Its entry was ended by force, or had ended before.
    Forced { already: bool, was_holder: bool },
}

/// What of the row that rests on.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum CommitDependency {
    /// That it reserves this seq.
    Seq(Seq),
    /// That it knows of the end of this entry, as far as it must.
    EndOf(Seq),
    /// That it knows that this entry has ended.
    Recorded(Seq),
}

/// An outcome that somebody waits for.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Decided {
    /// Nobody where that has ended.
    pub call: Option<CallId>,
    pub reply: Reply,
    pub depends_on: CommitDependency,
}

impl Decided {
    /// Why it is not known to have been done.
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
