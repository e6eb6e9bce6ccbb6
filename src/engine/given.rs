//! What a replica gives away before it stops, while it serves: keys in use, and sessions.

use std::collections::HashSet;
use std::hash::Hash;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::StreamExt;

use crate::clock::Clock;

/// How many are given away at once: as few as get done in time, since calls wait for the hand-over of their key, which
/// takes longer beside others.
const AT_ONCE: RangeInclusive<u128> = 2..=8;
/// What one takes where nodes are busy.
const ONE_TAKES: Duration = Duration::from_millis(20);
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
        let at_once = at_once(found.len(), left);
        given += futures_util::stream::iter(found)
            .take_until(clock.sleep(left))
            .take_while(|_| std::future::ready(!is_stuck.load(Ordering::Relaxed)))
            .map(&give)
            .buffer_unordered(at_once)
            .filter(|given| std::future::ready(*given))
            .count()
            .await;
    }
    Given {
        found: seen.len(),
        given,
    }
}

/// How many of this many are given at once to be done in `within`.
fn at_once(found: usize, within: Duration) -> usize {
    let all_take = ONE_TAKES.as_millis().saturating_mul(found as u128);
    let needed = all_take.div_ceil(within.as_millis().max(1));
    let at_once = needed.clamp(*AT_ONCE.start(), *AT_ONCE.end());
    usize::try_from(at_once).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_are_given_at_once_unless_there_are_many_for_the_time() {
        let within = Duration::from_secs(2);
        let of = |found| at_once(found, within);
        assert_eq!([0, 1, 200, 201, 500, 1_000_000].map(of), [2, 2, 2, 3, 5, 8]);
        assert_eq!(at_once(1, Duration::ZERO), 8);
    }
}
