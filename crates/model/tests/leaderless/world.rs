//! One state of the world, and what clients were told in it.

use std::collections::BTreeSet;
use std::sync::Arc;

use fermata::engine::EngineError;
use fermata::lock::EndedAs;

use super::call::{Answer, Call, Caller, Kind, Own, Run};
use super::cells::Cells;
use super::setup::{Faults, Op, Setup};

/// What is put: a number for each put, in the order in which they were first sent; 0 for none.
pub type Value = u8;

/// What must not be.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Broken {
    /// Two clients may both be sure that they hold the key.
    TwoHolders,
    /// A client is answered HELD before one that came first, or after one that came later.
    OutOfOrder,
    /// A holder reads what was overwritten, or decided against.
    OldValue,
    /// A put is acknowledged that a later holder did not read.
    AcknowledgedTooLate,
    /// A client whose TTL has not passed is told that its lockRef has ended.
    Lost(String),
}

/// What is promised so far.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Truth {
    pub broken: Option<Broken>,
    /// The value that must be read, unless one of `pending` is.
    pub current: Value,
    /// Values that were sent, not acknowledged, and may show.
    pub pending: BTreeSet<Value>,
    /// Values that a holder did not see: they never show.
    pub against: Vec<Value>,
    /// The last value that was given to a put.
    pub values: Value,
    /// The highest number that was answered HELD.
    pub held: u64,
}

/// How far a client is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Step {
    Create,
    Acquire,
    /// The next one of the plan.
    Op(usize),
    /// Reads what became of a put.
    Check(usize),
    Release,
    Done,
}

/// A call in flight.
#[derive(Clone, PartialEq, Hash, Debug)]
pub struct Slot {
    pub run: Arc<Run>,
    /// Its choice was found to take too long, which its clock shows with the next reply.
    pub is_late: bool,
    /// The TTL passed since the call last saw its entry: it can promise nothing.
    pub is_stale: bool,
}

/// The call that a client waits for.
pub const HEARD: usize = 0;
/// The call that goes on unheard.
pub const UNHEARD: usize = 1;

#[derive(Clone, PartialEq, Hash, Debug)]
pub struct Client {
    pub step: Step,
    pub calls: [Option<Slot>; 2],
    pub own: Option<Own>,
    /// Its calls that were repeated.
    pub repeats: u8,
    pub call_no: u64,
    /// The number of its release, and its last put.
    pub release: Option<(u64, Option<Value>)>,
    /// The value of its put, from its first try on.
    pub value: Value,
    /// It was answered HELD, and its TTL has not passed since.
    pub is_sure: bool,
    /// It was answered HELD before.
    pub was_served: bool,
    /// Its create was answered.
    pub is_created: bool,
    /// Those whose create was answered before its own began, by bit.
    pub comes_after: u8,
    /// Its TTL has passed.
    pub has_expired: bool,
    pub has_crashed: bool,
}

impl Client {
    fn new() -> Client {
        Client {
            step: Step::Create,
            calls: [None, None],
            own: None,
            repeats: 0,
            call_no: 0,
            release: None,
            value: 0,
            is_sure: false,
            was_served: false,
            is_created: false,
            comes_after: 0,
            has_expired: false,
            has_crashed: false,
        }
    }

    /// It makes no more calls.
    pub fn ends(&mut self) {
        self.step = Step::Done;
        self.calls[HEARD] = None;
        self.is_sure = false;
        self.own = None;
        self.release = None;
        self.value = 0;
    }
}

#[derive(Clone, PartialEq, Hash, Debug)]
pub struct World {
    pub cells: Cells,
    pub clients: Vec<Client>,
    pub truth: Truth,
    pub left: Faults,
}

impl Truth {
    pub fn breaks(&mut self, broken: Broken) {
        self.broken.get_or_insert(broken);
    }

    /// A value for the next put.
    fn next_value(&mut self) -> Value {
        self.values += 1;
        self.values
    }

