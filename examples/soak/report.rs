//! What came of a soak, as text.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::time::Duration;

use fermata::engine::REPLICA_TTL;

use super::faults::Kind;
use super::run::SoakOptions;
use super::shared::counters::{LostEntry, TTL};
use super::timeline::{Sample, Span, clock};
use super::{Commit, machine};

/// How many violations are kept.
const BROKEN_MAX: usize = 100;
/// How many of the longest standstills are listed.
const STANDSTILLS_MAX: usize = 5;
/// How many of the waits that were too long are listed.
const LONG_WAITS_MAX: usize = 10;
/// What is longer is listed by what was active meanwhile.
const LONG: Duration = Duration::from_secs(5);
/// How many kinds of such waits are listed.
const CAUSES_MAX: usize = 20;
/// Outside a loss of majority nobody should wait for longer: the TTL of who is before it, and 2 s.
const WAIT_MAX: Duration = TTL.saturating_add(Duration::from_secs(2));

/// How long after its pause a replica has found out, and that is seen.
const KNOWN_WITHIN: Duration = Duration::from_secs(8);

/// One turn that came.
#[derive(Clone, Copy, Debug)]
pub struct Waited {
    /// When.
    pub held: Duration,
    /// For how long its client had waited.
    pub wait: Duration,
}

/// A round.
#[derive(Clone, Copy, Debug)]
pub struct Round {
    pub begun: Duration,
    /// When its last fault ended.
    pub healed: Duration,
    /// Each client makes each call at the next replica; otherwise it stays with one for as long as that serves it.
    pub by_turns: bool,
}

