//! Routing: a call is made at the home of its key, or at the keeper of its session (H1).
//!
//! [`Router`] is what the services call. `hops` decides where a call goes next, and how often; `homes` is what this replica
//! remembers of homes; `watch_relay` keeps a watch open while a key changes its
//! home. What must not: parsing, the way to another replica (that is [`super::peer`]), rules of the lock.

mod homes;
mod hops;
mod router;
pub(super) mod watch_relay;

pub use router::{Router, WatchSource};
