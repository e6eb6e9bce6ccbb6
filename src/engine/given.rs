//! What a replica gives away before it stops, while it serves: keys in use, and sessions.

use std::collections::HashSet;
use std::hash::Hash;
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
    /// How many there were.
    pub found: usize,
    /// How many were given.
    pub given: usize,
}

/// Gives away what `find` finds, in its order, each by `give`, which says whether it did; again until nothing else is found,
/// since more may come meanwhile, from a replica that is about to stop as well. None is begun later than `within`; what was
/// begun is brought to its end, or who has it next would not hear of it.
pub(super) async fn give_all<T, Found, Giving>(
    clock: &dyn Clock,
    within: Duration,
    find: impl Fn() -> Found,
    give: impl Fn(T) -> Giving,
) -> Given
where
    T: Clone + Eq + Hash,
    Found: Future<Output = Vec<T>>,
    Giving: Future<Output = bool>,
{
    let until = clock.boot().saturating_add(within);
    let is_stuck = AtomicBool::new(false);
    let give = async |one: T| {
        tokio::select! {
            biased;
            given = give(one) => given,
            () = clock.sleep(STUCK_AFTER) => {
                is_stuck.store(true, Ordering::Relaxed);
                false
            }
        }
    };
    let mut seen = HashSet::new();
    let mut given = 0;
    while !is_stuck.load(Ordering::Relaxed) {
        let mut found = find().await;
        found.retain(|one| seen.insert(one.clone()));
        let left = until.saturating_sub(clock.boot());
        if found.is_empty() || left.is_zero() {
            break;
        }
        given += futures_util::stream::iter(found)
            .take_until(clock.sleep(left))
            .take_while(|_| std::future::ready(!is_stuck.load(Ordering::Relaxed)))
            .map(&give)
            .buffer_unordered(AT_ONCE)
            .filter(|given| std::future::ready(*given))
            .count()
            .await;
    }
    Given {
        found: seen.len(),
        given,
    }
}
