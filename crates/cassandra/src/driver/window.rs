//! How many transactions are in flight at once. What comes in a flood waits here, in the order in which it came, and not in
//! the nodes, where it would time out, be sent again and be in the way of heartbeats. As TCP does with a path that it does not
//! know, the window halves when answers come late, and grows again with every few that do not.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Instant, timeout};

use crate::fault::Fault;

/// What is not answered after this part of what a request may take is late (1 s as shipped), and takes no room any longer:
/// where only some nodes hang, what is for the others does not wait behind what is for those.
const LATE_PART: u32 = 6;
/// Sooner, what takes so many times as long as the fastest one lately is late, since it waited in the nodes …
const TIMES_THE_FASTEST: u32 = 4;
/// … but not what any pause of a node makes slow.
const LATE_AFTER_LEAST: Duration = Duration::from_millis(100);
/// The fastest of so many is remembered, and of those since.
const FASTEST_OF: usize = 1_024;
/// How often it is said that transactions find no room.
const SAID_EVERY: Duration = Duration::from_secs(10);
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
    said: Mutex<Option<Instant>>,
}

/// One of those in flight.
struct Pass<'a> {
    window: &'a Window,
    permit: Option<SemaphorePermit<'a>>,
}

impl Window {
    pub fn new(max: usize, within: Duration) -> Window {
        let size = Size::new(max.min(MOST), within / LATE_PART);
        Window {
            room: Semaphore::new(size.now),
            size: Mutex::new(size),
            within,
            said: Mutex::default(),
        }
    }

    /// Begins a transaction once there is room. `was_slow` is asked in the end, whether it took longer than it should have.
    pub async fn one<T>(
        &self,
        transaction: impl Future<Output = Result<T, Fault>>,
        was_slow: impl FnOnce() -> bool,
    ) -> Result<T, Fault> {
        let pass = self.enter().await?;
        let begun = Instant::now();
        tokio::pin!(transaction);
        match timeout(self.within / LATE_PART, &mut transaction).await {
            Ok(outcome) => {
                match (was_slow(), &outcome) {
                    (true, _) => pass.late(),
                    (false, Ok(_)) => pass.answered(begun.elapsed()),
                    (false, Err(_)) => pass.failed(begun.elapsed()),
                }
                outcome
            }
            Err(_) => {
                pass.late();
                transaction.await
            }
        }
    }

    async fn enter(&self) -> Result<Pass<'_>, Fault> {
        let not_begun = |why: &dyn std::fmt::Display| Fault::NotStarted(why.to_string());
        let permit = timeout(self.within, self.room.acquire()).await;
        let permit = permit.map_err(|_| {
            self.say_full();
            not_begun(&"too many transactions are in flight")
        })?;
        // Nobody closes it.
        let permit = permit.map_err(|error| not_begun(&error))?;
        Ok(Pass {
            window: self,
            permit: Some(permit),
        })
    }

    fn say_full(&self) {
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        if said.is_none_or(|at| at.elapsed() >= SAID_EVERY) {
            *said = Some(Instant::now());
            let Size { now, most, .. } = *self.size();
            tracing::warn!(
                in_flight = now,
                most,
                waited = ?self.within,
                "Cassandra does not keep up: transactions were not begun, since too many are in flight"
            );
        }
    }

    fn size(&self) -> MutexGuard<'_, Size> {
        self.size.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pass<'_> {
    fn late(self) {
        let Window { room, .. } = self.window;
        let mut size = self.window.size();
        size.late(room.available_permits());
        // Room that nobody has is given up at once.
        size.over -= room.forget_permits(size.over);
    }

    /// Without a result: late or not, it says nothing of how fast the nodes are.
    fn failed(self, after: Duration) {
        let is_late = after > self.window.size().late_after();
        if is_late {
            self.late();
        }
    }

    fn answered(self, after: Duration) {
        let more = self.window.size().answered(after);
        match more {
            Some(more) => self.window.room.add_permits(more),
            None => self.late(),
        }
    }
}

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        if let Some(permit) = self.permit.take()
            && self.window.size().gives_up_one()
        {
            permit.forget();
        }
    }
}

#[derive(Debug)]
struct Size {
    /// What is late, however far the nodes are.
    late_after: Duration,
    least: usize,
    most: usize,
    now: usize,
    /// How many of those in flight give their room up when they end.
    over: usize,
    /// Answers since it grew or shrank last.
    answers: usize,
    /// How many of those that were in flight when it shrank last have not ended: what comes of them says nothing new.
    in_flight_then: usize,
    fastest: Fastest,
}

/// How long the fastest answer took lately: none waited behind others less.
#[derive(Debug, Default)]
struct Fastest {
    before: Option<Duration>,
    now: Option<Duration>,
    answers: usize,
}

impl Fastest {
    fn note(&mut self, after: Duration) {
        self.now = Some(self.now.map_or(after, |fastest| fastest.min(after)));
        self.answers += 1;
        if self.answers == FASTEST_OF {
            self.answers = 0;
            self.before = self.now.take();
        }
    }

    fn so_far(&self) -> Option<Duration> {
        self.before.into_iter().chain(self.now).min()
    }
}

