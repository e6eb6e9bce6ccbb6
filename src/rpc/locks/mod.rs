//! What operators are shown of keys: as their homes have them in memory where these can be asked, else as their rows say.
//!
//! [`DescribeLock`] shows one key, [`ListLocks`] lists them. What must not: changes of any kind; to be asked takes no key
//! over.

mod describe;
mod list;
mod merge;
mod served;

use std::sync::Arc;
use std::time::Duration;

pub use describe::DescribeLock;
pub use list::ListLocks;
use merge::ListedKey;
pub use served::{describe_served, list_served};
use tokio::time::Instant;

use super::peer::PeerClient;
use crate::engine::Engine;

/// How long another replica has to say what it knows.
const ANSWERED_WITHIN: Duration = Duration::from_secs(1);

/// Where it can be asked what operators are to be shown.
#[derive(Clone)]
pub struct KeySources {
    /// This replica.
    pub engine: Engine,
    /// The way to the others, where there are any.
    pub peers: Option<Arc<PeerClient>>,
}

/// How long another replica has, so that the caller has its answer whatever comes of that.
fn asked_within(answer_by: Instant) -> Duration {
    let left = answer_by.saturating_duration_since(Instant::now()) / 4;
    left.min(ANSWERED_WITHIN)
}
