//! What came of a soak, as text.

use std::fmt::Write as _;
use std::time::Duration;

use super::faults::Kind;
use super::machine;
use super::run::SoakOptions;
use super::timeline::{Sample, Span, clock};

/// How many violations are kept.
const BROKEN_MAX: usize = 100;
/// How many of the longest standstills are told.
const STANDSTILLS_MAX: usize = 5;

/// One turn that came.
#[derive(Clone, Copy, Debug)]
pub struct Waited {
    /// When.
    pub held: Duration,
    /// For how long its client had waited.
    pub wait: Duration,
}

pub struct Report {
    pub began: String,
    pub facts: Vec<(&'static str, String)>,
    pub seed: u64,
    pub replicas: usize,
    /// Nothing was cut off: there was no network for it.
    pub without_cuts: bool,
    /// For how long all of it took.
    pub took: Duration,
    /// In order.
    pub waited: Vec<Waited>,
    pub faults: Vec<Span>,
    pub samples: Vec<Sample>,
    /// From the begin of each round whose turns are known to the end of its last fault.
    pub rounds: Vec<(Duration, Duration)>,
    pub operations: usize,
    pub sections: usize,
    pub unknown: usize,
    /// Tries that were made again.
    pub repeats: usize,
    /// Entries that ended before their section did, and were asked for again.
    pub lost: usize,
    /// The longest wait for a turn after the last fault of a round.
    pub longest_after: Duration,
    pub violations: Vec<String>,
    /// Why it ended before its time, where that was not the service's fault.
    pub ended_early: Option<String>,
}

/// A span in which nobody who counts got a turn.
pub struct Standstill {
    pub from: Duration,
    pub lasted: Duration,
    /// What was active in it.
    pub faults: Vec<String>,
}

/// What is told of one kind of fault.
pub struct OfKind {
    pub kind: Kind,
    pub count: usize,
    /// The longest of them.
    pub lasted: Duration,
    /// The longest wait of anybody who waited while one was active.
    pub waited: Duration,
}

impl Report {
    pub fn new(asked: &SoakOptions, began: String, replicas: usize) -> Report {
        Report {
            began,
            facts: machine::facts(),
            seed: asked.seed,
            replicas,
            without_cuts: !asked.may_cut,
            took: Duration::ZERO,
            waited: Vec::new(),
            faults: Vec::new(),
            samples: Vec::new(),
            rounds: Vec::new(),
            operations: 0,
            sections: 0,
            unknown: 0,
            repeats: 0,
            lost: 0,
            longest_after: Duration::ZERO,
            violations: Vec::new(),
            ended_early: None,
        }
    }

    /// Something that was promised was not so.
    pub fn broken(&mut self, words: String) {
        if self.violations.len() < BROKEN_MAX {
            self.violations.push(words);
        }
    }

    pub fn kinds(&self) -> Vec<OfKind> {
        let of = |kind| {
            let spans: Vec<&Span> = self.faults.iter().filter(|s| s.kind == kind).collect();
            let waiting = |span: &&Span| {
                let during = self.waited.iter().filter(|waited| {
                    let asked = waited.held.saturating_sub(waited.wait);
                    asked <= span.to && waited.held >= span.from
                });
                during.map(|waited| waited.wait).max()
            };
            OfKind {
                kind,
                count: spans.len(),
                lasted: spans
                    .iter()
                    .map(|s| s.to.saturating_sub(s.from))
                    .max()
                    .unwrap_or_default(),
                waited: spans.iter().filter_map(waiting).max().unwrap_or_default(),
            }
        };
        let kinds = Kind::ALL.into_iter().map(of);
        kinds.filter(|of_kind| of_kind.count > 0).collect()
    }

    /// The longest spans of any round in which no turn came, the longest first.
    pub fn standstills(&self) -> Vec<Standstill> {
        let mut spans: Vec<(Duration, Duration)> = Vec::new();
        for (begun, healed) in self.rounds.iter().copied() {
            let held = self.waited.iter().map(|waited| waited.held);
            let held = held.filter(move |held| (begun..healed).contains(held));
            let ends = held.clone().chain([healed]);
            spans.extend([begun].into_iter().chain(held).zip(ends));
        }
        spans.sort_by_key(|(from, to)| std::cmp::Reverse(to.saturating_sub(*from)));
        let longest = spans.into_iter().take(STANDSTILLS_MAX);
        longest
            .map(|(from, to)| {
                let during = self.faults.iter().filter(|s| s.from < to && s.to > from);
                Standstill {
                    from,
                    lasted: to.saturating_sub(from),
                    faults: during.map(Span::words).collect(),
                }
            })
            .collect()
    }

