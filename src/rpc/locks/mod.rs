//! Keys as operators see them: from the memory of their homes, or from their rows if a home does not answer.
//!
//! [`DescribeLock`] shows one key, [`ListLocks`] lists keys. Nothing here changes anything; a listing takes no key over.

mod describe;
mod list;
mod merge;
mod served;

use std::time::Duration;

pub use describe::DescribeLock;
pub use list::ListLocks;
use merge::ListedKey;
pub use served::{describe_served, list_served};
use tokio::time::Instant;

/// How many replicas are asked at once.
pub const ASKED_AT_ONCE: usize = 64;
/// How long another replica has to answer.
const ANSWERED_WITHIN: Duration = Duration::from_secs(1);

/// How long another replica has, so that the caller gets its answer in any case.
pub fn asked_within(answer_by: Instant) -> Duration {
    let left = answer_by.saturating_duration_since(Instant::now()) / 4;
    left.min(ANSWERED_WITHIN)
}
