//! The trace: one line an event, in virtual time. Bounded; what is beyond is counted, and hashed like the rest.

use std::fmt;
use std::sync::Mutex;
use std::time::Duration;

use tokio::time::Instant;

use super::system;

/// How many lines are kept.
const LINES_MAX: usize = 300_000;

/// Who says in a trace that something is wrong.
pub const VIOLATION: &str = "VIOLATION";

/// Where everything of a simulation is noted.
pub struct Log {
    start: Instant,
    noted: Mutex<Noted>,
}

#[derive(Default)]
struct Noted {
    lines: Vec<String>,
    beyond: u64,
    /// Of the lines beyond, and of all bytes that went over the network.
    hash: Hash,
    chunks: u64,
    violations: Vec<String>,
    operations: u64,
    faults: u64,
}

/// FNV-1a.
struct Hash(u64);

impl Default for Hash {
    fn default() -> Self {
        Hash(0xcbf2_9ce4_8422_2325)
    }
}

impl Hash {
    fn add(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
}

/// What came of a simulation.
pub struct Outcome {
    /// The whole trace.
    pub trace: String,
    pub violations: Vec<String>,
    pub operations: u64,
    pub faults: u64,
}

impl Log {
    /// From now on. Inside of the simulation's runtime only.
    pub fn new() -> Log {
        Log {
            start: Instant::now(),
            noted: Mutex::default(),
        }
    }

    /// How long the simulation lasts, in its own time.
    pub fn now(&self) -> Duration {
        let now = self.start.elapsed();
        system::advance(now);
        now
    }

    /// One more line.
    pub fn note(&self, who: impl fmt::Display, what: impl fmt::Display) {
        let now = self.now();
        let line = format!("{:>10.3} {who:<12} {what}", now.as_secs_f64());
        let mut noted = self.noted.lock().unwrap();
        if noted.lines.len() < LINES_MAX {
            noted.lines.push(line);
        } else {
            noted.beyond += 1;
            noted.hash.add(line.as_bytes());
        }
    }

    /// What went over the network; too much for lines.
    pub fn carried(&self, connection: u64, bytes: &[u8]) {
        let at = self.now().as_nanos() as u64;
        let mut noted = self.noted.lock().unwrap();
        noted.chunks += 1;
        noted.hash.add(&at.to_le_bytes());
        noted.hash.add(&connection.to_le_bytes());
        noted.hash.add(bytes);
    }

    /// Something that must not be.
    pub fn violation(&self, words: impl fmt::Display) {
        self.note(VIOLATION, &words);
        let at = self.now().as_secs_f64();
        let mut noted = self.noted.lock().unwrap();
        noted.violations.push(format!("at {at:.3}: {words}"));
    }

    /// A client's call, or one of the store.
    pub fn operation(&self) {
        self.noted.lock().unwrap().operations += 1;
    }

    /// Something went wrong, as the seed wanted.
    pub fn fault(&self, who: impl fmt::Display, what: impl fmt::Display) {
        self.note(who, format_args!("! {what}"));
        self.noted.lock().unwrap().faults += 1;
    }

    /// The end.
    pub fn finish(&self) -> Outcome {
        let now = self.now().as_secs_f64();
        let mut noted = self.noted.lock().unwrap();
        let mut trace = noted.lines.join("\n");
        trace += &format!(
            "\n{now:>10.3} end: {} operations, {} faults, {} lines beyond, {} chunks of bytes, hash {:016x}\n",
            noted.operations, noted.faults, noted.beyond, noted.chunks, noted.hash.0
        );
        Outcome {
            trace,
            violations: std::mem::take(&mut noted.violations),
            operations: noted.operations,
            faults: noted.faults,
        }
    }
}
