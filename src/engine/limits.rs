//! Limits that several parts of the engine share.

use std::time::Duration;

/// Store operations that one task in the background has in flight: a sweep, a recovery, a hand-over of all keys.
pub(super) const STORE_OPS_AT_ONCE: usize = 32;

/// The longest wait for a key or a session requested through the store. By then a home that crashed after the request is known
/// to be down.
pub(super) const REQUESTED_FOR: Duration = Duration::from_secs(7);

/// The pause between looks at a row during that wait.
pub(super) const REREAD_EVERY: Duration = Duration::from_millis(100);

/// The longest time for each of the two parts of a hand-over before a stop: keys in use and sessions, then the other keys. The
/// other replicas take the rest over. In the rest, a lock that only memory knows prevents the state `stopped` (H7).
pub(super) const HAND_OVERS_MAX: Duration = Duration::from_secs(5);
