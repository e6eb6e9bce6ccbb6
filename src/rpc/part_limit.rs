//! How a call that has many parts works at them.

use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use tokio::sync::Semaphore;
use tokio::time::sleep;

/// How many parts of one call are begun at once …
const PARTS_MAX: usize = 64;
/// … unless those before take longer than this: then as many …
const SLOW: Duration = Duration::from_millis(50);
/// … as this.
const OPEN_MAX: usize = 4 * PARTS_MAX;

/// A part of a call. It is made when it is begun: each takes some 50 KiB from then on.
pub type Part<'a, T> = Box<dyn FnOnce() -> BoxFuture<'a, T> + Send + 'a>;

/// Bounds how many parts of one call are worked at, at once. Those that take long make room for others, so that
/// what hangs does not hold up others soon.
pub struct PartLimit(Semaphore);

impl Default for PartLimit {
    fn default() -> Self {
        PartLimit(Semaphore::new(PARTS_MAX))
    }
}

impl PartLimit {
    /// Runs them all; what came of each, in their order.
    pub async fn all<'a, T: Send + 'a>(
        &self,
        parts: impl Iterator<Item = Part<'a, T>> + Send,
    ) -> Vec<T> {
        let mut parts = parts.enumerate();
        let mut open = FuturesUnordered::new();
        let mut done = Vec::new();
        loop {
            while open.len() < OPEN_MAX
                && let Some((number, part)) = parts.next()
            {
                open.push(async move { (number, self.run(part).await) });
            }
            match open.next().await {
                Some(one) => done.push(one),
                None => break,
            }
        }
        done.sort_unstable_by_key(|(number, _)| *number);
        done.into_iter().map(|(_, done)| done).collect()
    }

    /// Runs one of them, when there is room.
    async fn run<T>(&self, part: Part<'_, T>) -> T {
        // (It is never closed.)
        let permit = self.0.acquire().await.ok();
        let mut part = part();
        tokio::select! {
            biased;
            done = &mut part => return done,
            () = sleep(SLOW) => {}
        }
        drop(permit);
        part.await
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

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

    #[tokio::test(start_paused = true)]
    async fn no_more_than_so_many_parts_are_made_while_they_are_quick() {
        let (limit, counted) = (PartLimit::default(), Counted::default());
        let quick = (0..10 * PARTS_MAX).map(|_| counted.part(SLOW / 10));
        assert_eq!(limit.all(quick).await.len(), 10 * PARTS_MAX);
        assert_eq!(counted.most.load(Relaxed), PARTS_MAX);
    }

    #[tokio::test(start_paused = true)]
    async fn of_those_that_hang_there_are_bounded_many() {
        let (limit, counted) = (PartLimit::default(), Counted::default());
        let hanging = (0..10 * OPEN_MAX).map(|_| counted.part(Duration::MAX));
        assert!(timeout(100 * SLOW, limit.all(hanging)).await.is_err());
        assert_eq!(counted.most.load(Relaxed), OPEN_MAX);
    }

    #[tokio::test(start_paused = true)]
    async fn what_hangs_holds_up_no_other() {
        let limit = PartLimit::default();
        let (came, mut comes) = tokio::sync::mpsc::unbounded_channel();
        let part = |number: usize| -> Part<'_, ()> {
            let came = came.clone();
            Box::new(move || {
                Box::pin(async move {
                    if number < 2 * PARTS_MAX {
                        pending::<()>().await;
                    }
                    let _ = came.send(number);
                })
            })
        };
        let all = limit.all((0..=2 * PARTS_MAX).map(part));
        assert!(timeout(10 * SLOW, all).await.is_err());
        assert_eq!(comes.recv().await, Some(2 * PARTS_MAX));
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
        let all = all.all((0..100).map(part)).await;
        assert_eq!(all, (0..100).collect::<Vec<_>>());
    }
}
