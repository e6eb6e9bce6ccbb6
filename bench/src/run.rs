//! One run, as it is reported. Its fields are stable: none is renamed or removed, others may join.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;

use super::baseline::System;
use super::counters::CounterCheck;
use super::load::Outcome;
use super::measure::Phase;

/// One run.
#[derive(Debug, Serialize)]
pub(super) struct Run {
    /// Whose sections these are.
    pub(super) system: System,
    /// From 1; absent where there is no baseline.
    pub(super) round: Option<u32>,
    pub(super) workers: usize,
    /// Of music: to each node.
    pub(super) connections: usize,
    /// From the end of the warm-up to the end of the last section.
    pub(super) elapsed_ms: u64,
    /// Finished sections that began after the warm-up.
    pub(super) sections: u64,
    pub(super) sections_per_s: f64,
    /// By phase, latencies of calls that succeeded.
    pub(super) phases: Vec<PhaseRow>,
    /// All errors, those of the warm-up included.
    pub(super) errors: u64,
    pub(super) errors_by_code: Vec<ErrorRow>,
    /// Workers whose last section was cut off.
    pub(super) unfinished: usize,
    /// The rate that was asked for, in sections a second; absent of a closed loop.
    pub(super) rate: Option<f64>,
    /// Sections that were due at that rate and had not begun at the end: they are in no percentile.
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

/// Errors of one phase and status code.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct ErrorRow {
    pub(super) phase: &'static str,
    pub(super) code: &'static str,
    pub(super) count: u64,
    /// What the first one said.
    pub(super) message: String,
}

impl Run {
    pub(super) fn new(workers: usize, connections: usize, outcome: Outcome) -> Run {
        let measured = outcome.measured;
        let errors_by_code: Vec<ErrorRow> = measured
            .errors()
            .map(|(phase, code, errors)| ErrorRow {
                phase: phase.name(),
                code,
                count: errors.count,
                message: errors.message.clone(),
            })
            .collect();
        let sections = measured.sections();
        Run {
            system: System::Fermata,
            round: None,
            workers,
            connections,
            elapsed_ms: millis(outcome.elapsed),
            sections,
            sections_per_s: rate(sections, outcome.elapsed),
            phases: measured.phases().map(PhaseRow::new).collect(),
            errors: errors_by_code.iter().map(|row| row.count).sum(),
            errors_by_code,
            unfinished: outcome.unfinished,
            rate: None,
            not_begun: outcome.not_begun,
            interrupted: outcome.interrupted,
            counter_check: outcome.check,
        }
    }

    /// Whether it was done at its rate, 99.9 % of the sections within this time and without an error.
    pub(super) fn is_in_time(&self, p999_below: Duration) -> bool {
        let sections = self
            .phases
            .iter()
            .find(|row| row.phase == Phase::Section.name());
        let in_time = sections.is_some_and(|row| u128::from(row.p999_us) < p999_below.as_micros());
        in_time && self.not_begun == 0 && self.unfinished == 0 && self.errors == 0
    }

    /// Whether the counters were read, and every one is as it must be.
    pub(super) fn is_exact(&self) -> bool {
        let check = self.counter_check.as_ref();
        check.is_some_and(CounterCheck::is_exact)
    }

    /// Whether nothing went wrong; `counted` if the counters must have been read.
    pub(super) fn is_clean(&self, counted: bool) -> bool {
        let exact = match &self.counter_check {
            Some(check) => check.is_exact(),
            None => !counted,
        };
        self.errors == 0 && self.unfinished == 0 && self.not_begun == 0 && exact
    }
}

impl PhaseRow {
    fn new((phase, latencies): (Phase, &Histogram<u64>)) -> PhaseRow {
        PhaseRow::of(phase.name(), latencies)
    }

    /// Of latencies in microseconds.
    pub(super) fn of(phase: &'static str, latencies: &Histogram<u64>) -> PhaseRow {
        PhaseRow {
            phase,
            count: latencies.len(),
            mean_us: tenths(latencies.mean()),
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

pub(super) fn rate(count: u64, time: Duration) -> f64 {
    if time.is_zero() {
        0.0
    } else {
        tenths(count as f64 / time.as_secs_f64())
    }
}

pub(super) fn tenths(number: f64) -> f64 {
    (number * 10.0).round() / 10.0
}

pub(super) fn thousandths(number: f64) -> f64 {
    (number * 1000.0).round() / 1000.0
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::measure::{Failure, Measured};
    use super::*;

    /// A thousand sections of 1 to 1000 ms in ten seconds, and one error.
    pub(crate) fn outcome() -> Outcome {
        let mut measured = Measured::new().unwrap();
        for ms in 1..=1000 {
            measured.record(Phase::Section, Duration::from_millis(ms));
        }
        let gone = tonic::Status::unavailable("gone");
        measured.fail(&Failure::answered(Phase::Put, &gone));
        Outcome {
            elapsed: Duration::from_secs(10),
            measured,
            unfinished: 0,
            not_begun: 0,
            check: Some(CounterCheck::default()),
            interrupted: false,
        }
    }

    #[test]
    fn a_row_tells_the_percentiles_within_a_thousandth() {
        let run = Run::new(4, 1, outcome());
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
    fn a_run_with_an_error_or_a_counter_that_was_not_read_is_not_clean() {
        let failed = Run::new(4, 1, outcome());
        assert_eq!(failed.errors, 1);
        assert_eq!(failed.errors_by_code[0].code, "UNAVAILABLE");
        assert!(!failed.is_clean(true));
        let clean = || Run {
            errors: 0,
            ..Run::new(4, 1, outcome())
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
