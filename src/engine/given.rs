//! What a replica gives away before it stops, while it serves: keys in use, and sessions.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::StreamExt;

use crate::clock::Clock;

/// How many are given away at once: calls wait for the hand-over of their key.
const AT_ONCE: usize = 8;
/// One that takes longer is the last one: the store takes its time, and what is not begun is served meanwhile.
const STUCK_AFTER: Duration = Duration::from_secs(1);

/// What came of it.
pub(super) struct Given {
    /// How many were given.
    pub count: usize,
    /// One took too long.
    pub is_stuck: bool,
}

/// Gives these away, each by `give`, which says whether it did. None is begun later than `within`; what was begun is brought
/// to its end, or who has it next would not hear of it.
pub(super) async fn give_each<T, F>(
    clock: &dyn Clock,
    within: Duration,
    all: Vec<T>,
    give: impl Fn(T) -> F,
) -> Given
where
    F: Future<Output = bool>,
{
    let is_stuck = AtomicBool::new(false);
    let give_one = async |given: F| {
        tokio::select! {
            biased;
            given = given => given,
            () = clock.sleep(STUCK_AFTER) => {
                is_stuck.store(true, Ordering::Relaxed);
                false
            }
        }
    };
    let begun = futures_util::stream::iter(all)
        .take_until(clock.sleep(within))
        .take_while(|_| std::future::ready(!is_stuck.load(Ordering::Relaxed)))
        .map(|one| give_one(give(one)))
        .buffer_unordered(AT_ONCE);
    let count = begun
        .filter(|given| std::future::ready(*given))
        .count()
        .await;
    Given {
        count,
        is_stuck: is_stuck.into_inner(),
    }
}
