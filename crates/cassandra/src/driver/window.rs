//! How many transactions are in flight at once. What comes in a flood waits here, in the order in which it came, and not in
//! the nodes, where it would time out, be sent again and be in the way of heartbeats. As TCP does with a path that it does not
//! know, the window halves when the nodes do not keep up, and grows again with every few answers.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::timeout;

use crate::fault::Fault;

/// What is not answered after this is overdue, and takes no room any longer: where only some nodes hang, what is for the
/// others does not wait behind what is for those.
const OVERDUE_AFTER: Duration = Duration::from_secs(1);
/// Nodes that do not keep up are never asked for less than this at once.
const LEAST: usize = 32;
/// More are not let go at once, whatever is asked for.
const MOST: usize = 65_536;
/// One more is let go after so many answers.
const GROWS_AFTER: usize = 4;

#[derive(Debug)]
pub(super) struct Window {
    room: Semaphore,
    size: Mutex<Size>,
    /// For how long there may be no room.
    within: Duration,
}

/// One of those in flight.
struct Pass<'a> {
    window: &'a Window,
    permit: Option<SemaphorePermit<'a>>,
}

impl Window {
    pub fn new(max: usize, within: Duration) -> Window {
        let size = Size::new(max.min(MOST));
        Window {
            room: Semaphore::new(size.now),
            size: Mutex::new(size),
            within,
        }
    }

    /// Begins a transaction once there is room. `was_slow` is asked in the end, whether it took longer than it should have.
    pub async fn one<T>(
        &self,
        transaction: impl Future<Output = Result<T, Fault>>,
        was_slow: impl FnOnce() -> bool,
    ) -> Result<T, Fault> {
        let pass = self.enter().await?;
        tokio::pin!(transaction);
        match timeout(OVERDUE_AFTER, &mut transaction).await {
            Ok(outcome) => {
                match was_slow() {
                    true => pass.overdue(),
                    false => pass.answered(),
                }
                outcome
            }
            Err(_) => {
                pass.overdue();
                transaction.await
            }
        }
    }

    async fn enter(&self) -> Result<Pass<'_>, Fault> {
        let not_begun = |why: &dyn std::fmt::Display| Fault::NotStarted(why.to_string());
        let permit = timeout(self.within, self.room.acquire()).await;
        let permit = permit.map_err(|_| not_begun(&"too many transactions are in flight"))?;
        // Nobody closes it.
        let permit = permit.map_err(|error| not_begun(&error))?;
        Ok(Pass {
            window: self,
            permit: Some(permit),
        })
    }

    fn size(&self) -> MutexGuard<'_, Size> {
        self.size.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pass<'_> {
    fn overdue(self) {
        self.window.size().overdue();
    }

    fn answered(self) {
        let more = self.window.size().answered();
        self.window.room.add_permits(more);
    }
}

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        let permit = self.permit.take();
        if self.window.size().gives_up_one() {
            permit.map(SemaphorePermit::forget);
        }
    }
}

#[derive(Debug)]
struct Size {
    least: usize,
    most: usize,
    now: usize,
    /// How many of those in flight give their room up when they end.
    over: usize,
    /// Answers since it grew or shrank last.
    answers: usize,
    /// How many of those that were in flight when it shrank last have not ended: what comes of them says nothing new.
    in_flight_then: usize,
}

impl Size {
    fn new(most: usize) -> Size {
        Size {
            least: LEAST.min(most),
            most,
            now: most,
            over: 0,
            answers: 0,
            in_flight_then: 0,
        }
    }

    /// One was answered; the result is how much room there is more.
    fn answered(&mut self) -> usize {
        self.in_flight_then = self.in_flight_then.saturating_sub(1);
        self.answers += 1;
        if self.now == self.most || self.answers < GROWS_AFTER {
            return 0;
        }
        self.answers = 0;
        self.now += 1;
        usize::from(!self.gives_up_one())
    }

    /// The nodes did not keep up with one.
    fn overdue(&mut self) {
        if self.in_flight_then > 0 {
            self.in_flight_then -= 1;
            return;
        }
        let smaller = (self.now / 2).max(self.least);
        self.in_flight_then = self.now - 1;
        self.over += self.now - smaller;
        self.now = smaller;
        self.answers = 0;
    }

    fn gives_up_one(&mut self) -> bool {
        let is_over = self.over > 0;
        self.over -= usize::from(is_over);
        is_over
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WITHIN: Duration = Duration::from_secs(6);

    async fn enter(window: &Window, many: usize) -> Vec<Pass<'_>> {
        let mut passes = Vec::new();
        for _ in 0..many {
            passes.push(window.enter().await.unwrap());
        }
        passes
    }

    #[tokio::test]
    async fn one_flood_halves_the_window_once() {
        let window = Window::new(256, WITHIN);
        for pass in enter(&window, 256).await {
            pass.overdue();
        }
        assert_eq!(window.size().now, 128);
        assert_eq!(window.room.available_permits(), 128);
        for (floods, left) in [(1, 64), (2, 32), (3, 32)] {
            for pass in enter(&window, window.room.available_permits()).await {
                pass.overdue();
            }
            assert_eq!(window.room.available_permits(), left, "after {floods} more");
        }
    }

    #[tokio::test]
    async fn what_is_in_flight_keeps_its_room_until_it_ends_and_answers_give_it_back() {
        let window = Window::new(64, WITHIN);
        let mut passes = enter(&window, 64).await;
        passes.pop().unwrap().overdue();
        // 63 are in flight, 32 may be.
        for _ in 0..31 {
            assert_eq!(window.room.available_permits(), 0);
            drop(passes.pop());
        }
        assert_eq!(window.room.available_permits(), 0);
        drop(passes);
        assert_eq!(window.room.available_permits(), 32);
        for _ in 0..32 * GROWS_AFTER {
            window.enter().await.unwrap().answered();
        }
        assert_eq!(window.room.available_permits(), 64);
        window.enter().await.unwrap().answered();
        assert_eq!(
            window.room.available_permits(),
            64,
            "no more than it may be"
        );
    }

    #[tokio::test]
    async fn a_small_window_stays_as_it_is() {
        let window = Window::new(3, WITHIN);
        for _ in 0..10 {
            window.enter().await.unwrap().overdue();
            assert_eq!(window.room.available_permits(), 3);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_hangs_makes_room_for_others_and_is_still_waited_for() {
        let window = Window::new(1, WITHIN);
        let hangs = async {
            tokio::time::sleep(Duration::from_secs(5)).await;
            Err::<(), _>(Fault::Unknown("late".to_owned()))
        };
        let began = tokio::time::Instant::now();
        let other = async {
            let done = window.one(async { Ok(()) }, || false).await;
            (done, began.elapsed())
        };
        let (hung, (other, after)) = tokio::join!(window.one(hangs, || false), other);
        assert_eq!(hung, Err(Fault::Unknown("late".to_owned())));
        assert_eq!(other, Ok(()));
        assert!(after < OVERDUE_AFTER * 2, "{after:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_waits_for_room_without_end() {
        let window = Window::new(1, WITHIN);
        let _taken = window.enter().await.unwrap();
        let refused = window.one(async { Ok(()) }, || false).await;
        assert!(matches!(refused, Err(Fault::NotStarted(_))), "{refused:?}");
    }
}
