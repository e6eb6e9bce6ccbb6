//! Time and ids as arguments, so that a simulation can provide them.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};
use uuid::Uuid;

/// A pause.
pub type Sleep = Pin<Box<dyn Future<Output = ()> + Send + 'static>>;

/// The clocks of one machine.
pub trait Clock: Send + Sync + 'static {
    /// Time since boot, with suspends (CLOCK_BOOTTIME). Liveness is judged by it (I9).
    fn boot(&self) -> Duration;

    /// The wall clock in microseconds since 1970. It only moves fences forward (I2), and labels things for people.
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
    /// A new UUID that nobody can guess.
    fn uuid(&self) -> Uuid;

    /// A number below `bound` (0 if that is 0), to spread retries.
    fn below(&self, bound: u64) -> u64;
}

/// The clock since boot that goes on during suspends.
#[cfg(not(target_os = "macos"))]
const BOOT: ClockId = ClockId::CLOCK_BOOTTIME;
/// There this one does; CLOCK_UPTIME_RAW does not.
#[cfg(target_os = "macos")]
const BOOT: ClockId = ClockId::CLOCK_MONOTONIC;

/// The machine's own clocks.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn boot(&self) -> Duration {
        // Fails only for an unknown clock; Linux has this one since 2.6.39.
        clock_gettime(BOOT).map_or(Duration::ZERO, Duration::from)
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
