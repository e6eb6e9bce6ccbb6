//! The limit of transactions in flight. Further transactions wait here, first come, first served. In the nodes they would time
//! out, be sent again and delay heartbeats.

use std::collections::VecDeque;
use std::time::Duration;

use fermata_guard::{AdaptiveLimit, BegunAt};
use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout};

use crate::fault::Fault;

/// A transaction without an answer after this part of the request timeout is late (1 s as shipped), and takes no room any
/// longer: while only some nodes hang, transactions of the others do not wait behind it.
const LATE_PART: u32 = 6;
/// The pause between two warnings that transactions find no room.
const WARNED_EVERY: Duration = Duration::from_secs(10);
/// The limit never falls below this: so few transactions do not overload three nodes.
const LEAST: usize = 32;

/// Who goes first where there is no room for all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Order {
    /// Before the others.
    First,
    /// Each second turn, where both wait.
    Later,
}

#[derive(Debug)]
pub(super) struct Window {
    inside: Mutex<Inside>,
    /// Times are counted from here.
    made: Instant,
    /// How long a transaction may wait for room.
    within: Duration,
    warned: Mutex<Option<Instant>>,
}

/// The transactions in flight, and those that wait.
#[derive(Debug)]
struct Inside {
    limit: AdaptiveLimit,
    in_flight: usize,
    first: VecDeque<oneshot::Sender<()>>,
    later: VecDeque<oneshot::Sender<()>>,
    /// Those of [`Order::Later`] have the next turn.
    is_turn_of_later: bool,
}

impl Inside {
    fn has_room(&self) -> bool {
        self.in_flight < self.limit.now()
    }

    /// Admits waiting transactions while there is room.
    fn admit(&mut self) {
        while self.has_room() {
            let (queue, other) = match self.is_turn_of_later {
                false => (&mut self.first, &mut self.later),
                true => (&mut self.later, &mut self.first),
            };
            let Some(waiter) = queue.pop_front().or_else(|| other.pop_front()) else {
                return;
            };
            // A waiter that gave up takes neither room nor turn.
            if waiter.send(()).is_ok() {
                self.in_flight += 1;
                self.is_turn_of_later = !self.is_turn_of_later;
            }
        }
    }
}

/// A transaction that waits for room.
struct Waiter<'a> {
    window: &'a Window,
    admitted: oneshot::Receiver<()>,
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        self.admitted.close();
        // It was admitted, and its caller had gone.
        if self.admitted.try_recv().is_ok() {
            self.window.leave();
        }
    }
}

/// A transaction in flight.
struct Pass<'a> {
    window: &'a Window,
    begun: BegunAt,
}

impl Window {
    pub fn new(max: usize, within: Duration) -> Window {
        Window {
            inside: Mutex::new(Inside {
                limit: AdaptiveLimit::new(LEAST, max, within / LATE_PART),
                in_flight: 0,
                first: VecDeque::new(),
                later: VecDeque::new(),
                is_turn_of_later: false,
            }),
            made: Instant::now(),
            within,
            warned: Mutex::default(),
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
            let mut inside = self.inside.lock();
            if inside.has_room() {
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
                let in_flight = self.inside.lock().in_flight;
                Ok(self.pass(in_flight - 1))
            }
            // The sender is dropped with the window only.
            Ok(Err(_)) | Err(_) => {
                self.warn_full();
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

    fn warn_full(&self) {
        let mut warned = self.warned.lock();
        if warned.is_none_or(|at| at.elapsed() >= WARNED_EVERY) {
            *warned = Some(Instant::now());
            let inside = self.inside.lock();
            tracing::warn!(
                limit = inside.limit.now(),
                most = inside.limit.most(),
                waited = ?self.within,
                "Cassandra is overloaded: transactions above the limit waited and were not begun"
            );
        }
    }

    /// A transaction in flight has ended.
    fn leave(&self) {
        let mut inside = self.inside.lock();
        inside.in_flight -= 1;
        inside.admit();
    }
}

impl Pass<'_> {
    fn late(self) {
        let now = self.window.made.elapsed();
        let inside = &mut *self.window.inside.lock();
        inside.limit.late(self.begun, now, inside.in_flight);
    }

    /// A transaction without a result does not tell how fast the nodes can be.
    fn ended(self, has_result: bool) {
        let now = self.window.made.elapsed();
        let inside = &mut *self.window.inside.lock();
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
        let inside = window.inside.lock();
        inside.limit.now().saturating_sub(inside.in_flight)
    }

    #[tokio::test]
    async fn one_flood_halves_the_window_once() {
        let window = Window::new(256, WITHIN);
        for pass in enter(&window, 256).await.into_iter().rev() {
            pass.late();
        }
        // Seven had left before the limit shrank.
        assert_eq!(window.inside.lock().limit.now(), 124);
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
                came.lock().push(number);
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
        came.into_inner()
    }

    #[tokio::test(start_paused = true)]
    async fn who_goes_first_holds_up_nobody_for_good() {
        let orders = [[Order::Later; 2].as_slice(), &[Order::First; 6]].concat();
        assert_eq!(order_of(&orders).await, [2, 0, 3, 1, 4, 5, 6, 7]);
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
