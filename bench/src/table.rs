//! The report as text: a table that aligns, and below it what one must know to read it.

use std::fmt::Write as _;

use fermata_command::output::aligned;

use super::cells::{counted, ms, span, verdict};
use super::disk::Disk;
use super::keys::{KeyChoice, Near};
use super::report::{Report, Settings, Transport};
use super::rounds_table;
use super::run::Run;
use super::workload::Form;

const HEAD: [&str; 8] = [
    "phase", "count", "mean", "p50", "p90", "p99", "p99.9", "max",
];
/// The column of names; all others are numbers.
const PHASE: usize = 0;

/// The whole report.
pub(super) fn text(report: &Report) -> String {
    let mut out = settings(&report.settings);
    out.push('\n');
    match &report.settings.baseline {
        None => out.push_str(&runs(report)),
        Some(baseline) => out.push_str(&rounds_table::text(report, baseline)),
    }
    if let Some(disk) = &report.disk {
        // Writing to a string cannot fail, here and below.
        let _ = writeln!(out, "disk: 4 KiB appended and synced in {}", disk.directory);
        for (when, disk) in [("before", &disk.before), ("after", &disk.after)] {
            let _ = writeln!(out, "  {when}: {}", probed(disk));
        }
    }
    out.push_str(match report.settings.is_open() {
        false => {
            "\nClosed loop: a worker begins a section when its last one ends. So a stall of\n\
             the server shows in the highest latencies and in the rate, but as no more slow\n\
             sections than there are workers.\n"
        }
        true => {
            "\nOpen loop: sections are due at equal distances, and how long one took counts\n\
             from then. So a stall of the server makes all slow that came meanwhile. The\n\
             times of its calls count from when they were made.\n"
        }
    });
    out
}

/// Every run by itself.
fn runs(report: &Report) -> String {
    let mut rows = vec![HEAD.map(str::to_owned)];
    for run in &report.runs {
        rows.extend(phases(run));
    }
    let mut lines = aligned(&rows, |column| column == PHASE).into_iter();
    let mut out = String::new();
    let mut line = |out: &mut String| {
        out.push_str(&lines.next().unwrap_or_default());
        out.push('\n');
    };
    line(&mut out);
    for run in &report.runs {
        let _ = writeln!(
            out,
            "\n{}, {}: {:.1}{} sections/s{}",
            counted(run.workers, "worker"),
            counted(run.connections, "connection"),
            run.sections_per_s,
            run.rate
                .map_or(String::new(), |rate| format!(" of {rate:.1}")),
            match run.not_begun {
                0 => String::new(),
                left => format!(", {left} not begun"),
            },
        );
        for _ in &run.phases {
            line(&mut out);
        }
    }
    out.push_str("\nTimes in ms, of calls that succeeded.\n\n");
    let bound = span(report.settings.p999_below_ms.unwrap_or_default());
    for found in &report.highest_rates {
        let workers = counted(found.workers, "worker");
        let _ = match found.rate {
            Some(rate) => writeln!(
                out,
                "{workers}: p99.9 below {bound} up to {rate:.1} sections/s"
            ),
            None => writeln!(out, "{workers}: p99.9 below {bound} at no rate"),
        };
    }
    for run in &report.runs {
        out.push_str(&verdict(run, &report.settings));
    }
    out
}

fn settings(settings: &Settings) -> String {
    let calls = match settings.form {
        Form::Full => "section: create, acquire if waiting, get, put, release",
        Form::Short => "section: create with the value, acquire if waiting, release with the put",
        Form::Lock => "lock: create, acquire if waiting, release",
    };
    let keys = match (settings.keys, settings.key_count, settings.zipf_skew) {
        (KeyChoice::Own, ..) => "a key for each worker".to_owned(),
        (KeyChoice::One, ..) => "one key for all".to_owned(),
        (KeyChoice::New, ..) => "a new key for each section".to_owned(),
        (KeyChoice::Zipf, count, skew) => format!(
            "{} keys, Zipf {}",
            count.unwrap_or_default(),
            skew.unwrap_or_default()
        ),
        (KeyChoice::Near, count, _) => {
            let near = settings.near.unwrap_or_default();
            let (count, share) = (count.unwrap_or_default(), near.share * 100.0);
            let Near { part, parts, .. } = near;
            format!("{count} keys, {share:.0} % of the sections on part {part} of {parts}")
        }
    };
    let value = match settings.value_bytes {
        Some(bytes) => format!(", values of {bytes} bytes"),
        None => String::new(),
    };
    let location = match settings.transport {
        Transport::Grpc => format!("at {}", settings.endpoints.join(", ")),
        Transport::Pipeline => format!("at {} over Pipelines", settings.endpoints.join(", ")),
    };
    let held = match settings.hold_ms {
        0 => String::new(),
        ms => format!(", held for {}", span(ms)),
    };
    let beside = match settings.sessions {
        0 => String::new(),
        many => format!("{} renewed beside them\n", counted(many, "session")),
    };
    format!(
        "{calls}\n{keys}{value}{held}, TTL {}, {} after a warm-up of {}\n{beside}{location}\n",
        span(settings.ttl_ms),
        span(settings.duration_ms),
        span(settings.warm_up_ms),
    )
}

