//! The figures of one run. Its fields are stable: none is renamed or removed, others may join.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;

use super::baseline::System;
use super::counters::CounterCheck;
use super::load::Outcome;
use super::measure::Measured;

/// One run.
#[derive(Debug, Serialize)]
pub(super) struct Run {
    pub(super) system: System,
    /// From 1; absent where there is no baseline.
    pub(super) round: Option<u32>,
    pub(super) workers: usize,
    /// Of a baseline: to each node.
    pub(super) connections: usize,
    /// From the end of the warm-up to the end of the last section.
    pub(super) elapsed_ms: u64,
    /// Finished sections that began after the warm-up.
    pub(super) sections: u64,
    pub(super) sections_per_s: f64,
    /// By phase, the latencies of calls that succeeded.
    pub(super) phases: Vec<PhaseRow>,
    /// All errors, those of the warm-up included.
    pub(super) errors: u64,
    pub(super) errors_by_code: Vec<ErrorRow>,
    /// Workers whose last section was cut off.
    pub(super) unfinished: usize,
    /// The rate of an open loop, in sections a second.
    pub(super) rate: Option<f64>,
    /// Sections that were due and had not begun at the end. They are in no percentile.
    pub(super) not_begun: u64,
    /// Ended early by Ctrl-C.
    pub(super) interrupted: bool,
    /// Absent where nothing is written, or the counters were not read.
    pub(super) counter_check: Option<CounterCheck>,
}

/// The latencies of one phase.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct PhaseRow {
    pub(super) phase: &'static str,
    pub(super) count: u64,
    pub(super) mean_us: f64,
    pub(super) p50_us: u64,
    pub(super) p90_us: u64,
    pub(super) p99_us: u64,
    pub(super) p999_us: u64,
    pub(super) max_us: u64,
}

/// The errors of one phase and status code.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct ErrorRow {
    pub(super) phase: &'static str,
    pub(super) code: String,
    pub(super) count: u64,
    /// The message of the first one.
    pub(super) message: String,
}

impl Run {
    pub(super) fn new(
        workers: usize,
        connections: usize,
        outcome: Outcome,
        measured: &Measured,
    ) -> Run {
        let errors = measured.errors().map(|(phase, code, errors)| ErrorRow {
            phase: phase.name(),
            code: code.to_owned(),
            count: errors.count,
            message: errors.message.clone(),
        });
        let errors_by_code: Vec<ErrorRow> = errors.collect();
        let phases = measured.phases();
        let phases = phases.map(|(phase, latencies)| PhaseRow::of(phase.name(), latencies));
        let sections = measured.sections();
        Run {
            system: System::Fermata,
            round: None,
            workers,
            connections,
            elapsed_ms: millis(outcome.elapsed),
            sections,
            sections_per_s: rate(sections, outcome.elapsed),
            phases: phases.collect(),
            errors: errors_by_code.iter().map(|row| row.count).sum(),
            errors_by_code,
            unfinished: outcome.unfinished,
            rate: None,
            not_begun: outcome.not_begun,
            interrupted: outcome.interrupted,
            counter_check: outcome.check,
        }
    }

    /// Whether nothing went wrong. `counts`: the counters must have been read.
    pub(super) fn is_clean(&self, counts: bool) -> bool {
        let is_exact = match &self.counter_check {
            Some(check) => check.is_exact(),
            None => !counts,
        };
        self.errors == 0 && self.unfinished == 0 && self.not_begun == 0 && is_exact
    }
}

impl PhaseRow {
    /// Of latencies in microseconds.
    pub(super) fn of(phase: &'static str, latencies: &Histogram<u64>) -> PhaseRow {
        PhaseRow {
            phase,
            count: latencies.len(),
            mean_us: rounded(latencies.mean(), 1),
            p50_us: latencies.value_at_quantile(0.5),
            p90_us: latencies.value_at_quantile(0.9),
            p99_us: latencies.value_at_quantile(0.99),
            p999_us: latencies.value_at_quantile(0.999),
            max_us: latencies.max(),
        }
    }
}

pub(super) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Events in a second.
pub(super) fn rate(count: u64, time: Duration) -> f64 {
    match time.is_zero() {
        true => 0.0,
        false => rounded(count as f64 / time.as_secs_f64(), 1),
    }
}

pub(super) fn rounded(number: f64, digits: i32) -> f64 {
    let power = 10f64.powi(digits);
    (number * power).round() / power
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::measure::Phase;

    /// A thousand sections of 1 to 1000 ms in ten seconds, and one error.
    pub(crate) fn run(workers: usize) -> Run {
        let mut measured = Measured::new().unwrap();
        for ms in 1..=1000 {
            measured.record(Phase::Section, Duration::from_millis(ms));
        }
        let gone = tonic::Status::unavailable("gone");
        measured.fail((Phase::Put, gone).into());
        let outcome = Outcome {
            elapsed: Duration::from_secs(10),
            check: Some(CounterCheck::default()),
            ..Outcome::default()
        };
        Run::new(workers, 4, outcome, &measured)
    }

    #[test]
    fn a_row_has_the_percentiles_within_a_thousandth() {
        let run = run(4);
        assert_eq!((run.sections, run.sections_per_s), (1000, 100.0));
        let [row] = run.phases.as_slice() else {
            panic!("{:?}", run.phases)
        };
        for (seen, expected) in [
            (row.p50_us, 500_000),
            (row.p90_us, 900_000),
            (row.p99_us, 990_000),
            (row.p999_us, 999_000),
            (row.max_us, 1_000_000),
            (row.mean_us as u64, 500_500),
        ] {
            let off = seen.abs_diff(expected);
            assert!(off <= expected / 1000, "{seen} for {expected}");
        }
    }

    #[test]
    fn a_run_with_an_error_or_counters_that_were_not_read_is_not_clean() {
        let failed = run(4);
        assert_eq!((failed.errors, failed.is_clean(true)), (1, false));
        assert_eq!(failed.errors_by_code[0].code, "UNAVAILABLE");
        let clean = || Run {
            errors: 0,
            ..run(4)
        };
        assert!(clean().is_clean(true));
        let unread = Run {
            counter_check: None,
            ..clean()
        };
        assert!(!unread.is_clean(true) && unread.is_clean(false));
        let cut_off = Run {
            unfinished: 1,
            ..clean()
        };
        assert!(!cut_off.is_clean(true));
    }
}
