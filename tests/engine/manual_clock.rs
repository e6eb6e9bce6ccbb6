//! A clock that stands still until it is moved.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fermata::clock::{Clock, Sleep, SystemClock};
use tokio::sync::watch;

pub struct ManualClock {
    boot: watch::Sender<Duration>,
    wall_us: AtomicU64,
}

impl ManualClock {
    /// Stands at the present time.
    pub fn new() -> Arc<ManualClock> {
        Arc::new(ManualClock {
            boot: watch::Sender::new(Duration::from_secs(1_000)),
            wall_us: AtomicU64::new(SystemClock.wall_us() - 1_000_000_000),
        })
    }

    /// Moves on in steps that are short enough for whoever looks at the clock every 50 ms, and lets
    /// everybody run in between.
    pub async fn advance(&self, span: Duration) {
        let until = self.boot() + span;
        while self.boot() < until {
            let now = (self.boot() + Duration::from_millis(25)).min(until);
            self.boot.send_replace(now);
            for _ in 0..8 {
                tokio::task::yield_now().await;
            }
        }
    }

    /// Jumps, as if the process had been stopped.
    pub async fn jump(&self, span: Duration) {
        self.boot.send_modify(|now| *now += span);
        tokio::task::yield_now().await;
    }

    /// Somebody sets the wall clock back.
    pub fn set_wall_back(&self, span: Duration) {
        let span_us = span.as_micros() as u64;
        self.wall_us.fetch_sub(span_us, Ordering::Relaxed);
    }
}

impl Clock for ManualClock {
    fn boot(&self) -> Duration {
        *self.boot.borrow()
    }

    fn wall_us(&self) -> u64 {
        self.wall_us.load(Ordering::Relaxed) + self.boot().as_micros() as u64
    }

    fn sleep(&self, span: Duration) -> Sleep {
        let until = self.boot() + span;
        let mut boot = self.boot.subscribe();
        Box::pin(async move {
            // The clock outlives nobody: without it there is no time.
            let _ = boot.wait_for(|now| *now >= until).await;
        })
    }
}
