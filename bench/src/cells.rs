//! What the tables of sections and of rounds have in common.

use std::fmt::Write as _;

use fermata_command::Span;

use super::report::Settings;
use super::run::Run;
use super::workload::Form;

/// `1 worker`, `2 workers`.
pub(super) fn counted(count: usize, one: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {one}{plural}")
}

pub(super) fn span(ms: u64) -> Span {
    Span::from_millis(ms)
}

/// As precise as seven characters can say it.
pub(super) fn ms(us: u64) -> String {
    if us < 1_000_000 {
        format!("{}.{:03}", us / 1000, us % 1000)
    } else {
        format!("{}.{}", us / 1000, us % 1000 / 100)
    }
}

/// Errors and counters of one run.
pub(super) fn verdict(run: &Run, settings: &Settings) -> String {
    let mut out = String::new();
    let _ = write!(out, "{}: ", counted(run.workers, "worker"));
    if run.interrupted {
        out.push_str("interrupted; ");
    }
    if run.unfinished > 0 {
        let _ = write!(out, "{} sections cut off; ", run.unfinished);
    }
    let _ = write!(out, "errors: {}; ", run.errors);
    match &run.counter_check {
        _ if settings.form == Form::Lock => out.push_str("nothing was written\n"),
        None => out.push_str("counters: NOT CHECKED\n"),
        Some(check) if check.is_exact() => {
            let unknown = match check.unknown {
                0 => String::new(),
                unknown => format!(", {unknown} of unknown outcome"),
            };
            let _ = writeln!(
                out,
                "counters: exact\n  {} increments acknowledged{unknown}, {} stored",
                check.acknowledged, check.stored,
            );
        }
        Some(check) => {
            let _ = writeln!(
                out,
                "counters: NOT EXACT\n  {} increments acknowledged, {} of unknown outcome, {} stored;\n  \
                 {} LOST, {} too many; {} of {} counters not read",
                check.acknowledged,
                check.unknown,
                check.stored,
                check.lost,
                check.surplus,
                check.unread,
                check.keys,
            );
        }
    }
    for row in &run.errors_by_code {
        let _ = writeln!(
            out,
            "  {} x {} {}: {}",
            row.count, row.phase, row.code, row.message
        );
    }
    out
}