    fn sent(&mut self, value: Value) {
        if self.current != value {
            self.pending.insert(value);
        }
    }

    fn read(&mut self, value: Value) {
        if value != self.current && !self.pending.contains(&value) {
            self.breaks(Broken::OldValue);
        }
        self.current = value;
        // What a holder does not see never shows again. Lower ones may have been overwritten.
        let unseen = std::mem::take(&mut self.pending).into_iter();
        self.against.extend(unseen.filter(|other| *other > value));
    }

    fn acknowledged(&mut self, value: Value) {
        if value != self.current && !self.pending.contains(&value) {
            self.breaks(Broken::AcknowledgedTooLate);
        }
        self.current = value;
        self.pending.retain(|other| *other > value);
    }

    /// A release with a put is answered, maybe long after an earlier try of it.
    fn released_with(&mut self, value: Value) {
        if self.pending.contains(&value) {
            self.acknowledged(value);
        } else if self.against.contains(&value) {
            self.breaks(Broken::AcknowledgedTooLate);
        }
    }
}

impl World {
    pub fn new(setup: &Setup) -> World {
        World {
            cells: Cells::default(),
            clients: (0..setup.clients).map(|_| Client::new()).collect(),
            truth: Truth::default(),
            left: setup.faults,
        }
    }

    pub fn is_finished(&self) -> bool {
        self.clients.iter().all(|c| c.step == Step::Done)
    }

    /// A client makes its next call.
    pub fn begin(&mut self, setup: &Setup, c: usize) {
        let created = (0..self.clients.len()).filter(|d| self.clients[*d].is_created);
        let created = created.map(|d| 1 << d).sum();
        let client = &mut self.clients[c];
        let own = client.own.unwrap_or_default();
        let puts = match client.step {
            Step::Op(at) => setup.plan[at] == Op::Put,
            Step::Release => setup.carry && client.release.is_none(),
            _ => false,
        };
        if puts && client.value == 0 {
            client.value = self.truth.next_value();
        }
        if puts {
            self.truth.sent(client.value);
        }
        let call = match client.step {
            Step::Create => {
                if client.repeats == 0 {
                    client.comes_after = created;
                }
                Call::Create
            }
            Step::Acquire => Call::Acquire(own),
            Step::Op(at) => match setup.plan[at] {
                Op::Acquire => Call::Acquire(own),
                Op::Get => Call::Get(own, client.next_call_no()),
                Op::Put => Call::Put(own, client.next_call_no(), client.value),
            },
            Step::Check(_) => Call::Get(own, client.next_call_no()),
            Step::Release => {
                client.is_sure = false;
                let (call_no, put) = match client.release {
                    Some(again) => again,
                    None => (client.next_call_no(), setup.carry.then_some(client.value)),
                };
                client.release = Some((call_no, put));
                Call::Release(own, call_no, put)
            }
            Step::Done => return,
        };
        let again = u64::from(client.repeats);
        let id = match setup.same_ids {
            true => 8 * again,
            false => c as u64 + 8 * again,
        };
        let caller = Caller {
            kind: setup.kind,
            client: c,
            id,
            // The clock of each other replica is behind.
            clock_us: 1_000 - 100 * (again % 2),
        };
        client.calls[HEARD] = Some(Slot {
            run: Run::new(caller, call),
            is_late: false,
            is_stale: false,
        });
    }

