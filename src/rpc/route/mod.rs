//! Routing: a call is made at the home of its key, or at the keeper of its session (H1).
//!
//! The services call [`Router`]. `hops` chooses the next replica for a call, and bounds the hops; `homes` remembers homes;
//! `watch_relay` keeps a watch open while a key changes its home. What must not live here: parsing, the connection to another
//! replica (that is [`super::peer`]), rules of the lock.

mod homes;
mod hops;
mod router;
pub(super) mod watch_relay;

pub use router::{Router, WatchSource};
