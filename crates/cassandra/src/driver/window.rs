//! How many transactions are in flight at once. What comes in a flood waits here, in the order in which it came, and not in
//! the nodes, where it would time out, be sent again and be in the way of heartbeats. As TCP does with a path that it does not
//! know, the window halves when the nodes do not keep up, and grows again with every few answers.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::{Semaphore, SemaphorePermit};

use crate::fault::Fault;

/// Nodes that do not keep up are never asked for less than this at once: where only some of them hang, what is for the
/// others must not wait behind what is for those.
const LEAST: usize = 32;
/// More are not let go at once, whatever is asked for.
const MOST: usize = 65_536;
/// One more is let go after so many answers.
const GROWS_AFTER: usize = 4;

#[derive(Debug)]
pub(super) struct Window {
    room: Semaphore,
    size: Mutex<Size>,
}

/// One of those in flight.
pub(super) struct Pass<'a> {
    window: &'a Window,
    permit: Option<SemaphorePermit<'a>>,
}

impl Window {
    pub fn new(max: usize) -> Window {
        let size = Size::new(max.min(MOST));
        Window {
            room: Semaphore::new(size.now),
            size: Mutex::new(size),
        }
    }

    /// Waits for room.
    pub async fn enter(&self) -> Result<Pass<'_>, Fault> {
        // Nobody closes it. Nothing was sent yet.
        let permit = self.room.acquire().await;
        let permit = permit.map_err(|error| Fault::NotStarted(error.to_string()))?;
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
    /// What came of it.
    pub fn ended<T>(self, outcome: &Result<T, Fault>) {
        let mut size = self.window.size();
        match outcome {
            Ok(_) => self.window.room.add_permits(size.answered()),
            Err(Fault::Unknown(_)) => size.unanswered(),
            Err(Fault::NotStarted(_) | Fault::Refused(_)) => {}
        }
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
    fn unanswered(&mut self) {
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

    fn unknown() -> Result<(), Fault> {
        Err(Fault::Unknown("late".to_owned()))
    }

    async fn enter(window: &Window, many: usize) -> Vec<Pass<'_>> {
        let mut passes = Vec::new();
        for _ in 0..many {
            passes.push(window.enter().await.unwrap());
        }
        passes
    }

    #[tokio::test]
    async fn one_flood_halves_the_window_once() {
        let window = Window::new(256);
        for pass in enter(&window, 256).await {
            pass.ended(&unknown());
        }
        assert_eq!(window.size().now, 128);
        assert_eq!(window.room.available_permits(), 128);
        for (floods, left) in [(1, 64), (2, 32), (3, 32)] {
            for pass in enter(&window, window.room.available_permits()).await {
                pass.ended(&unknown());
            }
            assert_eq!(window.room.available_permits(), left, "after {floods} more");
        }
    }

    #[tokio::test]
    async fn what_is_in_flight_keeps_its_room_until_it_ends_and_answers_give_it_back() {
        let window = Window::new(64);
        let mut passes = enter(&window, 64).await;
        passes.pop().unwrap().ended(&unknown());
        // 63 are in flight, 32 may be.
        for _ in 0..31 {
            assert_eq!(window.room.available_permits(), 0);
            drop(passes.pop());
        }
        assert_eq!(window.room.available_permits(), 0);
        drop(passes);
        assert_eq!(window.room.available_permits(), 32);
        for _ in 0..32 * GROWS_AFTER {
            window.enter().await.unwrap().ended(&Ok(()));
        }
        assert_eq!(window.room.available_permits(), 64);
        window.enter().await.unwrap().ended(&Ok(()));
        assert_eq!(
            window.room.available_permits(),
            64,
            "no more than it may be"
        );
    }

    #[tokio::test]
    async fn a_small_window_stays_as_it_is() {
        let window = Window::new(3);
        for _ in 0..10 {
            window.enter().await.unwrap().ended(&unknown());
            assert_eq!(window.room.available_permits(), 3);
        }
    }
}
