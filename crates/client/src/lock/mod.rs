//! The fourth layer: an entry in the queue of a key, the wait for its turn, and the lock that it becomes.

pub(crate) mod entry;
pub(crate) mod grant;
pub(crate) mod guard;
pub(crate) mod held_lock;
mod locking;
mod name;
pub(crate) mod progress;
mod release;
pub(crate) mod scoped;
mod wait;
pub(crate) mod watch;