impl Size {
    fn new(most: usize, late_after: Duration) -> Size {
        Size {
            late_after,
            least: LEAST.min(most),
            most,
            now: most,
            over: 0,
            answers: 0,
            in_flight_then: 0,
            fastest: Fastest::default(),
        }
    }

    fn late_after(&self) -> Duration {
        let fastest = self.fastest.so_far().unwrap_or(self.late_after);
        let late = fastest.saturating_mul(TIMES_THE_FASTEST);
        late.max(LATE_AFTER_LEAST).min(self.late_after)
    }

    /// One was answered. The result is how much room there is more; `None` if it was late.
    fn answered(&mut self, after: Duration) -> Option<usize> {
        self.fastest.note(after);
        if after > self.late_after() {
            return None;
        }
        self.in_flight_then = self.in_flight_then.saturating_sub(1);
        self.answers += 1;
        if self.now == self.most || self.answers < GROWS_AFTER {
            return Some(0);
        }
        self.answers = 0;
        self.now += 1;
        Some(usize::from(!self.gives_up_one()))
    }

    /// The nodes did not keep up with one, while so much room was idle.
    fn late(&mut self, idle: usize) {
        if self.in_flight_then > 0 {
            self.in_flight_then -= 1;
            return;
        }
        let smaller = (self.now / 2).max(self.least);
        self.in_flight_then = (self.now + self.over).saturating_sub(idle + 1);
        self.over += self.now - smaller;
        self.now = smaller;
        self.answers = 0;
    }

    fn gives_up_one(&mut self) -> bool {
        let gives_up = self.over > 0;
        self.over -= usize::from(gives_up);
        gives_up
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WITHIN: Duration = Duration::from_secs(6);
    const SOON: Duration = Duration::from_millis(5);

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
            pass.late();
        }
        assert_eq!(window.size().now, 128);
        assert_eq!(window.room.available_permits(), 128);
        for (floods, left) in [(1, 64), (2, 32), (3, 32)] {
            for pass in enter(&window, window.room.available_permits()).await {
                pass.late();
            }
            assert_eq!(window.room.available_permits(), left, "after {floods} more");
        }
    }

    #[tokio::test]
    async fn what_is_in_flight_keeps_its_room_until_it_ends_and_answers_give_it_back() {
        let window = Window::new(64, WITHIN);
        let mut passes = enter(&window, 64).await;
        passes.pop().unwrap().late();
        // 63 are in flight, 32 may be.
        for _ in 0..31 {
            assert_eq!(window.room.available_permits(), 0);
            drop(passes.pop());
        }
        assert_eq!(window.room.available_permits(), 0);
        drop(passes);
        assert_eq!(window.room.available_permits(), 32);
        for _ in 0..32 * GROWS_AFTER {
            window.enter().await.unwrap().answered(SOON);
        }
        assert_eq!(window.room.available_permits(), 64);
        window.enter().await.unwrap().answered(SOON);
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
            window.enter().await.unwrap().late();
            assert_eq!(window.room.available_permits(), 3);
        }
    }

    #[test]
    fn what_is_late_depends_on_how_far_the_nodes_are() {
        let ms = Duration::from_millis;
        for (usual, late) in [(5, 101), (60, 241), (400, 1_001)] {
            let mut size = Size::new(256, ms(1_000));
            for _ in 0..2 * FASTEST_OF {
                assert_eq!(size.answered(ms(usual)), Some(0));
            }
            assert_eq!(size.answered(ms(late - 1)), Some(0), "{usual} ms");
            assert_eq!(size.answered(ms(late)), None, "{usual} ms");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_is_late_while_the_others_are_idle_halves_the_window_at_once() {
        let window = Window::new(256, WITHIN);
        for after in [SOON, Duration::from_millis(500)] {
            let answered = async {
                tokio::time::sleep(after).await;
                Ok(())
            };
            window.one(answered, || false).await.unwrap();
        }
        assert_eq!(window.room.available_permits(), 128);
        // What failed at once says nothing of the nodes; what failed late says that they do not keep up.
        for (after, left) in [(SOON, 128), (Duration::from_millis(500), 64)] {
            let failed = async {
                tokio::time::sleep(after).await;
                Err::<(), _>(Fault::Unknown("refused".to_owned()))
            };
            window.one(failed, || false).await.unwrap_err();
            assert_eq!(window.room.available_permits(), left, "{after:?}");
        }
    }

    #[test]
    fn the_fastest_is_forgotten_when_the_nodes_are_farther_than_they_were() {
        let mut fastest = Fastest::default();
        fastest.note(SOON);
        for _ in 0..2 * FASTEST_OF {
            fastest.note(Duration::from_millis(200));
        }
        assert_eq!(fastest.so_far(), Some(Duration::from_millis(200)));
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
        assert!(after < WITHIN / 3, "{after:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_waits_for_room_without_end() {
        let window = Window::new(1, WITHIN);
        let _taken = window.enter().await.unwrap();
        let refused = window.one(async { Ok(()) }, || false).await;
        assert!(matches!(refused, Err(Fault::NotStarted(_))), "{refused:?}");
    }
}
