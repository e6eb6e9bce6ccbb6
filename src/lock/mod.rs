//! The core: what a key's queue is, and what each command does to it.
//!
//! [`decide()`] is the only place where the rules of the lock live. This module knows no clock, no
//! store, no randomness, no async and nothing else of this crate: time, ids and limits are
//! arguments, so a model checker, a property test and the engine all call the same code.

mod command;
mod decide;
mod diff;
mod fence;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
mod key;
mod lock_ref;
mod state;

pub use command::{Command, Create, Created, Evidence, Outcome, Refusal, Released};
pub use decide::{Decision, decide, why_not_granted};
pub use diff::Diff;
pub(crate) use fence::next_fence;
pub use fence::{CoreLimits, Fence, FenceError};
pub use key::{Key, KeyError, KeyId, TableName, TableNameError};
pub use lock_ref::{LockRef, LockRefError, Tag};
pub use state::{
    EndReason, Ended, EndedAs, EndedEntry, Entry, Liveness, Lookup, Mode, ReplicaId, Seq,
    SessionId, State,
};
