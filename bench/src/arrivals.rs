//! The times at which sections are due, where they come at a fixed rate (an open loop).

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use tokio::time::Instant;

/// The sections of a run, due one after the other at equal distances. Any free worker begins the next one.
#[derive(Debug)]
pub(super) struct Arrivals {
    start: Instant,
    per_s: f64,
    next: AtomicUsize,
}

impl Arrivals {
    pub(super) fn new(start: Instant, per_s: f64) -> Arrivals {
        Arrivals {
            start,
            per_s,
            next: AtomicUsize::new(0),
        }
    }

    /// The number of the next section, from 0 on, and the moment at which it is due. Each number is given out once.
    pub(super) fn next(&self) -> (usize, Instant) {
        let number = self.next.fetch_add(1, Relaxed);
        (number, self.due(number))
    }

    fn due(&self, number: usize) -> Instant {
        let after = Duration::try_from_secs_f64(number as f64 / self.per_s);
        self.start + after.unwrap_or(Duration::MAX / 4)
    }

    /// The number of sections that are due from `from` on and before `end`.
    pub(super) fn between(&self, from: Instant, end: Instant) -> u64 {
        let before = |at: Instant| {
            let span = at.saturating_duration_since(self.start).as_secs_f64();
            let about = (span * self.per_s).ceil() as usize;
            // At the very end the rounding of `due` decides.
            let last = (0..=about).rev().find(|number| self.due(*number) < at);
            last.map_or(0, |last| last as u64 + 1)
        };
        before(end) - before(from).min(before(end))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sections_are_due_at_equal_distances_whoever_begins_them() {
        let start = Instant::now();
        let arrivals = Arrivals::new(start, 4.0);
        let due: Vec<Duration> = (0..4).map(|_| arrivals.next().1 - start).collect();
        assert_eq!(due, [0, 250, 500, 750].map(Duration::from_millis));
        let at = |ms| start + Duration::from_millis(ms);
        assert_eq!(arrivals.between(start, at(1_000)), 4);
        assert_eq!(arrivals.between(start, at(1_001)), 5);
        assert_eq!(arrivals.between(at(250), at(1_000)), 3);
        assert_eq!(arrivals.between(at(1_000), start), 0);
        // 30 × 8.3 is 249.00000000000003 here.
        let arrivals = Arrivals::new(start, 8.3);
        assert_eq!(arrivals.between(start, at(30_000)), 249);
    }
}
