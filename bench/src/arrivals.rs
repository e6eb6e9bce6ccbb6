//! When sections are due, where they come at a fixed rate (an open loop), and the search for the highest rate that is served
//! in time.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use tokio::time::Instant;

/// How close the search comes to the highest rate: so many times lies between one that was served in time and one that was not.
const CLOSE: f64 = 1.05;
/// How many runs are made.
const TRIES_MAX: usize = 40;
/// Below this no rate is looked for, in sections a second.
const RATE_MIN: f64 = 1.0;

/// The sections of a run, due one after the other at equal distances, whoever is free to begin them.
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

    /// The next one, by its number, from 0 on, and when it is due. Each is given out once.
    pub(super) fn next(&self) -> (usize, Instant) {
        let number = self.next.fetch_add(1, Relaxed);
        (number, self.due(number))
    }

    fn due(&self, number: usize) -> Instant {
        let after = Duration::try_from_secs_f64(number as f64 / self.per_s);
        self.start + after.unwrap_or(Duration::MAX / 4)
    }

    /// How many are due from this moment on and before that.
    pub(super) fn between(&self, from: Instant, end: Instant) -> u64 {
        let before = |at: Instant| {
            let span = at.saturating_duration_since(self.start).as_secs_f64();
            let about = (span * self.per_s).ceil() as usize;
            // What `next` makes of it decides, where that lies at the very end.
            let last = (0..=about).rev().find(|number| self.due(*number) < at);
            last.map_or(0, |last| last as u64 + 1)
        };
        before(end) - before(from).min(before(end))
    }
}

/// The search for the highest rate: twice as much each time until one is too high, then the middle between the two. A rate is too
/// high once it was tried twice: something else may have slowed the first.
#[derive(Debug, Default)]
pub(super) struct Search {
    served: Option<f64>,
    too_high: Option<f64>,
    /// The rate that failed once.
    in_doubt: Option<f64>,
    tries: usize,
}

impl Search {
    /// The rate to try after this one, which was served in time or was not; `None` once the highest is known closely enough.
    pub(super) fn next(&mut self, rate: f64, in_time: bool) -> Option<f64> {
        self.tries += 1;
        if !in_time && self.in_doubt != Some(rate) && self.tries < TRIES_MAX {
            self.in_doubt = Some(rate);
            return Some(rate);
        }
        match in_time {
            true => self.served = Some(self.served.map_or(rate, |best| best.max(rate))),
            false => self.too_high = Some(self.too_high.map_or(rate, |least| least.min(rate))),
        }
        let next = match (self.served, self.too_high) {
            (Some(served), None) => served * 2.0,
            (None, Some(too_high)) => too_high / 2.0,
            (Some(served), Some(too_high)) if too_high > served * CLOSE => {
                (served * too_high).sqrt()
            }
            _ => return None,
        };
        let is_worth_it = next >= RATE_MIN || next > rate;
        (self.tries < TRIES_MAX && is_worth_it).then_some(next)
    }

    /// The highest rate that was served in time, if any was.
    pub(super) fn served(&self) -> Option<f64> {
        self.served
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

    #[test]
    fn the_highest_rate_that_is_served_in_time_is_found_from_below_and_from_above() {
        for (first, most) in [
            (100.0, 1_230.0),
            (10_000.0, 333.0),
            (100.0, 100.0),
            (0.3, 40.0),
        ] {
            let mut search = Search::default();
            let mut rate = first;
            while let Some(next) = search.next(rate, rate <= most) {
                rate = next;
            }
            let served = search.served().unwrap();
            assert!(
                served <= most && most < served * CLOSE * 1.001,
                "{served} for {most} from {first} in {} tries",
                search.tries
            );
        }
    }

    #[test]
    fn a_rate_that_failed_once_is_tried_again() {
        let mut search = Search::default();
        assert_eq!(search.next(100.0, true), Some(200.0));
        assert_eq!(search.next(200.0, false), Some(200.0));
        assert_eq!(search.next(200.0, true), Some(400.0));
        assert_eq!(search.next(400.0, false), Some(400.0));
        let between = search.next(400.0, false).unwrap();
        assert!(200.0 < between && between < 400.0, "{between}");
    }

    #[test]
    fn the_search_ends_where_nothing_or_everything_is_served_in_time() {
        for in_time in [true, false] {
            let mut search = Search::default();
            let mut rate = 100.0;
            while let Some(next) = search.next(rate, in_time) {
                rate = next;
            }
            assert!(search.tries <= TRIES_MAX);
            assert_eq!(search.served().is_some(), in_time);
        }
    }
}
