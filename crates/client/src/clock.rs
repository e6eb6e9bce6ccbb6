//! The clock for validity. It continues while the machine is suspended.
//!
//! `std::time::Instant` and Tokio's timers stop during a suspend: a lock with ten seconds of validity would still look valid
//! after an hour of suspend.

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

/// The longest sleep before the clock is read again: Tokio's timers do not count a suspend.
const SLEEP_MAX: Duration = Duration::from_millis(500);

/// A point in time on a [`Clock`]. Means nothing on another machine, or after a reboot.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Moment(Duration);

impl Moment {
    /// The point this long after the clock's zero.
    pub const fn from_zero(since: Duration) -> Moment {
        Moment(since)
    }

    /// The moment this much later.
    #[must_use]
    pub fn after(self, span: Duration) -> Moment {
        Moment(self.0.saturating_add(span))
    }

    /// The moment this much earlier; the clock's zero if there is none.
    #[must_use]
    pub fn before(self, span: Duration) -> Moment {
        Moment(self.0.saturating_sub(span))
    }

    /// The time from this moment to `later`; zero if `later` is past.
    pub fn until(self, later: Moment) -> Duration {
        later.0.saturating_sub(self.0)
    }
}

/// The source of time: an argument, so that tests can use their own.
pub trait Clock: Send + Sync + 'static {
    /// Now.
    fn now(&self) -> Moment;
}

/// The machine's clock since boot, suspend included.
#[derive(Clone, Copy, Default, Debug)]
pub struct BootClock;

impl Clock for BootClock {
    fn now(&self) -> Moment {
        #[cfg(any(target_os = "linux", target_os = "android"))]
        let id = ClockId::CLOCK_BOOTTIME;
        // Counts suspend as well on the other systems that have it.
        #[cfg(not(any(target_os = "linux", target_os = "android")))]
        let id = ClockId::CLOCK_MONOTONIC;
        match clock_gettime(id) {
            Ok(time) => Moment(Duration::from(time)),
            // No clock, no promise: at the end of time nothing is valid any more.
            Err(_) => Moment(Duration::MAX),
        }
    }
}

/// Returns once the clock has reached `moment`, at most half a second late after a suspend.
pub(crate) async fn sleep_until(clock: &dyn Clock, moment: Moment) {
    loop {
        let left = clock.now().until(moment);
        if left.is_zero() {
            return;
        }
        tokio::time::sleep(left.min(SLEEP_MAX)).await;
    }
}

#[cfg(test)]
pub(crate) mod fake {
    use std::sync::Mutex;
    use std::time::Duration;

    use super::{Clock, Moment};

    /// Follows Tokio's (pausable) clock, and can simulate a suspend, which Tokio does not count.
    pub struct FakeClock {
        start: tokio::time::Instant,
        asleep: Mutex<Duration>,
    }

    impl FakeClock {
        pub fn new() -> FakeClock {
            FakeClock {
                start: tokio::time::Instant::now(),
                asleep: Mutex::new(Duration::from_secs(1_000)),
            }
        }

        pub fn suspend(&self, span: Duration) {
            *self.asleep.lock().unwrap() += span;
        }
    }

    impl Clock for FakeClock {
        fn now(&self) -> Moment {
            Moment(self.start.elapsed() + *self.asleep.lock().unwrap())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_sleep_ends_soon_after_a_suspend_that_was_longer() {
        let clock = fake::FakeClock::new();
        let start = tokio::time::Instant::now();
        let until = clock.now().after(Duration::from_secs(3_600));
        let sleeping = sleep_until(&clock, until);
        tokio::pin!(sleeping);
        tokio::select! {
            () = &mut sleeping => panic!("it must sleep"),
            () = tokio::time::sleep(Duration::from_secs(1)) => {}
        }
        clock.suspend(Duration::from_secs(3_600));
        sleeping.await;
        assert!(start.elapsed() <= Duration::from_secs(1) + SLEEP_MAX);
    }
}
