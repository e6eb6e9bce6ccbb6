//! Notes what clients ask and are told, in the order of one clock.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use fermata::clock::{Clock, SystemClock};

use super::check::{Checked, check};
use super::event::{Event, Learned, Op, Outcome};
use super::figures;

/// How many tries of calls one history may have.
const EVENTS_MAX: usize = 1_000_000;

/// Cheap to clone; clones note in the same history.
#[derive(Clone)]
pub struct Recorder(Arc<Inner>);

struct Inner {
    clock: Arc<dyn Clock>,
    noted: Mutex<Noted>,
}

#[derive(Default)]
struct Noted {
    events: Vec<Event>,
    /// The last moment given out: each is given once.
    last: Duration,
    /// More than [`EVENTS_MAX`].
    left_out: usize,
    /// What makes the test again.
    seed: Option<u64>,
    /// The test does what no client can do.
    is_unchecked: bool,
}

impl Noted {
    fn moment(&mut self, now: Duration) -> Duration {
        self.last = now.max(self.last + Duration::from_nanos(1));
        self.last
    }

    /// Where it is, if there was room.
    fn push(&mut self, event: Event) -> Option<usize> {
        if self.is_unchecked {
            return None;
        }
        if self.events.len() == EVENTS_MAX {
            self.left_out += 1;
            return None;
        }
        self.events.push(event);
        Some(self.events.len() - 1)
    }
}

impl Recorder {
    /// On the clock that all processes of a machine share.
    pub fn new() -> Recorder {
        Recorder::at(Arc::new(SystemClock))
    }

    /// On the clock that leases are judged by.
    pub fn at(clock: Arc<dyn Clock>) -> Recorder {
        Recorder(Arc::new(Inner {
            clock,
            noted: Mutex::default(),
        }))
    }

    /// Is told with a violation.
    pub fn seed(&self, seed: u64) {
        self.0.noted.lock().unwrap().seed = Some(seed);
    }

    /// Nothing can be said of this history, for somebody who is no client changes keys or values: it is not kept.
    pub fn leave_unchecked(&self) {
        self.0.noted.lock().unwrap().is_unchecked = true;
    }

    /// A call that begins now, with what is asked for. If it is dropped before its answer, it was given up.
    pub fn call(&self, client: &Arc<str>, op: Op, ask: impl FnOnce(&mut Event)) -> Call {
        let now = self.0.clock.boot();
        let mut noted = self.0.noted.lock().unwrap();
        let mut event = Event {
            client: Arc::clone(client),
            key: "".into(),
            op,
            entry: None,
            grant: None,
            session: None,
            invoked: noted.moment(now),
            answered: Duration::MAX,
            outcome: Outcome::Unknown(Learned::Nothing),
            read: None,
            until: None,
            in_order: false,
        };
        ask(&mut event);
        let at = noted.push(event.clone());
        Call {
            recorder: self.clone(),
            at,
            event,
        }
    }

    /// What was observed elsewhere.
    pub fn note(&self, event: Event) {
        let _ = self.0.noted.lock().unwrap().push(event);
    }

    /// Judges what was noted so far, and prints what that was. Fails with an excerpt where it cannot be.
    pub fn check(&self, what: &str) {
        if let Some(broken) = self.broken(what) {
            panic!("{broken}");
        }
    }

    /// What is wrong with what was noted so far.
    pub fn broken(&self, what: &str) -> Option<String> {
        let judged = self.judged()?;
        eprintln!("{what}: {}", judged.checked);
        let Checked {
            operations,
            sections,
            unknown,
            ref violations,
        } = judged.checked;
        let line = format!("{operations} {sections} {unknown} {}", violations.len());
        figures::note("histories", &line);
        let wrong = judged.wrong?;
        let seed = judged
            .seed
            .map_or(String::new(), |seed| format!(" (FERMATA_SEED={seed})"));
        Some(format!("{what}: not what was promised{seed}\n{wrong}"))
    }

    /// What is to be said of what was noted so far; `None` of a history that is not kept.
    pub fn judged(&self) -> Option<Judged> {
        let (events, left_out, seed) = {
            let noted = self.0.noted.lock().unwrap();
            if noted.is_unchecked {
                return None;
            }
            (noted.events.clone(), noted.left_out, noted.seed)
        };
        let checked = check(&events);
        let mut wrong = (!checked.violations.is_empty()).then(|| checked.excerpt(&events));
        if left_out > 0 {
            let beyond = format!("{left_out} operations beyond EVENTS_MAX, {EVENTS_MAX}");
            wrong = Some(format!("the history is full: {beyond}"));
        }
        Some(Judged {
            checked,
            wrong,
            seed,
        })
    }

    /// The same at the end of the test. If that has failed by then, what is wrong here is only printed.
    pub fn checked_at_end(&self, what: &'static str) -> CheckedAtEnd {
        CheckedAtEnd {
            recorder: self.clone(),
            what,
        }
    }
}

/// What is to be said of a history.
pub struct Judged {
    pub checked: Checked,
    /// What could not be so, with an excerpt.
    pub wrong: Option<String>,
    seed: Option<u64>,
}

/// Checks its history when it goes.
pub struct CheckedAtEnd {
    recorder: Recorder,
    what: &'static str,
}

impl Drop for CheckedAtEnd {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.recorder.check(self.what);
        } else if let Some(broken) = self.recorder.broken(self.what) {
            eprintln!("{broken}");
        }
    }
}

/// A call in flight.
pub struct Call {
    recorder: Recorder,
    at: Option<usize>,
    /// Of unknown outcome until more is known.
    pub event: Event,
}

impl Call {
    /// Now its client knows what came of it.
    pub fn came_to(mut self, outcome: Outcome) {
        self.event.outcome = outcome;
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        let inner = &self.recorder.0;
        let now = inner.clock.boot();
        let mut noted = inner.noted.lock().unwrap();
        self.event.answered = noted.moment(now);
        if let Some(at) = self.at {
            noted.events[at] = self.event.clone();
        }
    }
}
