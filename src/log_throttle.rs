//! Throttled log lines about a lasting fault.

use std::time::Duration;

use parking_lot::Mutex;

/// The pause between two log lines about a fault that goes on.
const PAUSE: Duration = Duration::from_secs(60);
/// The maximum number of remembered wordings: some faults alternate between a few.
const WORDINGS_MAX: usize = 8;

/// A fault that may go on. It is logged when it begins, when its wording is new, and once a minute.
#[derive(Debug, Default)]
pub struct LogThrottle(Mutex<Going>);

#[derive(Debug, Default)]
struct Going {
    /// Logged since the last pause.
    wordings: Vec<String>,
    logged_at: Option<Duration>,
    /// Since then.
    times: u64,
}

impl LogThrottle {
    /// The fault was met at `now`, CLOCK_BOOTTIME. If it is to be logged: how often it was met since it was logged last.
    pub fn met(&self, now: Duration, what: &str) -> Option<u64> {
        let mut going = self.0.lock();
        going.times += 1;
        if going
            .logged_at
            .is_none_or(|at| now.saturating_sub(at) >= PAUSE)
        {
            going.wordings.clear();
        }
        if going.wordings.len() >= WORDINGS_MAX || going.wordings.iter().any(|one| one == what) {
            return None;
        }
        going.wordings.push(what.to_owned());
        going.logged_at = Some(now);
        Some(std::mem::take(&mut going.times))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_fault_that_goes_on_is_logged_at_once_and_then_once_a_minute_with_a_count() {
        let log_throttle = LogThrottle::default();
        let logged: Vec<(u64, u64)> = (0..=130)
            .filter_map(|now| log_throttle.met(s(now), "no majority").map(|n| (now, n)))
            .collect();
        assert_eq!(logged, [(0, 1), (60, 60), (120, 60)]);
    }

    #[test]
    fn another_wording_is_logged_at_once_and_two_that_alternate_are_not_logged_each_time() {
        let log_throttle = LogThrottle::default();
        assert_eq!(log_throttle.met(s(0), "a"), Some(1));
        assert_eq!(log_throttle.met(s(1), "a"), None);
        assert_eq!(log_throttle.met(s(2), "b"), Some(2));
        assert_eq!(log_throttle.met(s(3), "a"), None);
        assert_eq!(log_throttle.met(s(4), "b"), None);
        // They are not all kept.
        let logged = (0..1_000).filter(|n| log_throttle.met(s(8), &n.to_string()).is_some());
        assert!(logged.count() <= WORDINGS_MAX);
    }
}
