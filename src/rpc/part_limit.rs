//! How calls that have many parts work at them.

use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Instant, sleep, sleep_until};

/// How many parts are worked at, at once …
const PARTS_MAX: usize = 64;
/// … and, of those that take longer than this, …
const SLOW: Duration = Duration::from_millis(50);
/// … so many besides.
const SLOW_MAX: usize = 4 * PARTS_MAX;

/// A part of a call. It is made when it is begun: each takes some 50 KiB from then on.
pub type Part<'a, T> = Box<dyn FnOnce() -> BoxFuture<'a, T> + Send + 'a>;

/// What other replicas pass on comes from many connections.
const TIMES_OF_REPLICAS: usize = 4;

/// Bounds how many parts of the calls of one connection are worked at, at once. Calls take turns, one part each: one with many
/// holds up none with few. Parts that take long make room for others, so that what hangs does not hold up others soon.
pub struct PartLimit {
    turns: Semaphore,
    slow: Semaphore,
}

impl Default for PartLimit {
    fn default() -> Self {
        PartLimit::times(1)
    }
}

impl PartLimit {
    /// Of all that other replicas pass on.
    pub fn of_replicas() -> PartLimit {
        PartLimit::times(TIMES_OF_REPLICAS)
    }

    fn times(times: usize) -> PartLimit {
        PartLimit {
            turns: Semaphore::new(times * PARTS_MAX),
            slow: Semaphore::new(times * SLOW_MAX),
        }
    }

    /// Runs the parts of one call; what came of each, in their order. Those that have had no turn by then are run all the same: they
    /// must see that it is too late.
    pub async fn all<T: Send>(&self, parts: Vec<Part<'_, T>>, by: Instant) -> Vec<T> {
        let mut parts = parts.into_iter().enumerate();
        let mut open = FuturesUnordered::new();
        let mut done = Vec::new();
        // One at a time, for whoever waits for several has as many turns. It stays where it is in the queue.
        let mut turn = Box::pin(self.turns.acquire());
        let mut late = Box::pin(sleep_until(by));
        loop {
            let turn = tokio::select! {
                biased;
                Some(one) = open.next() => {
                    done.push(one);
                    continue;
                }
                // (It is never closed.)
                given = &mut turn, if parts.len() > 0 => {
                    turn = Box::pin(self.turns.acquire());
                    given.ok()
                }
                () = &mut late, if parts.len() > 0 => {
                    late = Box::pin(sleep_until(by));
                    None
                }
                else => break,
            };
            if let Some((number, part)) = parts.next() {
                open.push(async move { (number, self.run(part, turn).await) });
            }
        }
        done.sort_unstable_by_key(|(number, _)| *number);
        done.into_iter().map(|(_, done)| done).collect()
    }

    /// Runs one of them, which has a turn.
    async fn run<T>(&self, part: Part<'_, T>, turn: Option<SemaphorePermit<'_>>) -> T {
        let mut part = part();
        tokio::select! {
            biased;
            done = &mut part => return done,
            () = sleep(SLOW) => {}
        }
        tokio::select! {
            biased;
            done = &mut part => done,
            slow = self.slow.acquire() => {
                drop(turn);
                let done = part.await;
                drop(slow);
                done
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    use futures_util::future::{Either, join_all, select};
    use tokio::time::timeout;

    use super::*;

    /// How many parts are made and not done, and the most there were.
    #[derive(Default)]
    struct Counted {
        made: AtomicUsize,
        most: AtomicUsize,
    }

    impl Counted {
        fn part(&self, takes: Duration) -> Part<'_, ()> {
            Box::new(move || {
                let made = self.made.fetch_add(1, Relaxed) + 1;
                self.most.fetch_max(made, Relaxed);
                Box::pin(async move {
                    sleep(takes).await;
                    self.made.fetch_sub(1, Relaxed);
                })
            })
        }
    }

    fn hanging<'a>() -> Part<'a, ()> {
        Box::new(|| Box::pin(pending()))
    }

    fn never() -> Instant {
        Instant::now() + Duration::from_secs(3_600)
    }

    #[tokio::test(start_paused = true)]
    async fn no_more_than_so_many_parts_are_made_while_they_are_quick() {
        let (limit, counted) = (PartLimit::default(), Counted::default());
        let calls = (0..3).map(|_| {
            let quick = (0..10 * PARTS_MAX).map(|_| counted.part(SLOW / 10));
            limit.all(quick.collect(), never())
        });
        for done in join_all(calls).await {
            assert_eq!(done.len(), 10 * PARTS_MAX);
        }
        assert_eq!(counted.most.load(Relaxed), PARTS_MAX);
    }

    #[tokio::test(start_paused = true)]
    async fn of_those_that_hang_there_are_bounded_many() {
        let (limit, counted) = (PartLimit::default(), Counted::default());
        let calls = (0..3).map(|_| {
            let hanging = (0..10 * SLOW_MAX).map(|_| counted.part(Duration::MAX));
            limit.all(hanging.collect(), never())
        });
        assert!(timeout(100 * SLOW, join_all(calls)).await.is_err());
        assert_eq!(counted.most.load(Relaxed), PARTS_MAX + SLOW_MAX);
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_with_few_parts_waits_for_none_with_many() {
        let (limit, counted) = (PartLimit::default(), Counted::default());
        let many = join_all((0..100).map(|_| {
            let many = (0..1_000).map(|_| counted.part(SLOW / 10));
            limit.all(many.collect(), never())
        }));
        let few = async {
            sleep(SLOW).await;
            let one = vec![counted.part(SLOW / 10)];
            timeout(SLOW, limit.all(one, never())).await.unwrap();
        };
        let ended = select(Box::pin(many), Box::pin(few)).await;
        assert!(matches!(ended, Either::Right(_)), "most is left to do");
    }

    #[tokio::test(start_paused = true)]
    async fn what_hangs_holds_up_no_other() {
        let (limit, counted) = (PartLimit::default(), Counted::default());
        let hangs = limit.all((0..SLOW_MAX).map(|_| hanging()).collect(), never());
        let other = async {
            let one = vec![counted.part(SLOW / 10)];
            timeout(10 * SLOW, limit.all(one, never())).await
        };
        let ended = select(Box::pin(hangs), Box::pin(other)).await;
        assert!(matches!(ended, Either::Right((Ok(_), _))));
    }

    #[tokio::test(start_paused = true)]
    async fn who_has_had_no_turn_is_run_once_it_is_too_late() {
        let (limit, counted) = (PartLimit::default(), Counted::default());
        let hanging = (0..PARTS_MAX + SLOW_MAX).map(|_| hanging());
        let hangs = limit.all(hanging.collect(), never());
        let by = Instant::now() + 20 * SLOW;
        let other = async {
            sleep(10 * SLOW).await;
            let parts = (0..100).map(|_| counted.part(Duration::ZERO));
            limit.all(parts.collect(), by).await;
        };
        select(Box::pin(hangs), Box::pin(other)).await;
        assert!((by..by + SLOW).contains(&Instant::now()));
    }

    #[tokio::test(start_paused = true)]
    async fn what_came_is_in_the_order_of_the_parts() {
        let part = |number: u64| -> Part<'_, u64> {
            Box::new(move || {
                Box::pin(async move {
                    sleep(Duration::from_millis(100 - number)).await;
                    number
                })
            })
        };
        let all = PartLimit::default();
        let all = all.all((0..100).map(part).collect(), never()).await;
        assert_eq!(all, (0..100).collect::<Vec<_>>());
    }
}
