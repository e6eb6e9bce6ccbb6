//! How many transactions are in flight at once. What comes in a flood waits here, in the order in which it came, and not in
//! the nodes, where it would time out, be sent again and be in the way of heartbeats.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fermata_guard::{AdaptiveLimit, BegunAt};
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout};

use crate::fault::Fault;

/// What is not answered after this part of what a request may take is late (1 s as shipped), and takes no room any longer:
/// where only some nodes hang, what is for the others does not wait behind what is for those.
const LATE_PART: u32 = 6;
/// How often it is said that transactions find no room.
const SAID_EVERY: Duration = Duration::from_secs(10);
/// Nodes that do not keep up are never asked for less than this at once.
const LEAST: usize = 32;
/// More are not let go at once, whatever is asked for.
const MOST: usize = 65_536;

/// So large a part of the room is for those that go first.
const FOR_FIRST_PART: usize = 8;
/// Where both wait, one of so many that are admitted is of the others.
const FIRST_IN_TURN: usize = 4;

/// Who goes first where there is no room for all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Order {
    /// Three times of four where others wait, too.
    First,
    /// In what is left, but for an eighth of the room.
    Later,
}

#[derive(Debug)]
pub(super) struct Window {
    inside: Mutex<Inside>,
    /// Times are counted from here.
    made: Instant,
    /// For how long there may be no room.
    within: Duration,
    said: Mutex<Option<Instant>>,
}

/// Who is in, and who waits for that.
#[derive(Debug)]
struct Inside {
    limit: AdaptiveLimit,
    in_flight: usize,
    first: VecDeque<oneshot::Sender<()>>,
    later: VecDeque<oneshot::Sender<()>>,
    /// How many were admitted first since one of the others was.
    in_turn: usize,
}

impl Inside {
    fn has_room(&self, order: Order) -> bool {
        let kept = match order {
            Order::First => 0,
            Order::Later => self.limit.now() / FOR_FIRST_PART,
        };
        self.in_flight < self.limit.now() - kept
    }

    /// Admits whom there is room for.
    fn admit(&mut self) {
        loop {
            let next = match (self.first.is_empty(), self.later.is_empty()) {
                _ if !self.has_room(Order::First) => return,
                // Their turn is not for want of the room that those who go first always fill.
                (false, false) if self.in_turn + 1 >= FIRST_IN_TURN => Order::Later,
                (false, _) => Order::First,
                (true, false) if self.has_room(Order::Later) => Order::Later,
                (true, _) => return,
            };
            let waiter = match next {
                Order::First => self.first.pop_front(),
                Order::Later => self.later.pop_front(),
            };
            // Who waits no more takes neither room nor turn.
            if waiter.is_some_and(|waiter| waiter.send(()).is_ok()) {
                self.in_flight += 1;
                self.in_turn = match next {
                    Order::First => self.in_turn + 1,
                    Order::Later => 0,
                };
            }
        }
    }
}

/// One that waits for room.
struct Waiter<'a> {
    window: &'a Window,
    admitted: oneshot::Receiver<()>,
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        self.admitted.close();
        // It was admitted, and did not come.
        if self.admitted.try_recv().is_ok() {
            self.window.leave();
        }
    }
}

/// One of those in flight.
struct Pass<'a> {
    window: &'a Window,
    begun: BegunAt,
}

impl Window {
    pub fn new(max: usize, within: Duration) -> Window {
        Window {
            inside: Mutex::new(Inside {
                limit: AdaptiveLimit::new(LEAST, max.min(MOST), within / LATE_PART),
                in_flight: 0,
                first: VecDeque::new(),
                later: VecDeque::new(),
                in_turn: 0,
            }),
            made: Instant::now(),
            within,
            said: Mutex::default(),
        }
    }