    /// A client hears the answer to its call, and makes the next one.
    pub fn answered(&mut self, setup: &Setup, c: usize, call: Call, answer: &Answer, stale: bool) {
        let client = &mut self.clients[c];
        match answer {
            Answer::Held(own) => {
                client.own = Some(*own);
                client.is_created = true;
                let next = match client.step {
                    Step::Op(at) => setup.step_at(at + 1),
                    _ => setup.step_at(0),
                };
                // It may be too late to act on it: then it asks again.
                if !stale {
                    client.step = next;
                    self.holds(c, own.0);
                } else if client.step == Step::Create {
                    client.step = Step::Acquire;
                }
            }
            Answer::Waiting(own) => {
                client.own = Some(*own);
                client.is_created = true;
                client.step = Step::Acquire;
                // In the bakery a late renewal of one that has ended may show, and is waited for.
                if std::mem::take(&mut client.is_sure) && setup.kind == Kind::Music {
                    self.truth.breaks(Broken::Lost("it waits".to_owned()));
                }
            }
            Answer::Value(value) => {
                client.done(setup);
                if client.is_sure && !stale {
                    self.truth.read(*value);
                }
            }
            Answer::Written => {
                let value = std::mem::take(&mut client.value);
                client.done(setup);
                self.truth.acknowledged(value);
            }
            Answer::Released => {
                client.ends();
                if let Call::Release(_, _, Some(value)) = call {
                    self.truth.released_with(value);
                }
            }
            Answer::Failed(error) => self.failed(setup, c, error),
        }
        self.goes_on(setup, c);
    }

    /// Calls are made at once, but creates and releases.
    pub fn goes_on(&mut self, setup: &Setup, c: usize) {
        if !matches!(
            self.clients[c].step,
            Step::Create | Step::Release | Step::Done
        ) {
            self.begin(setup, c);
        }
    }

    fn failed(&mut self, setup: &Setup, c: usize, error: &EngineError) {
        let client = &mut self.clients[c];
        match (error, client.step) {
            (EngineError::WriteUnknown(_), Step::Op(at)) if setup.reads_in_doubt => {
                client.step = Step::Check(at);
            }
            // It repeats the call.
            (EngineError::WriteUnknown(_) | EngineError::Unavailable(_), _) => {}
            _ if client.has_expired => client.ends(),
            // What the bakery shows of an earlier try may be half of it: the end of the entry, and not its record.
            (EngineError::Ended(_), Step::Release)
                if setup.kind == Kind::Bakery && client.repeats > 0 =>
            {
                client.ends();
            }
            // An earlier try of its release has ended it.
            (EngineError::EndedDuringWrite(EndedAs::Released), Step::Release)
                if client.repeats > 0 =>
            {
                client.ends();
            }
            _ if client.has_expired => client.ends(),
            // Half of its first try is seen: the end of the entry, and not its record.
            (EngineError::Ended(_), Step::Release)
                if setup.kind == Kind::Bakery && client.repeats > 0 =>
            {
                client.ends();
            }
            _ => self.truth.breaks(Broken::Lost(error.to_string())),
        }
    }

    /// A client is answered HELD, and may be sure of it.
    fn holds(&mut self, c: usize, seq: u64) {
        let comes_after = self.clients[c].comes_after;
        for (d, other) in self.clients.iter().enumerate().filter(|(d, _)| *d != c) {
            if other.is_sure {
                self.truth.breaks(Broken::TwoHolders);
            }
            let waits = !other.was_served && other.step != Step::Done && !other.has_expired;
            if waits && comes_after >> d & 1 == 1 {
                self.truth.breaks(Broken::OutOfOrder);
            }
        }
        if seq < self.truth.held {
            self.truth.breaks(Broken::OutOfOrder);
        }
        self.truth.held = seq;
        let client = &mut self.clients[c];
        client.is_sure = true;
        client.was_served = true;
    }
}

impl Client {
    fn next_call_no(&mut self) -> u64 {
        self.call_no += 1;
        self.call_no
    }

    /// Its call has done what it should.
    fn done(&mut self, setup: &Setup) {
        self.step = match self.step {
            Step::Op(at) => setup.step_at(at + 1),
            Step::Check(at) => {
                self.value = 0;
                setup.step_at(at + 1)
            }
            other => other,
        };
    }
}

impl Setup {
    /// This one of the plan, or what comes after it.
    fn step_at(&self, at: usize) -> Step {
        match at < self.plan.len() {
            true => Step::Op(at),
            false => Step::Release,
        }
    }
}
