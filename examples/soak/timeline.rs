//! What happened when, counted from the begin of the soak.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::faults::Kind;
use super::say;

/// How many samples are kept: every one of a week.
const SAMPLES_MAX: usize = 500_000;

/// A fault from its begin to its end.
#[derive(Clone, Debug)]
pub struct Span {
    pub kind: Kind,
    /// On whom.
    pub on: String,
    pub from: Duration,
    pub to: Duration,
}

impl Span {
    /// What, on whom, and when.
    pub fn words(&self) -> String {
        let (from, to) = (clock(self.from), clock(self.to));
        format!("{} ({from}-{to})", words(self.kind, &self.on))
    }
}

fn words(kind: Kind, on: &str) -> String {
    match on {
        "" => kind.words().to_owned(),
        on => format!("{}: {on}", kind.words()),
    }
}

/// What the replicas took at one moment.
#[derive(Clone, Debug)]
pub struct Sample {
    pub at: Duration,
    /// Resident bytes of each replica, where it could be told.
    pub memory: Vec<Option<u64>>,
}

/// Cheap to clone; clones note on the same one.
#[derive(Clone)]
pub struct Timeline {
    begun: Instant,
    noted: Arc<Mutex<Noted>>,
}

#[derive(Default)]
struct Noted {
    spans: Vec<Span>,
    samples: Vec<Sample>,
    active: Vec<String>,
}

impl Timeline {
    /// Begins now.
    pub fn new() -> Timeline {
        Timeline {
            begun: Instant::now(),
            noted: Arc::default(),
        }
    }

    fn noted(&self) -> MutexGuard<'_, Noted> {
        self.noted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn elapsed(&self) -> Duration {
        self.begun.elapsed()
    }

    /// When a moment was.
    pub fn at(&self, moment: Instant) -> Duration {
        moment.saturating_duration_since(self.begun)
    }

    /// A fault begins.
    pub fn begins(&self, kind: Kind, on: &str) -> Beginning {
        let words = words(kind, on);
        self.tell(&words);
        self.noted().active.push(words.clone());
        Beginning {
            kind,
            on: on.to_owned(),
            words,
            from: self.elapsed(),
        }
    }

    /// It has ended, and everything is as before.
    pub fn ends(&self, beginning: Beginning) {
        let to = self.elapsed();
        let took = to.saturating_sub(beginning.from);
        self.tell(&format!("{}, over after {took:.1?}", beginning.words));
        let mut noted = self.noted();
        noted.active.retain(|words| *words != beginning.words);
        noted.spans.push(Span {
            kind: beginning.kind,
            on: beginning.on,
            from: beginning.from,
            to,
        });
    }

    pub fn sample(&self, memory: Vec<Option<u64>>) {
        let sample = Sample {
            at: self.elapsed(),
            memory,
        };
        let mut noted = self.noted();
        if noted.samples.len() < SAMPLES_MAX {
            noted.samples.push(sample);
        }
    }

    /// Says a line with its time.
    pub fn tell(&self, line: &str) {
        say(&format!("{} {line}", clock(self.elapsed())));
    }

    /// What is wrong now.
    pub fn active(&self) -> String {
        match &*self.noted().active {
            [] => "no fault".to_owned(),
            these => these.join("; "),
        }
    }

    /// All that was noted, in order.
    pub fn finish(&self) -> (Vec<Span>, Vec<Sample>) {
        let mut noted = self.noted();
        let mut spans = std::mem::take(&mut noted.spans);
        spans.sort_by_key(|span| span.from);
        (spans, std::mem::take(&mut noted.samples))
    }
}

/// A fault that is active.
pub struct Beginning {
    kind: Kind,
    on: String,
    words: String,
    from: Duration,
}

/// Minutes and seconds.
pub fn clock(at: Duration) -> String {
    format!("{:02}:{:02}", at.as_secs() / 60, at.as_secs() % 60)
}
