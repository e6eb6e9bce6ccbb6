//! Ever rarer log lines about a lasting fault.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// The first pause between two log lines of a fault; each later pause is twice the one before …
const PAUSE_MIN: Duration = Duration::from_secs(5);
/// … up to this.
const PAUSE_MAX: Duration = Duration::from_secs(300);
/// A fault ends after this time without an occurrence.
const QUIET_AFTER: Duration = Duration::from_secs(60);
/// Texts that count as one fault: some faults alternate between a few.
const WORDINGS_MAX: usize = 8;

/// A fault that may last. It is logged when it begins, when its text changes, and then ever more rarely.
#[derive(Debug, Default)]
pub struct LogThrottle(Mutex<Option<Going>>);

#[derive(Debug)]
struct Going {
    wordings: Vec<String>,
    met_at: Duration,
    said_at: Duration,
    pause: Duration,
    times: u64,
}

impl LogThrottle {
    /// Notes an occurrence at `now`, CLOCK_BOOTTIME. Returns the occurrences since the last log line, if one is due.
    pub fn met(&self, now: Duration, what: &str) -> Option<u64> {
        let mut going = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let still = going
            .as_mut()
            .filter(|one| now.saturating_sub(one.met_at) < QUIET_AFTER);
        let Some(one) = still else {
            *going = Some(Going {
                wordings: vec![what.to_owned()],
                met_at: now,
                said_at: now,
                pause: PAUSE_MIN,
                times: 0,
            });
            return Some(1);
        };
        one.met_at = now;
        one.times += 1;
        let is_new = one.wordings.len() < WORDINGS_MAX && !one.wordings.iter().any(|w| w == what);
        if is_new {
            one.wordings.push(what.to_owned());
        } else if now.saturating_sub(one.said_at) >= one.pause {
            one.pause = (one.pause * 2).min(PAUSE_MAX);
        } else {
            return None;
        }
        one.said_at = now;
        Some(std::mem::take(&mut one.times))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn what_goes_on_is_said_at_once_and_then_ever_more_rarely_with_a_count() {
        let log_throttle = LogThrottle::default();
        let said: Vec<(u64, u64)> = (0..=40)
            .filter_map(|now| log_throttle.met(s(now), "no majority").map(|n| (now, n)))
            .collect();
        assert_eq!(said, [(0, 1), (5, 5), (15, 10), (35, 20)]);
    }

    #[test]
    fn another_fault_is_said_at_once_and_two_that_alternate_are_not_said_each_time() {
        let log_throttle = LogThrottle::default();
        assert_eq!(log_throttle.met(s(0), "a"), Some(1));
        assert_eq!(log_throttle.met(s(1), "a"), None);
        assert_eq!(log_throttle.met(s(2), "b"), Some(2));
        assert_eq!(log_throttle.met(s(3), "a"), None);
        assert_eq!(log_throttle.met(s(4), "b"), None);
        assert_eq!(log_throttle.met(s(7), "a"), Some(3));
        // However many there are, they are not all kept.
        let said = (0..1_000).filter(|n| log_throttle.met(s(8), &n.to_string()).is_some());
        assert!(said.count() <= WORDINGS_MAX);
    }

    #[test]
    fn what_was_quiet_for_long_is_said_at_once_when_it_begins_again() {
        let log_throttle = LogThrottle::default();
        assert_eq!(log_throttle.met(s(0), "a"), Some(1));
        assert_eq!(log_throttle.met(s(1), "a"), None);
        assert_eq!(log_throttle.met(s(61), "a"), Some(1));
    }

    #[test]
    fn the_pauses_end_growing() {
        let log_throttle = LogThrottle::default();
        let said = (0..10_000).filter(|now| log_throttle.met(s(*now), "a").is_some());
        let said: Vec<u64> = said.collect();
        let longest = said.windows(2).map(|two| two[1] - two[0]).max();
        assert_eq!(longest, Some(PAUSE_MAX.as_secs()));
    }
}
