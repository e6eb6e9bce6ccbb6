//! The drain of a replica that is about to stop: its keys in use, then its sessions, move to other replicas while it serves.

use std::collections::HashSet;
use std::hash::Hash;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;

use crate::clock::Clock;

/// Hand-overs in flight. Few, because calls wait for the hand-over of their key, and hand-overs slow each other down.
const AT_ONCE: usize = 8;
/// A hand-over that takes longer ends the drain: the store is slow, and the remaining keys are better served here.
const STUCK_AFTER: Duration = Duration::from_secs(1);

/// The outcome of a drain.
pub(super) struct Drained {
    /// The number found.
    pub found: usize,
    /// The number handed over.
    pub done: usize,
}

/// Hands over the items of `find` in their order, each by `hand_over`, which returns whether it was done. Asks `find` again
/// until it returns nothing new, because another stopping replica may send more. Begins none later than `within`. A begun
/// hand-over runs to its end, or the next owner would not hear of it.
pub(super) async fn drain<T, Found, HandingOver>(
    clock: &dyn Clock,
    within: Duration,
    find: impl Fn() -> Found,
    hand_over: impl Fn(T) -> HandingOver,
) -> Drained
where
    T: Clone + Eq + Hash,
    Found: Future<Output = Vec<T>>,
    HandingOver: Future<Output = bool>,
{
    let until = clock.boot().saturating_add(within);
    let timed = async |one: T| {
        tokio::select! {
            biased;
            done = hand_over(one) => Some(done),
            () = clock.sleep(STUCK_AFTER) => None,
        }
    };
    let mut seen = HashSet::new();
    let mut done = 0;
    let mut may_begin = true;
    while may_begin {
        let mut found = find().await;
        found.retain(|one| seen.insert(one.clone()));
        if found.is_empty() {
            break;
        }
        let mut waiting = found.into_iter();
        let mut in_flight = FuturesUnordered::new();
        loop {
            may_begin &= clock.boot() < until;
            if may_begin {
                let room = AT_ONCE - in_flight.len();
                in_flight.extend(waiting.by_ref().take(room).map(&timed));
            }
            let Some(answer) = in_flight.next().await else {
                break;
            };
            may_begin &= answer.is_some();
            done += usize::from(answer == Some(true));
        }
    }
    Drained {
        found: seen.len(),
        done,
    }
}

#[cfg(test)]
mod tests {
    use std::future::ready;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::time::{Instant, sleep};

    use super::*;
    use crate::clock::Sleep;

    /// The runtime's clock, which a test can stop.
    struct Stopped(Instant);

    impl Stopped {
        #[allow(clippy::disallowed_methods)] // no machine sleeps here
        fn now() -> Stopped {
            Stopped(Instant::now())
        }
    }

    impl Clock for Stopped {
        fn boot(&self) -> Duration {
            self.0.elapsed()
        }

        fn wall_us(&self) -> u64 {
            0
        }

        fn sleep(&self, span: Duration) -> Sleep {
            Box::pin(sleep(span))
        }
    }

    #[tokio::test(start_paused = true)]
    async fn few_are_in_flight_and_none_begins_after_its_time() {
        let clock = Stopped::now();
        let (now, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let hand_over = async |_| {
            most.fetch_max(now.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
            sleep(Duration::from_millis(100)).await;
            now.fetch_sub(1, Ordering::Relaxed);
            true
        };
        let find = || ready((0..1_000).collect());
        let all = drain(&clock, Duration::from_secs(2), find, hand_over).await;
        assert_eq!((all.found, all.done), (1_000, 20 * AT_ONCE));
        assert_eq!(most.into_inner(), AT_ONCE);
        assert_eq!(clock.boot(), Duration::from_secs(2));
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_begun_once_one_is_stuck() {
        let clock = Stopped::now();
        let begun = AtomicUsize::new(0);
        let give = async |_| {
            begun.fetch_add(1, Ordering::Relaxed);
            sleep(Duration::from_secs(60)).await;
            true
        };
        let find = || ready((0..100).collect());
        let all = drain(&clock, Duration::from_secs(20), find, give).await;
        assert_eq!((all.found, all.done, begun.into_inner()), (100, 0, AT_ONCE));
        assert_eq!(clock.boot().as_secs(), STUCK_AFTER.as_secs());
    }
}
