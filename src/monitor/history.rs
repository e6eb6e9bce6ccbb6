//! The rates and waits of the last minutes, from scrapes of this process: nothing is counted a second time. No clock: a scrape
//! comes with its time.

use std::collections::VecDeque;
use std::time::Duration;

use serde::Serialize;

/// The time between two scrapes.
pub const SCRAPE_EVERY: Duration = Duration::from_secs(5);
/// Ten minutes of them.
const SCRAPES_MAX: usize = 121;

/// The calls of clients: the console's own are of another service.
const CALLS_OF: [&str; 2] = [
    "service=\"fermata.v1.LockService\"",
    "service=\"fermata.v1.RowLockService\"",
];

/// What one scrape says.
#[derive(Debug, Clone, PartialEq)]
struct Scrape {
    /// Since any moment, the same for all.
    at: Duration,
    grants: f64,
    calls: f64,
    /// The bounds of waits in seconds, rising, each with the number of waits up to it.
    waits: Vec<(f64, f64)>,
}

/// The latest scrapes, oldest first.
#[derive(Debug, Default)]
pub struct History(VecDeque<Scrape>);

/// The time between two scrapes.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Point {
    /// How long before the latest scrape it ended, in seconds.
    pub ago: f64,
    /// Grants a second.
    pub grants: f64,
    /// Calls of clients a second.
    pub calls: f64,
    /// The wait that half of its grants did not exceed, in seconds; `None` without grants.
    pub wait_p50: Option<f64>,
    /// The same of 99 in a hundred.
    pub wait_p99: Option<f64>,
}

impl Scrape {
    fn parse(at: Duration, text: &str) -> Scrape {
        let mut scrape = Scrape {
            at,
            grants: 0.0,
            calls: 0.0,
            waits: Vec::new(),
        };
        for line in text.lines() {
            let Some((series, value)) = line.rsplit_once(' ') else {
                continue;
            };
            let Some((name, labels)) = series.split_once('{') else {
                continue;
            };
            let Ok(value) = value.parse::<f64>() else {
                continue;
            };
            match name {
                "fermata_grants_total" => scrape.grants += value,
                "fermata_requests_total" if CALLS_OF.iter().any(|of| labels.contains(of)) => {
                    scrape.calls += value;
                }
                "fermata_lock_wait_seconds_bucket" => scrape.add_wait(labels, value),
                _ => {}
            }
        }
        scrape
    }

    /// Tables have the same bounds.
    fn add_wait(&mut self, labels: &str, count: f64) {
        let mut labels = labels.split(['{', ',', '}']);
        let bound = labels.find_map(|label| label.strip_prefix("le=\"")?.strip_suffix('"'));
        let bound = bound.and_then(|bound| bound.parse::<f64>().ok());
        let Some(bound) = bound else {
            return;
        };
        match self
            .waits
            .binary_search_by(|(one, _)| one.total_cmp(&bound))
        {
            Ok(at) => self.waits[at].1 += count,
            Err(at) => self.waits.insert(at, (bound, count)),
        }
    }
}

impl History {
    /// Adds a scrape of this time.
    pub fn add(&mut self, at: Duration, text: &str) {
        if self.0.len() == SCRAPES_MAX {
            self.0.pop_front();
        }
        self.0.push_back(Scrape::parse(at, text));
    }

    /// What happened between each two scrapes, oldest first.
    pub fn points(&self) -> Vec<Point> {
        let latest = self.0.back().map_or(Duration::ZERO, |scrape| scrape.at);
        let pairs = self.0.iter().zip(self.0.iter().skip(1));
        pairs
            .map(|(from, to)| {
                let seconds = to.at.saturating_sub(from.at).as_secs_f64();
                let rate = |from: f64, to: f64| match seconds > 0.0 {
                    true => (to - from).max(0.0) / seconds,
                    false => 0.0,
                };
                let waits = between(&from.waits, &to.waits);
                Point {
                    ago: latest.saturating_sub(to.at).as_secs_f64(),
                    grants: rate(from.grants, to.grants),
                    calls: rate(from.calls, to.calls),
                    wait_p50: quantile(0.5, &waits),
                    wait_p99: quantile(0.99, &waits),
                }
            })
            .collect()
    }
}