fn phases(run: &Run) -> impl Iterator<Item = [String; HEAD.len()]> {
    run.phases.iter().map(|row| {
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
    })
}

fn probed(disk: &Disk) -> String {
    format!(
        "p50 {} ms, p99 {} ms, max {} ms ({} syncs)",
        ms(disk.p50_us),
        ms(disk.p99_us),
        ms(disk.max_us),
        disk.syncs
    )
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::counters::CounterCheck;
    use super::super::report::{DiskReport, HighestRate};
    use super::super::run::tests::outcome;
    use super::*;

    pub(crate) fn report(runs: Vec<Run>) -> Report {
        Report {
            settings: Settings {
                version: "0",
                form: Form::Full,
                transport: Transport::Grpc,
                endpoints: vec!["http://here:1".to_owned()],
                table: String::new(),
                keys: KeyChoice::Own,
                key_count: None,
                zipf_skew: None,
                near: None,
                value_bytes: Some(64),
                sessions: 0,
                ttl_ms: 30_000,
                hold_ms: 0,
                warm_up_ms: 500,
                duration_ms: 10_000,
                load_loop: "closed",
                p999_below_ms: None,
                baseline: None,
            },
            runs,
            comparisons: Vec::new(),
            highest_rates: Vec::new(),
            disk: None,
            clean: false,
        }
    }

    #[test]
    fn the_columns_of_all_runs_align() {
        let text = text(&report(vec![
            Run::new(1, 1, outcome()),
            Run::new(64, 4, outcome()),
        ]));
        let table: Vec<&str> = text.lines().skip(4).take(7).collect();
        assert_eq!(
            table,
            [
                "phase    count     mean      p50      p90      p99    p99.9     max",
                "",
                "1 worker, 1 connection: 100.0 sections/s",
                "section   1000  500.505  500.223  900.095  990.207  999.423  1000.4",
                "",
                "64 workers, 4 connections: 100.0 sections/s",
                "section   1000  500.505  500.223  900.095  990.207  999.423  1000.4",
            ]
        );
    }

    #[test]
    fn an_open_loop_shows_the_rate_that_was_asked_for_and_the_highest_one_in_time() {
        let run = Run {
            rate: Some(200.0),
            not_begun: 7,
            ..Run::new(64, 4, outcome())
        };
        let mut report = report(vec![run]);
        report.settings.load_loop = "open";
        report.settings.p999_below_ms = Some(50);
        let rate = Some(100.0);
        report.highest_rates.push(HighestRate { workers: 64, rate });
        let text = text(&report);
        for line in [
            "64 workers, 4 connections: 100.0 of 200.0 sections/s, 7 not begun",
            "64 workers: p99.9 below 50ms up to 100.0 sections/s",
            "Open loop: sections are due at equal distances, and how long one took counts",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
    }

    #[test]
    fn the_report_fits_80_columns() {
        let mut runs = vec![
            Run::new(1, 1, outcome()),
            Run::new(100_000, 10_000, outcome()),
        ];
        runs[1].phases.clear();
        let many = 9_999_999;
        for phase in &mut runs[0].phases {
            let us = 99_999_900;
            phase.count = 999_999_999;
            phase.mean_us = 99_999_900.0;
            (phase.p50_us, phase.p90_us) = (us, us);
            (phase.p99_us, phase.p999_us, phase.max_us) = (us, us, us);
        }
        for (run, lost) in runs.iter_mut().zip([0, many]) {
            run.errors_by_code.clear();
            run.counter_check = Some(CounterCheck {
                acknowledged: many,
                unknown: 99_999,
                stored: many + 99_999,
                lost,
                ..CounterCheck::default()
            });
        }
        let mut report = report(runs);
        let disk = Disk {
            syncs: 99_999,
            p50_us: 99_999,
            p99_us: 99_999,
            max_us: 99_999,
        };
        report.disk = Some(DiskReport {
            directory: "/var/lib/fermata".to_owned(),
            before: disk.clone(),
            after: disk,
        });
        for form in [Form::Full, Form::Short, Form::Lock] {
            report.settings.form = form;
            for line in text(&report).lines() {
                assert!(line.chars().count() <= 80, "{line}");
            }
        }
    }

    #[test]
    fn errors_and_lost_increments_are_seen() {
        let mut run = Run::new(2, 1, outcome());
        run.counter_check = Some(CounterCheck {
            lost: 3,
            ..CounterCheck::default()
        });
        let text = text(&report(vec![run]));
        assert!(text.contains("errors: 1;"), "{text}");
        assert!(text.contains("1 x put UNAVAILABLE: gone"), "{text}");
        assert!(
            text.contains("NOT EXACT") && text.contains("3 LOST"),
            "{text}"
        );
    }
}
