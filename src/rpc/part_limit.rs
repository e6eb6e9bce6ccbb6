//! The turns of calls that have many parts.

use std::pin::pin;

use futures_util::StreamExt as _;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesOrdered;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout_at};

/// How many parts of the calls of one connection are worked at, at once. Some of them may hang until their call is answered: those
/// of keys whose home or store does not answer.
const PARTS_MAX: usize = 256;

/// A part of a call. It is made when its turn comes: each takes some 50 KiB from then on.
pub type Part<'a, T> = Box<dyn FnOnce() -> BoxFuture<'a, T> + Send + 'a>;

/// Bounds how many parts are worked at, at once. Calls take turns, one part each: a call with many parts holds up none with few.
pub struct PartLimit {
    turns: Semaphore,
}

impl Default for PartLimit {
    fn default() -> Self {
        PartLimit {
            turns: Semaphore::new(PARTS_MAX),
        }
    }
}

impl PartLimit {
    /// Of all that other replicas pass on, which comes from many connections.
    pub fn of_replicas() -> PartLimit {
        PartLimit {
            turns: Semaphore::new(4 * PARTS_MAX),
        }
    }

    /// Runs the parts of one call and returns their results in order. A part without a turn by `by` is run all the same: it
    /// finds that it is too late.
    pub async fn all<T: Send>(&self, parts: Vec<Part<'_, T>>, by: Instant) -> Vec<T> {
        let mut open = FuturesOrdered::new();
        let mut done = Vec::with_capacity(parts.len());
        // One turn is waited for at a time, since a call that waits for several would have as many.
        for part in parts {
            let mut turn = pin!(timeout_at(by, self.turns.acquire()));
            let turn = loop {
                tokio::select! {
                    biased;
                    turn = &mut turn => break turn,
                    Some(one) = open.next() => done.push(one),
                }
            };
            open.push_back(async move {
                let done = part().await;
                drop(turn);
                done
            });
        }
        done.extend(open.collect::<Vec<T>>().await);
        done
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
    use std::time::Duration;

    use futures_util::future::{Either, join_all, select};
    use tokio::time::{sleep, timeout};

    use super::*;

    const SHORT: Duration = Duration::from_millis(5);

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
    async fn no_more_than_so_many_parts_are_made_at_once() {
        let (limit, counted) = (PartLimit::default(), Counted::default());
        let calls = (0..3).map(|_| {
            let quick = (0..10 * PARTS_MAX).map(|_| counted.part(SHORT));
            limit.all(quick.collect(), never())
        });
        for done in join_all(calls).await {
            assert_eq!(done.len(), 10 * PARTS_MAX);
        }
        assert_eq!(counted.most.load(Relaxed), PARTS_MAX);
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_with_few_parts_waits_for_none_with_many() {
        let (limit, counted) = (PartLimit::default(), Counted::default());
        let many = join_all((0..100).map(|_| {
            let many = (0..1_000).map(|_| counted.part(SHORT));
            limit.all(many.collect(), never())
        }));
        let few = async {
            sleep(10 * SHORT).await;
            let one = vec![counted.part(SHORT)];
            // Each of the 100 calls before it has a turn first.
            timeout(10 * SHORT, limit.all(one, never())).await.unwrap();
        };
        let ended = select(Box::pin(many), Box::pin(few)).await;
        assert!(matches!(ended, Either::Right(_)), "most is left to do");
    }

    #[tokio::test(start_paused = true)]
    async fn what_hangs_holds_up_no_other_while_it_is_not_too_much() {
        let (limit, counted) = (PartLimit::default(), Counted::default());
        let hangs = limit.all((1..PARTS_MAX).map(|_| hanging()).collect(), never());
        let other = async {
            let one = vec![counted.part(SHORT)];
            timeout(10 * SHORT, limit.all(one, never())).await
        };
        let ended = select(Box::pin(hangs), Box::pin(other)).await;
        assert!(matches!(ended, Either::Right((Ok(_), _))));
    }

    #[tokio::test(start_paused = true)]
    async fn who_has_had_no_turn_is_run_once_it_is_too_late() {
        let (limit, counted) = (PartLimit::default(), Counted::default());
        let hanging = (0..PARTS_MAX).map(|_| hanging());
        let hangs = limit.all(hanging.collect(), never());
        let by = Instant::now() + 200 * SHORT;
        let other = async {
            sleep(100 * SHORT).await;
            let parts = (0..100).map(|_| counted.part(Duration::ZERO));
            limit.all(parts.collect(), by).await;
        };
        select(Box::pin(hangs), Box::pin(other)).await;
        assert!((by..by + SHORT).contains(&Instant::now()));
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
