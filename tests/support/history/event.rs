//! One try of one call, as its client saw it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use fermata::lock::LockRef;
use uuid::Uuid;

/// What a key holds, or nothing.
pub type Value = Option<Bytes>;

/// One entry in the queue of a key. Two tags under one seq would be two entries.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Entry {
    pub seq: u64,
    pub tag: u128,
}

/// What was asked for.
#[derive(Clone, PartialEq, Debug)]
pub enum Op {
    /// An entry. Calls with one request are tries of one.
    Create {
        request: Uuid,
    },
    /// The lock, whether the call waits or not.
    Acquire,
    Get,
    /// A value, or none: a delete.
    Put(Value),
    /// The end of the entry, perhaps with a last write.
    Release(Option<Value>),
    /// A renewal for this entry.
    Renew,
    /// Its end by force, by whomever.
    Force,
    /// The end of a session, and so of all entries that live by it.
    CloseSession,
}

/// What a client learned of the entry beside what it asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Learned {
    Nothing,
    /// It has ended, by another end than its release.
    Ended,
    /// It was released before.
    Released,
    /// It has a newer grant.
    Superseded,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    Done,
    /// Certainly nothing was done.
    Refused(Learned),
    /// It may have been done, or may still be.
    Unknown(Learned),
}

#[derive(Clone, PartialEq, Debug)]
pub struct Event {
    /// Who asked.
    pub client: Arc<str>,
    /// Empty for what concerns all keys.
    pub key: Arc<str>,
    pub op: Op,
    pub entry: Option<Entry>,
    /// Of create and acquire: the one answered with HELD. Of what needs the lock: the one it was asked under.
    pub grant: Option<u64>,
    /// What the entry lives by, where that is a session.
    pub session: Option<Arc<str>>,
    /// On one clock for all clients.
    pub invoked: Duration,
    /// When its client knew the answer, or gave the call up.
    pub answered: Duration,
    pub outcome: Outcome,
    /// The value in the answer.
    pub read: Option<Value>,
    /// How long its client may be sure of the entry because of this answer.
    pub until: Option<Duration>,
    /// Calls that are made after this one was given up come after it. Else it may still overtake them.
    pub in_order: bool,
}

/// What clocks that stand still may be off, for their readings are kept apart.
const MARGIN: Duration = Duration::from_millis(1);

impl Event {
    /// The lockRef that was asked with, or that was answered.
    pub fn names(&mut self, lock_ref: &LockRef) {
        self.key = lock_ref.key.as_str().into();
        self.entry = Some(Entry {
            seq: lock_ref.seq.0,
            tag: u128::from_be_bytes(lock_ref.tag.bytes()),
        });
    }

    /// The answer promised that the entry is safe from expiry for so long, from when it was asked.
    pub fn safe_for(&mut self, valid_for: Duration) {
        self.until = Some((self.invoked + valid_for).saturating_sub(MARGIN));
    }

    /// What it means that the entry is released, perhaps before this call: then nobody knows what became of its put.
    pub fn released(&self, before: bool) -> Outcome {
        match before && self.writes().is_some() {
            true => Outcome::Unknown(Learned::Released),
            false => Outcome::Done,
        }
    }

    pub fn is_done(&self) -> bool {
        self.outcome == Outcome::Done
    }

    /// Its client learned that it holds the lock.
    pub fn held(&self) -> Option<u64> {
        let asked = matches!(self.op, Op::Create { .. } | Op::Acquire);
        self.grant.filter(|_| asked && self.is_done())
    }

    /// What it would leave.
    pub fn writes(&self) -> Option<&Value> {
        match &self.op {
            Op::Put(value) | Op::Release(Some(value)) => Some(value),
            _ => None,
        }
    }

    pub fn learned(&self) -> Learned {
        match self.outcome {
            Outcome::Done => Learned::Nothing,
            Outcome::Refused(learned) | Outcome::Unknown(learned) => learned,
        }
    }

    /// It showed that its entry was there.
    pub fn shows_life(&self) -> bool {
        let needs_it = !matches!(self.op, Op::Release(_) | Op::Force | Op::CloseSession);
        needs_it && self.is_done()
    }
}

/// A value for people.
pub fn shown(value: &Value) -> String {
    const CHARS_MAX: usize = 60;
    match value {
        None => "-".to_owned(),
        Some(bytes) => String::from_utf8_lossy(bytes)
            .chars()
            .take(CHARS_MAX)
            .collect(),
    }
}

fn seconds(moment: Duration) -> String {
    format!("{:.6}", moment.as_secs_f64())
}

impl fmt::Display for Event {
    /// One line, in columns: who, what, on which entry, from when to when, what came of it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let op = match &self.op {
            Op::Create { request } => format!("create:{:08x}", request.as_fields().0),
            Op::Acquire => "acquire".to_owned(),
            Op::Get => "get".to_owned(),
            Op::Put(value) => format!("put:{}", shown(value)),
            Op::Release(None) => "release".to_owned(),
            Op::Release(Some(value)) => format!("release:{}", shown(value)),
            Op::Renew => "renew".to_owned(),
            Op::Force => "force".to_owned(),
            Op::CloseSession => "close".to_owned(),
        };
        let mut entry = self.entry.map_or(String::new(), |p| format!("#{}", p.seq));
        if let Some(grant) = self.grant.filter(|_| self.held().is_none()) {
            entry = format!("{entry}@{grant}");
        }
        let mut came = match self.outcome {
            Outcome::Done => match self.held() {
                Some(grant) => format!("held@{grant}"),
                None => "done".to_owned(),
            },
            Outcome::Refused(Learned::Nothing) => "refused".to_owned(),
            Outcome::Refused(learned) => format!("refused: {learned:?}"),
            Outcome::Unknown(Learned::Nothing) => "unknown".to_owned(),
            Outcome::Unknown(learned) => format!("unknown: {learned:?}"),
        };
        if let Some(read) = &self.read {
            came += &format!(" ={}", shown(read));
        }
        if let Some(until) = self.until {
            came += &format!(" until {}", seconds(until));
        }
        let answered = match self.answered {
            Duration::MAX => "?".to_owned(),
            answered => seconds(answered),
        };
        let span = format!("{}..{answered}", seconds(self.invoked));
        write!(f, "{:10} {op:24} {entry:24} {span:28} {came}", self.client)
    }
}
