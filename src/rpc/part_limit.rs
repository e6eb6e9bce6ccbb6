//! How a call that has many parts works at them.

use std::pin::pin;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::sleep;

/// How many parts of one call are begun at once …
const PARTS_MAX: usize = 64;
/// … unless those before take longer than this.
const SLOW: Duration = Duration::from_millis(50);

/// Bounds how many parts of one call are worked at, at once. Those that take long make room for others, so that
/// what hangs holds up nothing else; then there may be as many as the call has parts.
pub struct PartLimit(Semaphore);

impl Default for PartLimit {
    fn default() -> Self {
        PartLimit(Semaphore::new(PARTS_MAX))
    }
}

impl PartLimit {
    /// Runs one of them, when there is room.
    pub async fn run<T>(&self, part: impl Future<Output = T>) -> T {
        // (It is never closed.)
        let permit = self.0.acquire().await.ok();
        let mut part = pin!(part);
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
    use std::cell::Cell;
    use std::future::pending;

    use futures_util::future::join_all;
    use tokio::time::timeout;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn no_more_than_so_many_parts_are_worked_at_while_they_are_quick() {
        let (limit, open, most) = (PartLimit::default(), Cell::new(0), Cell::new(0));
        let quick = (0..10 * PARTS_MAX).map(|_| {
            limit.run(async {
                open.set(open.get() + 1);
                most.set(most.get().max(open.get()));
                sleep(SLOW / 10).await;
                open.set(open.get() - 1);
            })
        });
        join_all(quick).await;
        assert_eq!(most.get(), PARTS_MAX);
    }

    #[tokio::test(start_paused = true)]
    async fn what_hangs_holds_up_no_other() {
        let limit = PartLimit::default();
        let hanging = join_all((0..2 * PARTS_MAX).map(|_| limit.run(pending::<()>())));
        let other = async {
            // Behind all of them.
            tokio::task::yield_now().await;
            limit.run(async { 7 }).await
        };
        let done = tokio::select! {
            biased;
            _ = hanging => None,
            done = timeout(10 * SLOW, other) => done.ok(),
        };
        assert_eq!(done, Some(7));
    }
}