/// A replica that was fenced, and began anew under another id.
pub struct Death {
    /// When its log said so; up to a sample late.
    pub at: Duration,
    /// Numbered from 1.
    pub replica: usize,
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
    pub deaths: Vec<Death>,
    /// Those whose turns are known.
    pub rounds: Vec<Round>,
    pub operations: usize,
    pub sections: usize,
    pub unknown: usize,
    /// Tries that were made again.
    pub repeats: usize,
    /// Entries that ended before their section did, and were asked for again.
    pub lost: Vec<LostEntry>,
    pub commit: Commit,
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

/// Waits of one cause: what was active in them.
pub struct Cause {
    pub words: String,
    pub count: usize,
    pub longest: Duration,
}

/// What is said of one kind of fault.
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
            deaths: Vec::new(),
            rounds: Vec::new(),
            operations: 0,
            sections: 0,
            unknown: 0,
            repeats: 0,
            lost: Vec::new(),
            commit: asked.commit,
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
        for Round { begun, healed, .. } in self.rounds.iter().copied() {
            let held = self.waited.iter().map(|waited| waited.held);
            let held = held.filter(move |held| (begun..healed).contains(held));
            let ends = held.clone().chain([healed]);
            spans.extend([begun].into_iter().chain(held).zip(ends));
        }
        spans.sort_by_key(|(from, to)| std::cmp::Reverse(to.saturating_sub(*from)));
        let longest = spans.into_iter().take(STANDSTILLS_MAX);
        longest.map(|(from, to)| self.span(from, to)).collect()
    }

    /// The kinds of faults that were active in it.
    fn kinds_in(&self, waited: &Waited) -> BTreeSet<Kind> {
        let asked = waited.held.saturating_sub(waited.wait);
        let active = |span: &&Span| asked <= span.to && waited.held >= span.from;
        let active = self.faults.iter().filter(active);
        active.map(|span| span.kind).collect()
    }

    fn is_by_turns(&self, waited: &Waited) -> bool {
        let mut rounds = self.rounds.iter();
        let of = rounds.rfind(|round| round.begun <= waited.held);
        of.is_some_and(|round| round.by_turns)
    }

    /// Whether anything of it was while a majority of the nodes was away.
    fn is_without_majority(&self, waited: &Waited) -> bool {
        let kinds = self.kinds_in(waited);
        kinds.contains(&Kind::MajorityKilled) || kinds.contains(&Kind::MajorityPaused)
    }

    /// The waits that no loss of majority was a part of.
    fn waits_with_majority(&self) -> impl Iterator<Item = &Waited> {
        let all = self.waited.iter();
        all.filter(|waited| !self.is_without_majority(waited))
    }

    /// Those of them that docs/guarantees.md bounds: not of clients that call, by turns, replicas that cannot call each
    /// other.
    fn bounded_waits(&self) -> impl Iterator<Item = &Waited> {
        self.waits_with_majority().filter(|waited| {
            !self.is_by_turns(waited) || !self.kinds_in(waited).contains(&Kind::ReplicasApart)
        })
    }

    fn too_long(&self) -> impl Iterator<Item = &Waited> {
        self.bounded_waits().filter(|waited| waited.wait > WAIT_MAX)
    }

    /// The waits of more than 5 s outside a loss of majority by what was active in them, the most frequent first.
    pub fn causes(&self) -> Vec<Cause> {
        let mut causes: BTreeMap<String, Cause> = BTreeMap::new();
        for waited in self
            .waits_with_majority()
            .filter(|waited| waited.wait > LONG)
        {
            let kinds = self.kinds_in(waited).into_iter().map(Kind::words);
            let kinds: Vec<&str> = kinds.collect();
            let clients = match self.is_by_turns(waited) {
                true => "by turns",
                false => "staying",
            };
            let words = format!("{clients}: {}", kinds.join(", "));
            let cause = causes.entry(words.clone()).or_insert(Cause {
                words,
                count: 0,
                longest: Duration::ZERO,
            });
            cause.count += 1;
            cause.longest = cause.longest.max(waited.wait);
        }
        let mut causes: Vec<Cause> = causes.into_values().collect();
        causes.sort_by_key(|cause| std::cmp::Reverse(cause.count));
        causes.truncate(CAUSES_MAX);
        causes
    }

    /// Those of them that were longer than they should be, the longest first, and what was active.
    pub fn long_waits(&self) -> Vec<Standstill> {
        let mut long: Vec<&Waited> = self.too_long().collect();
        long.sort_by_key(|waited| std::cmp::Reverse(waited.wait));
        let longest = long.into_iter().take(LONG_WAITS_MAX);
        longest
            .map(|waited| self.span(waited.held.saturating_sub(waited.wait), waited.held))
            .collect()
    }

    fn span(&self, from: Duration, to: Duration) -> Standstill {
        let during = self.faults.iter().filter(|s| s.from < to && s.to > from);
        Standstill {
            from,
            lasted: to.saturating_sub(from),
            faults: during.map(Span::words).collect(),
        }
    }

    /// Replicas that were fenced though they had not been paused for as long as the others wait.
    pub fn false_deaths(&self) -> Vec<&Death> {
        // Nobody is declared down, and nobody reads so, before there is a majority.
        let known_by = |end: Duration| {
            let lost = |span: &&Span| {
                matches!(span.kind, Kind::MajorityKilled | Kind::MajorityPaused)
                    && (span.from..=span.to).contains(&end)
            };
            let back = self.faults.iter().filter(lost).map(|span| span.to).max();
            back.unwrap_or(end) + KNOWN_WITHIN
        };
        let is_paused = |death: &&Death, span: &&Span| {
            span.kind == Kind::ReplicaPaused
                && span.on == replica_name(death.replica)
                && span.to.saturating_sub(span.from) >= REPLICA_TTL / 10 * 9
                && (span.from..known_by(span.to)).contains(&death.at)
        };
        let explained = |death: &&Death| self.faults.iter().any(|span| is_paused(death, &span));
        let deaths = self.deaths.iter();
        deaths.filter(|death| !explained(death)).collect()
    }

    /// What should not have been, one line each: waits that were too long, and replicas that were taken for down.
    pub fn lines(&self) -> Vec<String> {
        let waits = self.long_waits().into_iter().map(|wait| {
            let (lasted, from) = (wait.lasted.as_secs_f64(), clock(wait.from));
            let faults = wait.faults.join("; ");
            format!("LONG WAIT: {lasted:.1} s from {from}: {faults}")
        });
        let deaths = self.false_deaths().into_iter().map(|death| {
            let from = death.at.saturating_sub(REPLICA_TTL * 2);
            let faults = self.span(from, death.at).faults.join("; ");
            let (name, at) = (replica_name(death.replica), clock(death.at));
            format!("FENCED: {name} at {at}: {faults}")
        });
        waits.chain(deaths).collect()
    }

    /// Everything in one number each, with what it is called.
    pub fn totals(&self) -> Vec<(&'static str, String)> {
        let all = quantiles(self.waited.iter());
        let with_majority = quantiles(self.waits_with_majority());
        let staying = self.bounded_waits();
        let staying = staying.filter(|waited| !self.is_by_turns(waited));
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
            ("entries lost", self.lost.len().to_string()),
            ("holders among them", self.lost_holders()),
            ("waits for a turn", all),
            ("with a majority", with_majority),
            ("and bounded", quantiles(self.bounded_waits())),
            ("of staying clients", quantiles(staying)),
            ("too long of bounded", self.too_long().count().to_string()),
            (
                "longest after faults",
                format!("{:.2} s", self.longest_after.as_secs_f64()),
            ),
            ("replicas fenced", self.deaths.len().to_string()),
            ("without a pause", self.false_deaths().len().to_string()),
        ]
    }

    /// Those that knew that they held their key, and how old their locks were when they were last served under them.
    fn lost_holders(&self) -> String {
        let held = |durable| {
            let held = self.lost.iter().filter_map(|lost| lost.held);
            held.filter(move |held| held.durable == durable)
        };
        let oldest = held(false).map(|held| held.age).max();
        let (volatile, durable) = (held(false).count(), held(true).count());
        let oldest = oldest.unwrap_or_default().as_millis();
        format!("{volatile} volatile, at most {oldest} ms old; {durable} durable")
    }

    /// How the lost ones heard of it, and how often.
    fn loss_answers(&self) -> BTreeMap<&str, usize> {
        let mut answers = BTreeMap::new();
        for lost in &self.lost {
            *answers.entry(&*lost.answer).or_default() += 1;
        }
        answers
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
        let commit = ("commit", self.commit.to_string());
        for (name, value) in self.facts.iter().chain([&replicas, &commit, &seed, &began]) {
            let _ = writeln!(text, "{name:<22}{value}");
        }
        text.push('\n');
        for (name, value) in self.totals() {
            let _ = writeln!(text, "{name:<22}{value}");
        }
        let _ = writeln!(
            text,
            "\nBounded: not of clients that call, by turns, replicas that cannot call each other (docs/guarantees.md).\n\n\
             {:<34}{:>6}{:>13}{:>16}",
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
        let _ = writeln!(text, "\n{:<7}{:>9}  Active", "OVER 5 s", "LONGEST");
        for cause in self.causes() {
            let longest = cause.longest.as_secs_f64();
            let _ = writeln!(text, "{:<7}{longest:>8.1} s  {}", cause.count, cause.words);
        }
        for (answer, count) in self.loss_answers() {
            let _ = writeln!(text, "\nLOST: {count} times: {answer}");
        }
        for line in self.lines() {
            let _ = writeln!(text, "\n{line}");
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

/// What a fault is on, where it is on one replica, numbered from 1.
pub fn replica_name(number: usize) -> String {
    format!("replica {number}")
}

fn quantiles<'a>(waited: impl Iterator<Item = &'a Waited>) -> String {
    let mut waits: Vec<Duration> = waited.map(|waited| waited.wait).collect();
    waits.sort_unstable();
    let wait = |hundredths| format!("{:.2} s", quantile(&waits, hundredths).as_secs_f64());
    let (median, most, longest) = (wait(50), wait(99), wait(100));
    format!("median {median}, 99 % below {most}, longest {longest}")
}

/// The one below which so many hundredths of them are, of sorted ones.
pub fn quantile(sorted: &[Duration], hundredths: usize) -> Duration {
    let last = sorted.len().saturating_sub(1);
    sorted
        .get((last * hundredths).div_ceil(100))
        .copied()
        .unwrap_or_default()
}
