//! Two systems in turns, so that other work of the machine meets both, and the ratio of their rates.

use serde::Serialize;

use super::baseline::System;
use super::run::{Run, rounded};

/// Gives the service and the other system their turns in each round. Who begins changes from round to round, so that a machine
/// that gets warm, or slow, favours neither. Ends early after a run that was interrupted.
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

/// The sections of Fermata for each section of the other system, in the rounds with one number of workers.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Comparison {
    pub(super) workers: usize,
    pub(super) other: System,
    /// Rounds in which both systems had their whole turn.
    pub(super) rounds: usize,
    pub(super) median: f64,
    pub(super) lowest: f64,
    pub(super) highest: f64,
}

impl Comparison {
    /// `None` where no round was completed, or the other system did no section in one.
    pub(super) fn of(workers: usize, runs: &[Run]) -> Option<Comparison> {
        let pairs: Vec<(&Run, &Run)> = runs.chunks(2).filter_map(pair).collect();
        let (_, other) = pairs.first()?;
        let ratios: Option<Vec<f64>> = pairs
            .iter()
            .map(|(ours, other)| (other.sections > 0).then(|| rate(ours) / rate(other)))
            .collect();
        let mut ratios = ratios?;
        ratios.sort_by(f64::total_cmp);
        // The same ratio twice, where their number is odd.
        let middle = [ratios[(ratios.len() - 1) / 2], ratios[ratios.len() / 2]];
        Some(Comparison {
            workers,
            other: other.system,
            rounds: pairs.len(),
            median: rounded(middle.iter().sum::<f64>() / 2.0, 3),
            lowest: rounded(ratios[0], 3),
            highest: rounded(ratios[ratios.len() - 1], 3),
        })
    }
}

/// The two runs of a round, that of the service first, where both are whole.
fn pair(round: &[Run]) -> Option<(&Run, &Run)> {
    match round {
        [one, two] if one.interrupted || two.interrupted => None,
        [ours, other] if ours.system == System::Fermata => Some((ours, other)),
        [other, ours] => Some((ours, other)),
        _ => None,
    }
}

/// Sections in a second, not rounded.
fn rate(run: &Run) -> f64 {
    run.sections as f64 * 1000.0 / run.elapsed_ms.max(1) as f64
}

#[cfg(test)]
pub(super) mod tests {
    use std::convert::Infallible;
    use std::time::Duration;

    use super::*;
    use crate::load::Outcome;
    use crate::measure::{Measured, Phase};

    /// A run of one second with this many sections.
    fn run(sections: u64) -> Run {
        let mut measured = Measured::new().unwrap();
        for _ in 0..sections {
            measured.record(Phase::Section, Duration::from_millis(8));
        }
        let outcome = Outcome {
            elapsed: Duration::from_secs(1),
            ..Outcome::default()
        };
        Run::new(16, 1, outcome, &measured)
    }

    /// Three rounds, in the first of which the baseline was slow.
    pub(crate) async fn three_rounds() -> Vec<Run> {
        let turn = async |system, round| {
            Ok::<_, Infallible>(match (system, round) {
                (System::Fermata, _) => run(120),
                (System::Music, 1) => run(50),
                (_, _) => run(100),
            })
        };
        alternate(System::Music, 3, turn).await.unwrap()
    }

    #[tokio::test]
    async fn the_two_take_turns() {
        let runs = three_rounds().await;
        let turns: Vec<_> = runs.iter().map(|run| (run.round, run.system)).collect();
        let (ours, other) = (System::Fermata, System::Music);
        let expected = [
            (1, ours),
            (1, other),
            (2, other),
            (2, ours),
            (3, ours),
            (3, other),
        ];
        assert_eq!(turns, expected.map(|(round, system)| (Some(round), system)));
    }

    #[tokio::test]
    async fn an_error_or_an_interruption_ends_the_turns() {
        let failed = alternate(System::Puts, 3, async |system, _| match system {
            System::Fermata => Ok(run(1)),
            _ => Err("gone"),
        });
        assert_eq!(failed.await.unwrap_err(), "gone");

        let turn = async |system, round| {
            Ok::<_, Infallible>(Run {
                interrupted: system == System::Music && round == 2,
                ..run(10)
            })
        };
        let runs = alternate(System::Music, 3, turn).await.unwrap();
        assert_eq!(runs.len(), 3);
        let compared = Comparison::of(16, &runs).unwrap();
        assert_eq!(compared.rounds, 1, "the second one was cut short");
        assert_eq!(Comparison::of(16, &runs[..1]), None);
    }

    #[tokio::test]
    async fn the_ratio_is_the_median_of_the_rounds_and_not_of_their_sums() {
        let runs = three_rounds().await;
        let ratio = |runs: &[Run]| {
            let all = Comparison::of(16, runs).unwrap();
            (all.median, all.lowest, all.highest)
        };
        assert_eq!(ratio(&runs), (1.2, 1.2, 2.4));
        assert_eq!(ratio(&runs[..4]), (1.8, 1.2, 2.4), "between the two");
    }

    #[test]
    fn a_baseline_without_sections_has_no_ratio() {
        let runs = [(System::Fermata, 10), (System::Music, 0)];
        let runs = runs.map(|(system, sections)| Run {
            system,
            ..run(sections)
        });
        assert_eq!(Comparison::of(1, &runs), None);
    }
}
