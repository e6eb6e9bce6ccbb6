//! The live line on a terminal: what is running, how fast, and how many errors there were.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use tokio::time::Instant;

/// A line on stderr, if that is a terminal.
#[derive(Debug)]
pub(super) struct Progress {
    line: ProgressBar,
    workers: usize,
    start: Instant,
    end: Instant,
    /// What was shown last: sections, and when.
    last: (u64, Instant),
}

impl Progress {
    pub(super) fn new(workers: usize, start: Instant, end: Instant) -> Progress {
        let line = ProgressBar::new_spinner();
        if let Ok(style) = ProgressStyle::with_template("{spinner} {msg}") {
            line.set_style(style);
        }
        Progress {
            line,
            workers,
            start,
            end,
            last: (0, start),
        }
    }

    /// Shows the rate since the last time, by what was done so far.
    pub(super) fn show(&mut self, sections: u64, errors: u64) {
        let now = Instant::now();
        let more = sections.saturating_sub(self.last.0) as f64;
        let since = now.saturating_duration_since(self.last.1);
        self.last = (sections, now);
        self.line.set_message(text(
            self.workers,
            now.saturating_duration_since(self.start),
            self.end.saturating_duration_since(self.start),
            more / since.as_secs_f64().max(0.001),
            errors,
        ));
        self.line.tick();
    }

    pub(super) fn clear(&self) {
        self.line.finish_and_clear();
    }
}

fn text(workers: usize, elapsed: Duration, whole: Duration, rate: f64, errors: u64) -> String {
    let plural = if workers == 1 { "worker" } else { "workers" };
    let end = if elapsed > whole { ", ending" } else { "" };
    format!(
        "{workers} {plural}  {:.1} of {:.1} s{end}  {rate:.0} sections/s  errors: {errors}",
        elapsed.as_secs_f64(),
        whole.as_secs_f64(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_says_when_it_only_waits_for_the_last_sections() {
        let secs = Duration::from_secs;
        assert_eq!(
            text(1, secs(3), secs(12), 900.4, 0),
            "1 worker  3.0 of 12.0 s  900 sections/s  errors: 0"
        );
        assert_eq!(
            text(16, secs(13), secs(12), 9.9, 2),
            "16 workers  13.0 of 12.0 s, ending  10 sections/s  errors: 2"
        );
    }
}
