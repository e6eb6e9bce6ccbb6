//! Many seeds, each in a process of its own, as somebody who repeats one runs it: Tokio counts its runtimes, and what
//! it draws hangs on that.

use std::fmt::Write as _;
use std::fs::File;
use std::io::Write as _;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::history::figures;
use super::log::VIOLATION;

/// How many are run unless [`COUNT`] says otherwise.
const SEEDS: u64 = 50;
/// After so many it is said how far they are.
const SAID_EVERY: u64 = 10;
/// How many seeds, from 0 on.
const COUNT: &str = "FERMATA_SIM_SEEDS";
/// The one seed to run.
pub const ONE: &str = "FERMATA_SIM_SEED";
/// A simulation that has not ended by then never will.
const ENDS_WITHIN: Duration = Duration::from_secs(180);
/// How much of a trace is shown.
const LINES_SHOWN: usize = 60;
/// How many of the failed ones are shown.
const FAILED_SHOWN: usize = 3;

/// What one seed came to.
pub struct Ran {
    pub seed: u64,
    pub is_good: bool,
    /// Its trace; at the end, what is wrong.
    pub said: String,
}

impl Ran {
    /// Runs it.
    pub fn of(seed: u64) -> Ran {
        let directory = tempfile::tempdir().unwrap();
        let said = directory.path().join("said");
        let out = File::create(&said).unwrap();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "one", "--nocapture", "--test-threads=1"])
            .env(ONE, seed.to_string())
            .env("RUST_BACKTRACE", "0")
            .stdin(Stdio::null())
            .stderr(out.try_clone().unwrap())
            .stdout(out)
            .spawn()
            .unwrap();
        let begun = Instant::now();
        let is_good = loop {
            match child.try_wait().unwrap() {
                Some(status) => break status.success(),
                None if begun.elapsed() > ENDS_WITHIN => {
                    child.kill().unwrap();
                    child.wait().unwrap();
                    break false;
                }
                None => std::thread::sleep(Duration::from_millis(5)),
            }
        };
        let said = String::from_utf8_lossy(&std::fs::read(said).unwrap()).into_owned();
        let mut ran = Ran {
            seed,
            is_good,
            said,
        };
        // One that did nothing shows nothing.
        ran.is_good &= ran.figures()[0] > 0;
        ran
    }

    /// The lines between the two that frame it.
    pub fn trace(&self) -> &str {
        let begun = self
            .said
            .split_once(super::BEGINS)
            .map_or("", |(_, after)| after);
        begun.split_once(super::ENDS).map_or("", |(trace, _)| trace)
    }

    /// Operations, faults, violations.
    fn figures(&self) -> [u64; 3] {
        let after = self
            .said
            .split_once(super::ENDS)
            .map_or("", |(_, after)| after);
        let numbers = after.lines().next().unwrap_or_default();
        let numbers = numbers.split_once(": ").map_or("", |(_, numbers)| numbers);
        let mut numbers = numbers
            .split_whitespace()
            .filter_map(|word| word.parse().ok());
        std::array::from_fn(|_| numbers.next().unwrap_or(0))
    }

    fn command(&self) -> String {
        format!(
            "{ONE}={} cargo test --test sim -- --exact one --nocapture",
            self.seed
        )
    }

    /// How it is repeated, and the first thing that was wrong.
    fn in_a_line(&self) -> String {
        let mut wrong = self
            .trace()
            .lines()
            .filter_map(|line| line.split_once(VIOLATION));
        let first = wrong.next().map_or("it did not end well", |(_, what)| what);
        format!("{}  # {}", self.command(), first.trim_start())
    }

    fn shown(&self) -> String {
        let mut shown = format!("seed {}: {}\n", self.seed, self.command());
        let after = self
            .said
            .split_once(super::ENDS)
            .map_or("it did not end", |(_, after)| after);
        let lines: Vec<&str> = self.trace().lines().collect();
        let last = &lines[lines.len().saturating_sub(LINES_SHOWN)..];
        writeln!(shown, "{}\n{after}", last.join("\n")).unwrap();
        shown
    }
}

/// Says it past libtest, which hides what passing tests print.
fn say(line: &str) {
    let _ = writeln!(std::io::stderr(), "simulation: {line}");
}

/// Runs all that are asked for, on all processors.
pub fn all() {
    let count = std::env::var(COUNT).map_or(SEEDS, |text| text.parse().expect("a number of seeds"));
    let next = AtomicU64::new(0);
    let done: Mutex<(Vec<Ran>, [u64; 3])> = Mutex::default();
    let ended = AtomicU64::new(0);
    let begun = Instant::now();
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= count {
                        return;
                    }
                    let ran = Ran::of(seed);
                    let mut done = done.lock().unwrap();
                    for (sum, one) in done.1.iter_mut().zip(ran.figures()) {
                        *sum += one;
                    }
                    if !ran.is_good {
                        done.0.push(ran);
                    }
                    drop(done);
                    let ended = ended.fetch_add(1, Ordering::Relaxed) + 1;
                    if ended.is_multiple_of(SAID_EVERY) {
                        say(&format!("{ended} of {count} seeds"));
                    }
                }
            });
        }
    });
    let (mut failed, [operations, faults, violations]) = done.into_inner().unwrap();
    failed.sort_by_key(|ran| ran.seed);
    say(&format!(
        "{count} seeds, {operations} operations, {faults} faults, {violations} violations, {} s",
        begun.elapsed().as_secs()
    ));
    figures::note(
        "simulation",
        &format!("{count} {operations} {faults} {violations}"),
    );
    let commands: Vec<String> = failed.iter().map(Ran::in_a_line).collect();
    for ran in failed.iter().take(FAILED_SHOWN) {
        eprintln!("{}", ran.shown());
    }
    assert!(
        failed.is_empty(),
        "{} of {count} seeds failed:\n{}",
        failed.len(),
        commands.join("\n")
    );
}
