//! The report of a plan, as JSON and as text. The fields of the JSON are stable: none is renamed or removed, others may join.

use std::fmt::Write as _;

use fermata_command::Failure;
use fermata_command::output::{Format, aligned, print_text};
use serde::Serialize;

use super::plan::{Form, Plan};
use super::rounds::Comparison;
use super::run::{PhaseRow, Run};

/// All runs of a plan.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    version: &'static str,
    settings: Plan,
    pub(super) runs: Vec<Run>,
    /// One for each number of workers, where there is a baseline.
    pub(super) comparisons: Vec<Comparison>,
    /// No errors, no section unfinished or not begun, and every counter exact.
    pub(super) clean: bool,
}

impl Report {
    pub(super) fn new(plan: &Plan, runs: Vec<Run>, comparisons: Vec<Comparison>) -> Report {
        let counts = plan.form != Form::Lock;
        Report {
            version: env!("CARGO_PKG_VERSION"),
            settings: plan.clone(),
            clean: runs.iter().all(|run| run.is_clean(counts)),
            runs,
            comparisons,
        }
    }
}

/// Prints a report in this format.
pub(super) fn print(
    report: &impl Serialize,
    format: Format,
    text: impl FnOnce() -> String,
) -> Result<(), Failure> {
    let text = match format {
        Format::Text => text(),
        Format::Json => {
            let json = serde_json::to_string_pretty(report).map_err(std::io::Error::from)?;
            json + "\n"
        }
    };
    Ok(print_text(&text)?)
}

/// The latencies of some phases, in ms.
pub(super) fn latencies<'a>(rows: impl IntoIterator<Item = &'a PhaseRow>) -> String {
    let head = ["ms", "count", "mean", "p50", "p90", "p99", "p99.9", "max"];
    let mut table = vec![head.map(str::to_owned)];
    table.extend(rows.into_iter().map(|row| {
        [
            row.phase.to_owned(),
            row.count.to_string(),
            ms(row.mean_us.round() as u64),
            ms(row.p50_us),
            ms(row.p90_us),
            ms(row.p99_us),
            ms(row.p999_us),
            ms(row.max_us),
        ]
    }));
    let lines = aligned(&table, |column| column == 0).into_iter();
    lines.map(|line| line + "\n").collect()
}

/// Seven characters at most, up to 100,000 s.
fn ms(us: u64) -> String {
    if us < 1_000_000 {
        format!("{}.{:03}", us / 1000, us % 1000)
    } else {
        format!("{}.{}", us / 1000, us % 1000 / 100)
    }
}

/// `1 worker`, `2 workers`.
fn counted(count: usize, one: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {one}{plural}")
}

/// The report of a plan as text.
pub(super) fn text(report: &Report) -> String {
    let plan = &report.settings;
    let calls = match plan.form {
        Form::Full => "create, acquire if waiting, get, put, release",
        Form::Short => "create with the value, acquire if waiting, release with the put",
        Form::Lock => "create, acquire if waiting, release",
    };
    let load = &plan.load;
    let mut out = format!(
        "section: {calls}\nkeys: {}; TTL {}; {} after a warm-up of {}\nat {}{}\n",
        load.keys.name(),
        load.ttl,
        load.duration,
        load.warm_up,
        plan.endpoints.join(", "),
        if load.pipeline { " over Pipelines" } else { "" },
    );
    for run in &report.runs {
        out.push_str(&run_text(run, plan.form));
    }
    out.push('\n');
    for one in &report.comparisons {
        // Writing to a string cannot fail, here and below.
        let _ = writeln!(
            out,
            "{}: {:.2} times the sections of {} ({:.2} to {:.2} in {})",
            counted(one.workers, "worker"),
            one.median,
            one.other.name(),
            one.lowest,
            one.highest,
            counted(one.rounds, "round"),
        );
    }
    out
}

fn run_text(run: &Run, form: Form) -> String {
    let round = run
        .round
        .map(|round| format!("round {round}, {}, ", run.system.name()));
    let mut out = format!(
        "\n{}{}, {}: {:.1} sections/s",
        round.unwrap_or_default(),
        counted(run.workers, "worker"),
        counted(run.connections, "connection"),
        run.sections_per_s
    );
    if let Some(rate) = run.rate {
        let _ = write!(out, " of {rate:.1}, {} not begun", run.not_begun);
    }
    out.push('\n');
    out.push_str(&latencies(&run.phases));
    if run.interrupted {
        out.push_str("interrupted; ");
    }
    if run.unfinished > 0 {
        let _ = write!(out, "{} cut off; ", counted(run.unfinished, "section"));
    }
    let _ = write!(out, "errors: {}; ", run.errors);
    let _ = match &run.counter_check {
        _ if form == Form::Lock => writeln!(out, "no counters"),
        None => writeln!(out, "counters: NOT CHECKED"),
        Some(check) => writeln!(
            out,
            "counters: {}\n  {} increments acknowledged, {} of unknown outcome, {} stored;\n  \
             {} LOST, {} too many; {} of {} counters not read",
            if check.is_exact() {
                "exact"
            } else {
                "NOT EXACT"
            },
            check.acknowledged,
            check.unknown,
            check.stored,
            check.lost,
            check.surplus,
            check.unread,
            check.keys,
        ),
    };
    for row in &run.errors_by_code {
        let (phase, code) = (row.phase, &row.code);
        let _ = writeln!(out, "  {} x {phase} {code}: {}", row.count, row.message);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::counters::CounterCheck;
    use crate::plan::tests::plan;
    use crate::rounds::tests::three_rounds;
    use crate::run::tests::run;

    fn text_of(line: &str, runs: Vec<Run>) -> String {
        text(&Report::new(&plan(line).unwrap(), runs, Vec::new()))
    }

    #[tokio::test]
    async fn two_systems_are_compared_below_their_runs() {
        let runs = three_rounds().await;
        let comparisons = Comparison::of(16, &runs).into_iter().collect();
        let text = text(&Report::new(&plan("section").unwrap(), runs, comparisons));
        for line in [
            "round 1, music, 16 workers, 1 connection: 50.0 sections/s",
            "16 workers: 1.20 times the sections of music (1.20 to 2.40 in 3 rounds)",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
    }

    #[test]
    fn errors_and_lost_increments_are_seen() {
        let check = CounterCheck {
            lost: 3,
            ..CounterCheck::default()
        };
        let lost = Run {
            counter_check: Some(check),
            ..run(2)
        };
        let text = text_of("section", vec![lost]);
        for words in [
            "errors: 1;",
            "1 x put UNAVAILABLE: gone",
            "NOT EXACT",
            "3 LOST",
        ] {
            assert!(text.contains(words), "{words}\n{text}");
        }
    }
}
