//! Time and ids, handed in from outside so that a simulation can own them.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};
use uuid::Uuid;

/// A future without a borrowed part.
pub type Sleep = Pin<Box<dyn Future<Output = ()> + Send + 'static>>;

/// The clocks of one machine.
pub trait Clock: Send + Sync + 'static {
    /// Time since boot, time asleep counted (CLOCK_BOOTTIME). Liveness is judged on this one (I9).
    fn boot(&self) -> Duration;

    /// The wall clock in microseconds since 1970. It only moves fences forward (I2), and makes labels for people.
    fn wall_us(&self) -> u64;

    /// The same in milliseconds.
    fn wall_ms(&self) -> i64 {
        i64::try_from(self.wall_us() / 1_000).unwrap_or(i64::MAX)
    }

    /// Sleeps. May wake late, never early by more than a timer tick.
    fn sleep(&self, span: Duration) -> Sleep;
}

/// Ids and randomness.
pub trait Ids: Send + Sync + 'static {
    /// A new, unguessable UUID.
    fn uuid(&self) -> Uuid;

    /// A random number below `bound` (0 if that is 0), to spread retries.
    fn below(&self, bound: u64) -> u64;
}

/// The machine's own clocks.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn boot(&self) -> Duration {
        // Fails only for an unknown clock; Linux has this one since 2.6.39.
        clock_gettime(ClockId::CLOCK_BOOTTIME).map_or(Duration::ZERO, Duration::from)
    }

    fn wall_us(&self) -> u64 {
        clock_gettime(ClockId::CLOCK_REALTIME)
            .map(Duration::from)
            .map_or(0, |d| u64::try_from(d.as_micros()).unwrap_or(u64::MAX))
    }

    fn sleep(&self, span: Duration) -> Sleep {
        Box::pin(tokio::time::sleep(span))
    }
}

/// The operating system's randomness.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemIds;

impl Ids for SystemIds {
    #[allow(clippy::disallowed_methods)] // the one place where ids are made
    fn uuid(&self) -> Uuid {
        Uuid::new_v4()
    }

    fn below(&self, bound: u64) -> u64 {
        self.uuid().as_u64_pair().1.checked_rem(bound).unwrap_or(0)
    }
}