/// The waits of the later scrape that the earlier one has not.
fn between(from: &[(f64, f64)], to: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let before = |bound: f64| {
        let found = from.iter().find(|(one, _)| *one == bound);
        found.map_or(0.0, |(_, count)| *count)
    };
    to.iter()
        .map(|(bound, count)| (*bound, count - before(*bound)))
        .collect()
}

/// As Prometheus estimates it: evenly spread within a bucket, and the largest finite bound beyond that.
fn quantile(share: f64, buckets: &[(f64, f64)]) -> Option<f64> {
    let (_, all) = buckets.last().filter(|(_, all)| *all > 0.0)?;
    let rank = share * all;
    let (mut low, mut below) = (0.0, 0.0);
    for (bound, count) in buckets {
        if *count >= rank {
            return Some(match bound.is_finite() {
                true => low + (bound - low) * (rank - below) / (count - below).max(f64::EPSILON),
                false => low,
            });
        }
        (low, below) = (*bound, *count);
    }
    Some(low)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scrape(grants: u32, calls: u32, waits: [u32; 3]) -> String {
        let [short, long, all] = waits;
        format!(
            "# HELP fermata_grants Grants\n\
             fermata_grants_total{{table=\"a\",cause=\"at_once\"}} {grants}\n\
             fermata_grants_total{{table=\"b\",cause=\"at_once\"}} 1\n\
             fermata_requests_total{{service=\"fermata.v1.LockService\",method=\"Get\",reason=\"OK\"}} {calls}\n\
             fermata_requests_total{{service=\"fermata.v1.LockAdmin\",method=\"ListLocks\",reason=\"OK\"}} 1{calls}\n\
             fermata_lock_wait_seconds_bucket{{table=\"a\",le=\"0.5\"}} {short}\n\
             fermata_lock_wait_seconds_bucket{{table=\"a\",le=\"2.5\"}} {long}\n\
             fermata_lock_wait_seconds_bucket{{table=\"a\",le=\"+Inf\"}} {all}\n\
             fermata_lock_wait_seconds_bucket{{table=\"b\",le=\"0.5\"}} 0\n\
             process_open_fds 7\n"
        )
    }

    #[test]
    fn rates_and_waits_are_those_between_two_scrapes() {
        let mut history = History::default();
        assert!(history.points().is_empty());
        let seconds = Duration::from_secs;
        history.add(seconds(100), &scrape(10, 20, [5, 5, 5]));
        history.add(seconds(105), &scrape(20, 30, [5, 15, 15]));
        history.add(seconds(115), &scrape(20, 30, [5, 15, 15]));
        let points = history.points();
        let first = Point {
            ago: 10.0,
            grants: 2.0,
            calls: 2.0,
            wait_p50: Some(1.5),
            wait_p99: Some(2.48),
        };
        assert_eq!(points[0], first);
        let idle = Point {
            ago: 0.0,
            grants: 0.0,
            calls: 0.0,
            wait_p50: None,
            wait_p99: None,
        };
        assert_eq!(points[1..], [idle]);
    }

    #[test]
    fn waits_beyond_the_largest_bound_are_said_to_be_that_long() {
        assert_eq!(
            quantile(0.99, &[(1.0, 2.0), (f64::INFINITY, 10.0)]),
            Some(1.0)
        );
        assert_eq!(quantile(0.5, &[(1.0, 0.0), (f64::INFINITY, 0.0)]), None);
        assert_eq!(quantile(0.5, &[]), None);
    }

    #[test]
    fn ten_minutes_are_kept() {
        let mut history = History::default();
        for second in (0..2_000).step_by(5) {
            history.add(Duration::from_secs(second), "");
        }
        let points = history.points();
        assert_eq!(points.len(), 120);
        assert_eq!(points[0].ago, 595.0);
    }
}