    /// Begins a transaction once there is room. `was_slow` is asked in the end, whether it took longer than it should have.
    pub async fn one<T>(
        &self,
        order: Order,
        transaction: impl Future<Output = Result<T, Fault>>,
        was_slow: impl FnOnce() -> bool,
    ) -> Result<T, Fault> {
        let pass = self.enter(order).await?;
        tokio::pin!(transaction);
        match timeout(self.within / LATE_PART, &mut transaction).await {
            Ok(outcome) => {
                match was_slow() {
                    true => pass.late(),
                    false => pass.ended(outcome.is_ok()),
                }
                outcome
            }
            Err(_) => {
                pass.late();
                transaction.await
            }
        }
    }

    async fn enter(&self, order: Order) -> Result<Pass<'_>, Fault> {
        let admitted = {
            let mut inside = self.inside();
            if inside.has_room(order) {
                inside.in_flight += 1;
                return Ok(self.pass(inside.in_flight - 1));
            }
            let (admit, admitted) = oneshot::channel();
            match order {
                Order::First => inside.first.push_back(admit),
                Order::Later => inside.later.push_back(admit),
            }
            admitted
        };
        let mut waiter = Waiter {
            window: self,
            admitted,
        };
        match timeout(self.within, &mut waiter.admitted).await {
            Ok(Ok(())) => {
                let in_flight = self.inside().in_flight;
                Ok(self.pass(in_flight - 1))
            }
            // Nobody gives it up but with the window.
            Ok(Err(_)) | Err(_) => {
                self.say_full();
                let why = "too many transactions are in flight";
                Err(Fault::NotStarted(why.to_owned()))
            }
        }
    }

    fn pass(&self, ahead: usize) -> Pass<'_> {
        Pass {
            window: self,
            begun: BegunAt {
                at: self.made.elapsed(),
                ahead,
            },
        }
    }

    fn say_full(&self) {
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        if said.is_none_or(|at| at.elapsed() >= SAID_EVERY) {
            *said = Some(Instant::now());
            let inside = self.inside();
            tracing::warn!(
                in_flight = inside.limit.now(),
                most = inside.limit.most(),
                waited = ?self.within,
                "Cassandra does not keep up: transactions were not begun, since too many are in flight"
            );
        }
    }

    /// One of those in flight has ended.
    fn leave(&self) {
        let mut inside = self.inside();
        inside.in_flight -= 1;
        inside.admit();
    }

    fn inside(&self) -> MutexGuard<'_, Inside> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pass<'_> {
    fn late(self) {
        let now = self.window.made.elapsed();
        let inside = &mut *self.window.inside();
        inside.limit.late(self.begun, now, inside.in_flight);
    }

    /// Without a result it says nothing of how fast the nodes can be.
    fn ended(self, has_result: bool) {
        let now = self.window.made.elapsed();
        let inside = &mut *self.window.inside();
        let limit = &mut inside.limit;
        limit.ended(self.begun, now, inside.in_flight, has_result);
    }
}

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        self.window.leave();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WITHIN: Duration = Duration::from_secs(6);

    async fn enter(window: &Window, many: usize) -> Vec<Pass<'_>> {
        let mut passes = Vec::new();
        for _ in 0..many {
            passes.push(window.enter(Order::First).await.unwrap());
        }
        passes
    }

    /// For how many more there is room.
    fn room(window: &Window) -> usize {
        let inside = window.inside();
        inside.limit.now().saturating_sub(inside.in_flight)
    }

    #[tokio::test]
    async fn one_flood_halves_the_window_once() {
        let window = Window::new(256, WITHIN);
        for pass in enter(&window, 256).await.into_iter().rev() {
            pass.late();
        }
        // Seven had left before the limit shrank.
        assert_eq!(window.inside().limit.now(), 124);
        assert_eq!(room(&window), 124);
        for (floods, left) in [(1, 58), (2, 32), (3, 32)] {
            for pass in enter(&window, room(&window)).await.into_iter().rev() {
                pass.late();
            }
            assert_eq!(room(&window), left, "after {floods} more");
        }
    }

    #[tokio::test]
    async fn what_is_in_flight_keeps_its_room_until_it_ends_and_answers_give_it_back() {
        let window = Window::new(64, WITHIN);
        let mut passes = enter(&window, 64).await;
        for _ in 0..8 {
            passes.pop().unwrap().late();
        }
        // 56 are in flight, 32 may be.
        for _ in 0..24 {
            assert_eq!(room(&window), 0);
            drop(passes.pop());
        }
        assert_eq!(room(&window), 0);
        drop(passes);
        assert_eq!(room(&window), 32);
        for _ in 0..32 * 4 {
            window.enter(Order::First).await.unwrap().ended(true);
        }
        assert_eq!(room(&window), 64);
        window.enter(Order::First).await.unwrap().ended(true);
        assert_eq!(room(&window), 64, "no more than it may be");
    }

    #[tokio::test]
    async fn a_small_window_stays_as_it_is() {
        let window = Window::new(3, WITHIN);
        for _ in 0..10 {
            window.enter(Order::First).await.unwrap().late();
            assert_eq!(room(&window), 3);
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
            let done = window.one(Order::First, async { Ok(()) }, || false).await;
            (done, began.elapsed())
        };
        let (hung, (other, after)) = tokio::join!(window.one(Order::First, hangs, || false), other);
        assert_eq!(hung, Err(Fault::Unknown("late".to_owned())));
        assert_eq!(other, Ok(()));
        assert!(after < WITHIN / 3, "{after:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_waits_for_room_without_end() {
        let window = Window::new(1, WITHIN);
        let _taken = window.enter(Order::First).await.unwrap();
        let refused = window.one(Order::First, async { Ok(()) }, || false).await;
        assert!(matches!(refused, Err(Fault::NotStarted(_))), "{refused:?}");
    }

    /// In which order they are admitted where one leaves after the other, by their numbers.
    async fn order_of(orders: &[Order]) -> Vec<usize> {
        let window = Window::new(16, WITHIN);
        let mut passes = enter(&window, 16).await;
        let came = Mutex::new(Vec::new());
        let waiters = orders.iter().enumerate().map(|(number, order)| {
            let (window, came) = (&window, &came);
            async move {
                let pass = window.enter(*order).await.unwrap();
                came.lock().unwrap().push(number);
                pass
            }
        });
        let leave = async {
            while let Some(pass) = passes.pop() {
                tokio::task::yield_now().await;
                drop(pass);
            }
        };
        tokio::join!(futures_util::future::join_all(waiters), leave);
        came.into_inner().unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn who_goes_first_holds_up_nobody_for_good() {
        let orders = [[Order::Later; 2].as_slice(), &[Order::First; 6]].concat();
        assert_eq!(order_of(&orders).await, [2, 3, 4, 0, 5, 6, 7, 1]);
    }

    #[tokio::test(start_paused = true)]
    async fn who_goes_first_finds_room_that_others_do_not_take() {
        let order = order_of(&[Order::Later, Order::Later, Order::First, Order::First]).await;
        assert_eq!(order, [2, 3, 0, 1]);
        let window = Window::new(64, WITHIN);
        let mut passes = Vec::new();
        for _ in 0..56 {
            passes.push(window.enter(Order::Later).await.unwrap());
        }
        let one_more = timeout(WITHIN / 2, window.enter(Order::Later)).await;
        assert!(
            one_more.is_err(),
            "it takes the room of those that are waited for"
        );
        passes.extend(enter(&window, 8).await);
        assert_eq!(room(&window), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn who_is_admitted_and_does_not_come_takes_no_room() {
        let window = Window::new(1, WITHIN);
        let pass = enter(&window, 1).await;
        let mut waiter = Box::pin(window.enter(Order::First));
        assert!(futures_util::poll!(&mut waiter).is_pending());
        drop(pass);
        assert_eq!(room(&window), 0, "it was admitted");
        drop(waiter);
        assert_eq!(room(&window), 1);
    }
}
