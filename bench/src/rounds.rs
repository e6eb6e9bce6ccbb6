//! Two systems in turns, so that what the machine does meanwhile meets both; and which one did more.

use serde::Serialize;

use super::baseline::System;
use super::measure::Phase;
use super::run::{PhaseRow, Run, tenths, thousandths};

/// Gives the service and this other one their turns in each round; who begins changes from round to round, so that a
/// machine that gets warm, or slow, favours neither. Ends early after a run that was interrupted.
pub(super) async fn alternate<E>(
    other: System,
    rounds: u32,
    mut turn: impl AsyncFnMut(System, u32) -> Result<Run, E>,
) -> Result<Vec<Run>, E> {
    let mut runs = Vec::new();
    for round in 1..=rounds {
        let order = match round % 2 {
            1 => [System::Fermata, other],
            _ => [other, System::Fermata],
        };
        for system in order {
            let run = turn(system, round).await?;
            let interrupted = run.interrupted;
            runs.push(Run {
                system,
                round: Some(round),
                ..run
            });
            if interrupted {
                return Ok(runs);
            }
        }
    }
    Ok(runs)
}

/// What came of the rounds with one number of workers.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Comparison {
    pub(super) workers: usize,
    /// Rounds in which both had their whole turn. No other is counted in what follows, errors aside.
    pub(super) rounds: usize,
    pub(super) fermata: Side,
    pub(super) baseline: Side,
    /// How many sections fermata did for one of the baseline, in each round. Absent where the baseline did none
    /// in one of them.
    pub(super) ratio: Option<Spread>,
}

/// One of the two.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Side {
    pub(super) system: System,
    pub(super) sections_per_s: Spread,
    pub(super) phases: Vec<PhaseMedians>,
    /// All errors, those of the warm-ups and of rounds that were cut short included.
    pub(super) errors: u64,
}

/// A figure of each round, in short.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(super) struct Spread {
    pub(super) median: f64,
    pub(super) lowest: f64,
    pub(super) highest: f64,
}

/// The medians of what the rounds have as percentiles.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct PhaseMedians {
    pub(super) phase: &'static str,
    pub(super) p50_us: u64,
    pub(super) p99_us: u64,
}

impl Comparison {
    /// Compares the runs with one number of workers; `None` where no round was completed.
    pub(super) fn of(workers: usize, runs: &[Run]) -> Option<Comparison> {
        let (ours, others): (Vec<_>, Vec<_>) = runs.chunks(2).filter_map(pair).unzip();
        let baseline = others.first()?.system;
        let both = ours.iter().zip(&others);
        let ratios: Option<Vec<f64>> = both
            .map(|(ours, other)| (other.sections > 0).then(|| exact(ours) / exact(other)))
            .collect();
        Some(Comparison {
            workers,
            rounds: ours.len(),
            fermata: Side::of(System::Fermata, runs, &ours)?,
            baseline: Side::of(baseline, runs, &others)?,
            ratio: ratios.and_then(|ratios| Spread::of(ratios, thousandths)),
        })
    }
}

/// The two runs of a round, where both are whole.
fn pair(round: &[Run]) -> Option<(&Run, &Run)> {
    match round {
        [one, two] if one.interrupted || two.interrupted => None,
        [ours, other] if ours.system == System::Fermata => Some((ours, other)),
        [other, ours] => Some((ours, other)),
        _ => None,
    }
}

/// Sections in a second, not rounded.
fn exact(run: &Run) -> f64 {
    run.sections as f64 * 1000.0 / run.elapsed_ms.max(1) as f64
}

impl Side {
    fn of(system: System, all: &[Run], whole: &[&Run]) -> Option<Side> {
        let rates = whole.iter().map(|run| exact(run)).collect();
        let phases = Phase::ALL.into_iter().filter_map(|phase| {
            let row = |run: &&Run| {
                let row = run.phases.iter().find(|row| row.phase == phase.name());
                row.cloned()
            };
            let rows: Vec<PhaseRow> = whole.iter().filter_map(row).collect();
            let median = |of: fn(&PhaseRow) -> u64| {
                let times = rows.iter().map(|row| of(row) as f64).collect();
                Spread::of(times, f64::round).map(|spread| spread.median as u64)
            };
            Some(PhaseMedians {
                phase: phase.name(),
                p50_us: median(|row| row.p50_us)?,
                p99_us: median(|row| row.p99_us)?,
            })
        });
        Some(Side {
            system,
            sections_per_s: Spread::of(rates, tenths)?,
            phases: phases.collect(),
            errors: all
                .iter()
                .filter(|run| run.system == system)
                .map(|run| run.errors)
                .sum(),
        })
    }
}

