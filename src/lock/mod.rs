//! The parts of a lock: keys, lockRefs, fences, lives and ends of entries. The rules are in [`crate::key`].
//!
//! This module knows no clock, no store, no randomness, no async and nothing else of this crate.

mod fence;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
mod key;
mod lock_ref;
mod secret;
mod state;

pub(crate) use fence::next_fence;
pub use fence::{CoreLimits, Fence, FenceError};
pub use key::{InvalidKey, Key, KeyId, NameHash, TableName, TableNameError};
pub use lock_ref::{EntryName, EntryNameError, LockRef, LockRefError, with_grant};
pub use secret::{Secret, SessionId, Tag};
pub use state::{EndReason, Ended, EndedAs, EndedEntry, Liveness, Lookup, Mode, ReplicaId, Seq};
