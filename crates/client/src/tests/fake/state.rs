//! What the fake server knows, and what it answers by that.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use fermata_proto::{AcquireLockResponse, LockState};
use tonic::{Code, Status};

use super::{Act, not_above, refusal};

#[derive(Default)]
pub struct State {
    /// What happens to the next calls, by method; without an entry they are served.
    pub acts: BTreeMap<&'static str, VecDeque<Act>>,
    /// What happens to all later calls of a method.
    pub always: BTreeMap<&'static str, Act>,
    /// What happens to all later calls of a method about one lockRef.
    pub always_about: BTreeMap<(&'static str, String), Act>,
    /// The zone that the last create came from, as its client says.
    pub zone: Option<String>,
    /// The calls, as they came in.
    pub calls: Vec<String>,
    /// The entries in the queue: lockRef without grant, request_id.
    pub queue: VecDeque<(String, String)>,
    /// The last critical call of each, with its grant.
    pub call_nos: BTreeMap<String, u64>,
    /// How the ended entries ended.
    pub ended: BTreeMap<String, (&'static str, String)>,
    /// What every release that carries a put is refused with.
    pub refuses_puts: Option<Status>,
    pub grant: u64,
    pub next: u64,
    pub value: Option<bytes::Bytes>,
    pub ttl: Duration,
    /// How long a holder is thought to hold.
    pub turn: Option<Duration>,
    /// How many KeepAlive streams were opened.
    pub streams: usize,
    /// How many of them are open.
    pub streams_open: usize,
    /// The Pipelines that are open now.
    pub pipelines_open: usize,
    /// How many calls came in frames.
    pub in_frames: usize,
    /// The most calls that were read of one Pipeline and not answered.
    pub in_pipeline_max: usize,
    /// Pipelines are taken, and nothing that comes on them is passed on.
    pub swallows_frames: bool,
    /// Calls of Pipelines that were given up are not answered.
    pub ignores_given_up: bool,
    /// Of the sessions, as they asked for it.
    pub disconnect_grace: Option<Duration>,
    /// The address of the home of its key, where it says one.
    pub home: Option<String>,
    /// Where set, locks are not durable, and no answer about one promises more than this.
    pub memory: Option<Duration>,
    /// What a proxy before it answers in its place: the end of the path of the call, HTTP status and page.
    pub page: Option<(&'static str, u16, &'static str)>,
    /// The proxy has passed the call on before.
    pub is_passed_on: bool,
    /// KeepAlive answers that nothing can be said of a lease now.
    pub says_nothing: bool,
}

pub fn span(span: Duration) -> Option<prost_types::Duration> {
    prost_types::Duration::try_from(span).ok()
}

pub fn bare(lock_ref: &str) -> &str {
    lock_ref.split_once('@').map_or(lock_ref, |(bare, _)| bare)
}

fn is_session(lease: &str) -> bool {
    lease.starts_with("session")
}

impl State {
    pub fn new() -> State {
        State {
            ttl: Duration::from_secs(30),
            ..State::default()
        }
    }

    /// What an answer about a session promises.
    pub fn valid_for(&self) -> Option<prost_types::Duration> {
        span(self.disconnect_grace.unwrap_or(self.ttl))
    }

    /// What an answer about a lock promises.
    pub fn lock_valid_for(&self) -> Option<prost_types::Duration> {
        let lease = self.disconnect_grace.unwrap_or(self.ttl);
        span(self.memory.map_or(lease, |memory| memory.min(lease)))
    }

    /// What a renewal promises: of a session, or of a lock without one.
    pub fn valid_for_of(&self, session: &str) -> Option<prost_types::Duration> {
        match is_session(session) {
            true => self.valid_for(),
            false => self.lock_valid_for(),
        }
    }

    pub fn durable(&self) -> bool {
        self.memory.is_none()
    }

    pub fn status(&self, lock_ref: &str) -> Result<(LockState, u32), Status> {
        let entry = bare(lock_ref);
        if let Some((reason, words)) = self.ended.get(entry) {
            return Err(refusal(Code::FailedPrecondition, reason, words));
        }
        match self.queue.iter().position(|(queued, _)| queued == entry) {
            Some(0) => Ok((LockState::Held, 0)),
            Some(ahead) => Ok((LockState::Waiting, ahead as u32)),
            None => Err(refusal(Code::NotFound, "NEVER_ISSUED", "never issued")),
        }
    }

    /// Takes a critical call with this number.
    pub fn holder(&mut self, lock_ref: &str, call_no: u64) -> Result<(), Status> {
        self.status(lock_ref)?;
        if lock_ref != self.granted(lock_ref) {
            let words = "this lockRef has a newer grant";
            return Err(refusal(Code::FailedPrecondition, "GRANT_SUPERSEDED", words));
        }
        let last = self.call_nos.entry(lock_ref.to_owned()).or_default();
        if call_no <= *last {
            return Err(not_above(call_no, *last));
        }
        *last = call_no;
        Ok(())
    }

    pub fn granted(&self, lock_ref: &str) -> String {
        let seq: u64 = bare(lock_ref)
            .rsplit_once('#')
            .and_then(|(_, entry)| entry.split_once('.'))
            .and_then(|(seq, _)| seq.parse().ok())
            .unwrap();
        format!("{}@{}", bare(lock_ref), self.grant + seq)
    }

    pub fn token(&self, lock_ref: &str) -> u64 {
        let granted = self.granted(lock_ref);
        granted.rsplit_once('@').unwrap().1.parse().unwrap()
    }

    pub fn estimated(&self, position: u32) -> Option<prost_types::Duration> {
        self.turn.and_then(|turn| span(turn * position))
    }

    pub fn acquired(&self, lock_ref: &str) -> Result<AcquireLockResponse, Status> {
        let (state, position) = self.status(lock_ref)?;
        let held = state == LockState::Held;
        Ok(AcquireLockResponse {
            lock_ref: if held {
                self.granted(lock_ref)
            } else {
                bare(lock_ref).to_owned()
            },
            state: state.into(),
            position,
            fencing_token: if held { self.token(lock_ref) } else { 0 },
            valid_for: self.lock_valid_for(),
            durable: self.durable(),
            ..AcquireLockResponse::default()
        })
    }

    pub fn renewed(&self, session: &str) -> Result<(), Status> {
        if is_session(session) && !self.ended.contains_key(session) {
            return Ok(());
        }
        self.status(session).map(|_| ())
    }
}