impl Spread {
    /// `None` for no figures.
    fn of(mut figures: Vec<f64>, rounded: fn(f64) -> f64) -> Option<Spread> {
        figures.sort_by(f64::total_cmp);
        let (lowest, highest) = (figures.first()?, figures.last()?);
        // The same one twice, where their number is odd.
        let low = figures.get((figures.len() - 1) / 2)?;
        let high = figures.get(figures.len() / 2)?;
        Some(Spread {
            median: rounded((low + high) / 2.0),
            lowest: rounded(*lowest),
            highest: rounded(*highest),
        })
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::convert::Infallible;
    use std::time::Duration;

    use super::super::load::Outcome;
    use super::super::measure::Measured;
    use super::*;

    /// A run of one second with so many sections, each of which took so long.
    fn run(sections: u64, each_ms: u64) -> Run {
        let mut measured = Measured::new().unwrap();
        for _ in 0..sections {
            measured.record(Phase::Section, Duration::from_millis(each_ms));
        }
        let outcome = Outcome {
            elapsed: Duration::from_secs(1),
            measured,
            unfinished: 0,
            not_begun: 0,
            check: None,
            interrupted: false,
        };
        Run::new(16, 1, outcome)
    }

    /// Three rounds, in the first of which the baseline was slow.
    pub(crate) async fn three_rounds() -> Vec<Run> {
        let turn = async |system, round| {
            Ok::<_, Infallible>(match (system, round) {
                (System::Fermata, _) => run(120, 8),
                (System::Music, 1) => run(50, 20),
                (_, _) => run(100, 10 * u64::from(round)),
            })
        };
        alternate(System::Music, 3, turn).await.unwrap()
    }

    #[tokio::test]
    async fn the_two_take_turns() {
        let runs = three_rounds().await;
        let turns: Vec<_> = runs.iter().map(|run| (run.round, run.system)).collect();
        let (ours, other) = (System::Fermata, System::Music);
        let (one, two, three) = (Some(1), Some(2), Some(3));
        assert_eq!(
            turns,
            [
                (one, ours),
                (one, other),
                (two, other),
                (two, ours),
                (three, ours),
                (three, other)
            ]
        );
    }

    #[tokio::test]
    async fn an_error_or_an_interruption_ends_the_turns() {
        let failed = alternate(System::Puts, 3, async |system, _| match system {
            System::Fermata => Ok(run(1, 1)),
            _ => Err("gone"),
        });
        assert_eq!(failed.await.unwrap_err(), "gone");

        let interrupted = |system, round| system == System::Music && round == 2;
        let turn = async |system, round| {
            Ok::<_, Infallible>(Run {
                interrupted: interrupted(system, round),
                errors: 1,
                ..run(10, 1)
            })
        };
        let runs = alternate(System::Music, 3, turn).await.unwrap();
        assert_eq!(runs.len(), 3);
        let compared = Comparison::of(16, &runs).unwrap();
        assert_eq!(compared.rounds, 1, "the second one was cut short");
        assert_eq!((compared.fermata.errors, compared.baseline.errors), (1, 2));
        assert_eq!(Comparison::of(16, &runs[..1]), None);
    }

    #[tokio::test]
    async fn the_ratio_is_the_median_of_the_rounds_and_not_of_their_sums() {
        let compared = Comparison::of(16, &three_rounds().await).unwrap();
        let ratio = compared.ratio.unwrap();
        assert_eq!((ratio.median, ratio.lowest, ratio.highest), (1.2, 1.2, 2.4));
        let rate = compared.baseline.sections_per_s;
        assert_eq!(
            (rate.median, rate.lowest, rate.highest),
            (100.0, 50.0, 100.0)
        );
        let [section] = compared.baseline.phases.as_slice() else {
            panic!("{compared:?}")
        };
        // Of 20, 20 and 30 ms.
        assert!(section.p50_us.abs_diff(20_000) < 20, "{section:?}");
    }

    #[test]
    fn of_an_even_number_the_median_is_between_the_two_in_the_middle() {
        let spread = Spread::of(vec![4.0, 1.0, 2.0, 8.0], tenths).unwrap();
        assert_eq!(
            (spread.median, spread.lowest, spread.highest),
            (3.0, 1.0, 8.0)
        );
        assert_eq!(Spread::of(Vec::new(), tenths), None);
    }

    #[test]
    fn a_baseline_without_sections_has_no_ratio() {
        let runs = [(System::Fermata, 10), (System::Music, 0)];
        let runs = runs.map(|(system, sections)| Run {
            system,
            ..run(sections, 1)
        });
        assert_eq!(Comparison::of(1, &runs).unwrap().ratio, None);
    }
}