    /// Everything in one number each, with what it is called.
    pub fn totals(&self) -> Vec<(&'static str, String)> {
        let mut waits: Vec<Duration> = self.waited.iter().map(|waited| waited.wait).collect();
        waits.sort_unstable();
        let wait = |hundredths| format!("{:.2} s", quantile(&waits, hundredths).as_secs_f64());
        let seconds = self.took.as_secs_f64().max(1.0);
        vec![
            ("violations", self.violations.len().to_string()),
            ("faults survived", self.faults.len().to_string()),
            ("operations", self.operations.to_string()),
            ("of unknown outcome", self.unknown.to_string()),
            ("made again", self.repeats.to_string()),
            (
                "counted under locks",
                format!(
                    "{} times, {:.1} a second",
                    self.waited.len(),
                    self.waited.len() as f64 / seconds
                ),
            ),
            ("grants", self.sections.to_string()),
            ("entries lost", self.lost.to_string()),
            (
                "waits for a turn",
                format!(
                    "median {}, 99 % below {}, longest {}",
                    wait(50),
                    wait(99),
                    wait(100)
                ),
            ),
            (
                "longest after faults",
                format!("{:.2} s", self.longest_after.as_secs_f64()),
            ),
        ]
    }

    /// In one line.
    pub fn headline(&self) -> String {
        let faults = self.faults.len();
        let span = clock(self.took);
        match self.violations.len() {
            0 => format!("{faults} faults in {span} minutes, and nothing was broken"),
            broken => format!("{faults} faults in {span} minutes, and {broken} VIOLATIONS"),
        }
    }

    /// What was not tried, for people.
    pub fn left_out(&self) -> Option<&'static str> {
        self.without_cuts.then_some(
            "Nothing was cut off: that takes root, `ip` and `iptables`, and a kernel with network namespaces.",
        )
    }

    pub fn text(&self) -> String {
        let mut text = format!("{}\n\n", self.headline());
        let seed = ("seed", self.seed.to_string());
        let began = ("began", self.began.clone());
        let replicas = ("replicas", self.replicas.to_string());
        for (name, value) in self.facts.iter().chain([&replicas, &seed, &began]) {
            let _ = writeln!(text, "{name:<22}{value}");
        }
        text.push('\n');
        for (name, value) in self.totals() {
            let _ = writeln!(text, "{name:<22}{value}");
        }
        let _ = writeln!(
            text,
            "\n{:<34}{:>6}{:>13}{:>16}",
            "FAULT", "TIMES", "LONGEST", "LONGEST WAIT"
        );
        for of_kind in self.kinds() {
            let _ = writeln!(
                text,
                "{:<34}{:>6}{:>11.1} s{:>14.1} s",
                of_kind.kind.words(),
                of_kind.count,
                of_kind.lasted.as_secs_f64(),
                of_kind.waited.as_secs_f64()
            );
        }
        let _ = writeln!(text, "\n{:<8}{:>8}  Active", "NO TURN", "FROM");
        for standstill in self.standstills() {
            let _ = writeln!(
                text,
                "{:>5.1} s {:>8}  {}",
                standstill.lasted.as_secs_f64(),
                clock(standstill.from),
                standstill.faults.join("; ")
            );
        }
        if let Some(left_out) = self.left_out() {
            let _ = writeln!(text, "\n{left_out}");
        }
        if let Some(why) = &self.ended_early {
            let _ = writeln!(text, "\nENDED EARLY: {why}");
        }
        for broken in &self.violations {
            let _ = writeln!(text, "\nVIOLATION: {broken}");
        }
        text
    }
}

/// The one below which so many hundredths of them are, of sorted ones.
pub fn quantile(sorted: &[Duration], hundredths: usize) -> Duration {
    let last = sorted.len().saturating_sub(1);
    sorted
        .get((last * hundredths).div_ceil(100))
        .copied()
        .unwrap_or_default()
}
