//! The report of two systems in turns, as text.

use std::fmt::Write as _;

use super::baseline::BaselineSettings;
use super::report::Report;
use super::rounds::{Comparison, Side};
use super::table::{aligned, ms, span, verdict};

const HEAD: [&str; 12] = [
    "workers",
    "system",
    "sections/s",
    "lowest",
    "highest",
    "p50",
    "p99",
    "create",
    "acquire",
    "get",
    "put",
    "release",
];
/// The column of names; all others are numbers.
const SYSTEM: usize = 1;

/// The table, what it comes to, and how to read it.
pub(super) fn text(report: &Report, baseline: &BaselineSettings) -> String {
    let mut rows = vec![HEAD.map(str::to_owned)];
    for one in &report.comparisons {
        rows.extend([&one.fermata, &one.baseline].map(|side| row(one.workers, side)));
    }
    let mut out = String::new();
    if report.comparisons.is_empty() {
        out.push_str("No round was completed.\n\n");
    } else {
        out.push_str(&aligned(&rows, SYSTEM));
        out.push_str(
            "Medians of the rounds; p50 and p99 are those of sections, the others p50 of their calls; in ms.\n\n",
        );
    }
    for one in &report.comparisons {
        out.push_str(&result(one));
    }
    let counted: Vec<_> = report
        .runs
        .iter()
        .filter(|run| !run.is_clean(true))
        .collect();
    if counted.is_empty() {
        // Writing to a string cannot fail, here and below.
        let _ = writeln!(
            out,
            "no errors, and every counter exact, in all {} runs",
            report.runs.len()
        );
    }
    for run in counted {
        let round = run.round.unwrap_or_default();
        let _ = write!(out, "{}, round {round}, ", run.system.name());
        out.push_str(&verdict(run, &report.settings));
    }
    let _ = writeln!(
        out,
        "\nIn each of {} rounds fermata had its turn, then {}, each for {} after a warm-up of {}.\n\
         {} is the sequence of statements alone, sent from this process straight to Cassandra, with no\n\
         service in between, on keys that are new in each round: both favour it.",
        baseline.rounds,
        baseline.system.name(),
        span(report.settings.duration_ms),
        span(report.settings.warm_up_ms),
        baseline.system.name(),
    );
    out
}

fn row(workers: usize, side: &Side) -> [String; HEAD.len()] {
    let rate = side.sections_per_s;
    let time = |name: &str, p99: bool| {
        let phase = side.phases.iter().find(|phase| phase.phase == name);
        let us = phase.map(|phase| if p99 { phase.p99_us } else { phase.p50_us });
        us.map_or("-".to_owned(), ms)
    };
    [
        workers.to_string(),
        side.system.name().to_owned(),
        format!("{:.1}", rate.median),
        format!("{:.1}", rate.lowest),
        format!("{:.1}", rate.highest),
        time("section", false),
        time("section", true),
        time("create", false),
        time("acquire", false),
        time("get", false),
        time("put", false),
        time("release", false),
    ]
}

/// Which one did more.
fn result(one: &Comparison) -> String {
    let plural = if one.workers == 1 { "" } else { "s" };
    let rounds = if one.rounds == 1 { "round" } else { "rounds" };
    let other = one.baseline.system.name();
    match one.ratio {
        Some(ratio) => format!(
            "{} worker{plural}: fermata did {:.2} times the sections of {other} ({:.2} to {:.2} in {} {rounds})\n",
            one.workers, ratio.median, ratio.lowest, ratio.highest, one.rounds,
        ),
        None => format!("{} worker{plural}: {other} did no section\n", one.workers),
    }
}

#[cfg(test)]
mod tests {
    use super::super::System;
    use super::super::rounds::tests::three_rounds;
    use super::super::table::tests::report;
    use super::*;

    #[tokio::test]
    async fn the_two_stand_under_each_other_and_their_ratio_below() {
        let runs = three_rounds().await;
        let mut report = report(Vec::new());
        report.comparisons.extend(Comparison::of(16, &runs));
        let baseline = BaselineSettings {
            system: System::Music,
            contact_points: Vec::new(),
            keyspace: "k".to_owned(),
            rounds: 3,
        };
        let text = text(&report, &baseline);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines[..3],
            [
                "workers  system   sections/s  lowest  highest     p50     p99  create  acquire  get  put  release",
                "     16  fermata       120.0   120.0    120.0   8.003   8.003       -        -    -    -        -",
                "     16  music         100.0    50.0    100.0  20.015  20.015       -        -    -    -        -",
            ]
        );
        assert_eq!(
            lines[5],
            "16 workers: fermata did 1.20 times the sections of music (1.20 to 2.40 in 3 rounds)"
        );
    }
}
