//! The report of two systems in turns, as text.

use std::fmt::Write as _;

use fermata_command::output::aligned;

use super::baseline::BaselineSettings;
use super::cells::{counted, ms, span, verdict};
use super::report::Report;
use super::rounds::{Comparison, PhaseMedians, Side};

const SECTIONS: [&str; 7] = [
    "workers",
    "system",
    "sections/s",
    "lowest",
    "highest",
    "p50",
    "p99",
];
const CALLS: [&str; 7] = [
    "workers", "system", "create", "acquire", "get", "put", "release",
];
/// The column of names; all others are numbers.
const SYSTEM: usize = 1;

/// The table, what it comes to, and how to read it.
pub(super) fn text(report: &Report, baseline: &BaselineSettings) -> String {
    let other = baseline.system.name();
    let mut sections = vec![SECTIONS.map(str::to_owned)];
    let mut calls = vec![CALLS.map(str::to_owned)];
    for one in &report.comparisons {
        for side in [&one.fermata, &one.baseline] {
            sections.push(sections_of(one.workers, side));
            calls.push(calls_of(one.workers, side));
        }
    }
    let mut out = String::new();
    if report.comparisons.is_empty() {
        out.push_str("No round was completed.\n\n");
    } else {
        out.push_str(&text_of(&sections));
        out.push_str("Medians of the rounds; p50 and p99 of whole sections, in ms.\n\n");
        out.push_str(&text_of(&calls));
        out.push_str("Medians of the rounds; p50 of each call, in ms.\n\n");
    }
    for one in &report.comparisons {
        out.push_str(&result(one));
    }
    let unclean: Vec<_> = report
        .runs
        .iter()
        .filter(|run| !run.is_clean(true))
        .collect();
    if unclean.is_empty() {
        // Writing to a string cannot fail, here and below.
        let _ = writeln!(
            out,
            "no errors, and every counter exact, in all {} runs",
            report.runs.len()
        );
    }
    for run in unclean {
        let round = run.round.unwrap_or_default();
        let _ = write!(out, "{}, round {round}, ", run.system.name());
        out.push_str(&verdict(run, &report.settings));
    }
    let _ = writeln!(
        out,
        "\nIn each of {} rounds fermata and {other} had a turn, in changing order,\n\
         each for {} after a warm-up of {}.\n\
         {other} is its statements alone, sent from this\n\
         process straight to Cassandra, with no service in between, on keys that are\n\
         new in each round: both favour it.",
        baseline.rounds,
        span(report.settings.duration_ms),
        span(report.settings.warm_up_ms),
    );
    out
}

fn text_of<const COLUMNS: usize>(rows: &[[String; COLUMNS]]) -> String {
    let lines = aligned(rows, |column| column == SYSTEM);
    lines.into_iter().map(|line| line + "\n").collect()
}

fn sections_of(workers: usize, side: &Side) -> [String; SECTIONS.len()] {
    let rate = side.sections_per_s;
    [
        workers.to_string(),
        side.system.name().to_owned(),
        format!("{:.1}", rate.median),
        format!("{:.1}", rate.lowest),
        format!("{:.1}", rate.highest),
        time(side, "section", |phase| phase.p50_us),
        time(side, "section", |phase| phase.p99_us),
    ]
}

fn calls_of(workers: usize, side: &Side) -> [String; CALLS.len()] {
    let [.., create, acquire, get, put, release] =
        CALLS.map(|call| time(side, call, |phase| phase.p50_us));
    let system = side.system.name().to_owned();
    [
        workers.to_string(),
        system,
        create,
        acquire,
        get,
        put,
        release,
    ]
}

fn time(side: &Side, name: &str, us: impl Fn(&PhaseMedians) -> u64) -> String {
    let phase = side.phases.iter().find(|phase| phase.phase == name);
    phase.map_or("-".to_owned(), |phase| ms(us(phase)))
}

/// Which one did more.
fn result(one: &Comparison) -> String {
    let workers = counted(one.workers, "worker");
    let other = one.baseline.system.name();
    match one.ratio {
        Some(ratio) => format!(
            "{workers}: {:.2} times the sections of {other} ({:.2} to {:.2} in {})\n",
            ratio.median,
            ratio.lowest,
            ratio.highest,
            counted(one.rounds, "round"),
        ),
        None => format!("{workers}: {other} did no section\n"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::baseline::System;
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
                "workers  system   sections/s  lowest  highest     p50     p99",
                "     16  fermata       120.0   120.0    120.0   8.003   8.003",
                "     16  music         100.0    50.0    100.0  20.015  20.015",
            ]
        );
        assert_eq!(
            lines[5..8],
            [
                "workers  system   create  acquire  get  put  release",
                "     16  fermata       -        -    -    -        -",
                "     16  music         -        -    -    -        -",
            ]
        );
        assert_eq!(
            lines[10],
            "16 workers: 1.20 times the sections of music (1.20 to 2.40 in 3 rounds)"
        );
        assert!(text.contains("with no service in between"), "{text}");
    }
}
