//! What comes of an event, effect by effect.

mod calls;
mod claims;
mod commits;
mod hand_overs;
mod homes;
mod packed;
mod repeats;
mod settles;
mod syncs;
mod time;
mod write_back;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use uuid::Uuid;

use super::*;
use crate::key::{Command, CommitMode, Decider, Home, KeyState, NewEntry, WritesOfHolder, decide};
use crate::lock::{
    CoreLimits, EndReason, EndedAs, Fence, Liveness, Mode, ReplicaId, Seq, SessionId, Tag,
};
use crate::session::Observer;

pub const NOW_US: u64 = 1_000;
pub const TTL: Duration = Duration::from_secs(10);

pub fn replica(n: u128) -> ReplicaId {
    ReplicaId(Uuid::from_u128(n))
}

pub fn home(n: u128, term: u64) -> Home {
    Home {
        replica: replica(n),
        term,
    }
}

/// The entry with this number, made by the request of the same number.
pub fn entry(n: u64) -> EntryRef {
    EntryRef {
        seq: Seq(n),
        tag: Tag::from_bits(n.into()),
        grant: None,
    }
}

pub fn held(n: u64, grant: u64) -> EntryRef {
    EntryRef {
        grant: Some(Fence(grant)),
        ..entry(n)
    }
}

pub fn new_entry(n: u64) -> NewEntry {
    NewEntry {
        tag: Tag::from_bits(n.into()),
        mode: Mode::Exclusive,
        liveness: Liveness::Own { ttl_ms: 10_000 },
        identity: "".into(),
        owner: "".into(),
        created_at_ms: 0,
    }
}

pub fn of_session(n: u64) -> NewEntry {
    NewEntry {
        liveness: Liveness::Session(SessionId(Uuid::from_u128(n.into()))),
        ..new_entry(n)
    }
}

pub fn value(text: &'static str) -> Option<Bytes> {
    Some(Bytes::from_static(text.as_bytes()))
}

pub fn put_of(text: &'static str) -> Mutation {
    Mutation::Put(Bytes::from_static(text.as_bytes()))
}

pub fn datum(text: &'static str, timestamp: u64) -> Datum {
    Datum {
        value: value(text),
        timestamp,
    }
}

/// A machine on replica 1, unless said otherwise, and what it is run with.
pub struct World {
    pub machine: Machine,
    pub replica: ReplicaId,
    pub limits: KeyLimits,
    pub commit: CommitRules,
    pub clock_is_wrong: bool,
    pub is_alone: bool,
    pub sure_until: Duration,
    at: Duration,
    calls: u64,
    observer: Observer,
}

impl World {
    pub fn new() -> World {
        World {
            machine: Machine::new(),
            replica: replica(1),
            limits: KeyLimits {
                core: CoreLimits {
                    width_min: 4,
                    ..CoreLimits::default()
                },
                calls_max: 8,
                waits_per_lock_ref_max: 2,
                critical_calls_max: 2,
                known_value_bytes_max: 100,
                session_claim_ttl: TTL,
            },
            commit: CommitRules {
                mode: CommitMode::WriteThrough,
                keep_after: Duration::from_millis(100),
            },
            clock_is_wrong: false,
            is_alone: false,
            sure_until: Duration::from_secs(1_000),
            at: Duration::from_secs(1),
            calls: 0,
            observer: Observer::new(Duration::MAX),
        }
    }

    /// One that is the home of a key with these entries, and has answered nobody.
    pub fn serving(entries: &[NewEntry]) -> World {
        World::serving_at(1, entries)
    }

    /// As [`World::serving`], on another replica.
    pub fn serving_at(n: u128, entries: &[NewEntry]) -> World {
        let mut world = World::new();
        world.replica = replica(n);
        let first = entries.first().cloned().unwrap_or_else(|| new_entry(1));
        world.call(create(first));
        world.on(Event::Loaded(Ok(no_row())));
        world.applied();
        for entry in entries.iter().skip(1) {
            world.call(create(entry.clone()));
            world.applied();
        }
        world
    }

    pub fn on(&mut self, event: Event) -> Vec<Effect> {
        self.pack();
        let now = self.observer.observe(self.at);
        let cx = Context {
            replica: self.replica,
            now,
            now_us: (!self.clock_is_wrong).then_some(NOW_US),
            sure_until: self.sure_until,
            is_alone: self.is_alone,
            value_is_due: false,
            commit: self.commit,
            limits: &self.limits,
        };
        let mut out = Vec::new();
        self.machine.on(&cx, event, &mut out);
        out
    }

    /// Where the machine can be packed it goes on as what comes out of that, which is the same. Whether it was.
    pub fn pack(&mut self) -> bool {
        let Some(packed) = self.machine.pack() else {
            return false;
        };
        let unpacked = Machine::unpack(&packed).unwrap();
        assert_eq!(unpacked, self.machine);
        self.machine = unpacked;
        true
    }

    /// The row, as the home knows it.
    pub fn row(&self) -> &Arc<KeyState> {
        match &self.machine.role {
            Role::Serving(serving) => serving.row.known(),
            other => panic!("{other:?}"),
        }
    }

    /// A call under the next name.
    pub fn call(&mut self, call: Call) -> (CallId, Vec<Effect>) {
        self.calls += 1;
        let id = CallId(self.calls);
        (id, self.on(Event::Call { id, call }))
    }

    /// As [`World::call`], where what it is called does not matter.
    pub fn calls(&mut self, call: Call) -> Vec<Effect> {
        self.call(call).1
    }

    pub fn pass(&mut self, span: Duration) {
        self.at += span;
    }

    /// The row that the home commits once this time has passed.
    pub fn row_after(&mut self, span: Duration) -> Arc<KeyState> {
        self.pass(span);
        swap(&self.on(Event::Due)).1
    }

    /// The same, once it may make the holder durable; and that is done.
    pub fn commit_later(&mut self) -> Arc<KeyState> {
        let row = self.row_after(self.commit.keep_after);
        self.applied();
        row
    }

    pub fn applied(&mut self) -> Vec<Effect> {
        self.on(Event::Swapped(SwapOutcome::Applied))
    }

    pub fn swapped_in_doubt(&mut self) -> Vec<Effect> {
        self.on(Event::Swapped(SwapOutcome::Unknown("late".into())))
    }

    pub fn not_started(&mut self) -> Vec<Effect> {
        self.on(Event::Swapped(SwapOutcome::NotStarted("down".into())))
    }

    pub fn conflict(&mut self, row: &Arc<KeyState>) -> Vec<Effect> {
        self.on(Event::Swapped(SwapOutcome::Conflict(Arc::clone(row))))
    }

    pub fn resume_row(&mut self) -> Vec<Effect> {
        self.on(Event::Resume(PauseOf::Row))
    }

    pub fn wrote(&mut self, io: IoId) -> Vec<Effect> {
        let outcome = WriteOutcome::Done;
        self.on(Event::DataWritten { io, outcome })
    }

    pub fn wrote_in_doubt(&mut self, io: IoId) -> Vec<Effect> {
        let outcome = WriteOutcome::Unknown("late".into());
        self.on(Event::DataWritten { io, outcome })
    }

    /// A read of the value shows this.
    pub fn saw(&mut self, io: IoId, cell: Option<Datum>) -> Vec<Effect> {
        self.on(Event::DataRead { io, cell: Ok(cell) })
    }

    pub fn read_failed(&mut self, io: IoId) -> Vec<Effect> {
        let cell = Err("down".into());
        self.on(Event::DataRead { io, cell })
    }

    /// The answer that said HELD under the first grant was heard by nobody.
    pub fn answer_lost(&mut self) {
        let grant = Fence(NOW_US);
        self.on(Event::AnswerLost { grant });
    }

    /// The first holder writes for as long as its fence has timestamps.
    pub fn use_up_timestamps(&mut self) {
        for text in ["a", "b", "c"] {
            let (io, _) = write(&self.calls(put(held(1, NOW_US), text)));
            self.wrote(io);
        }
    }

    /// One that took this row over, whose home is down.
    pub fn taken_over(row: &Arc<KeyState>) -> World {
        let mut world = World::new();
        let from = row.home.unwrap().replica;
        world.calls(Call::TakeOver { from });
        swap(&world.on(loaded(row)));
        world.applied();
        world
    }

    /// It learns that the key was handed to it with this row.
    pub fn adopts(&mut self, row: &Arc<KeyState>) -> Vec<Effect> {
        self.calls(Call::Adopt { term: row.term() });
        self.on(loaded(row))
    }
}

pub fn create(entry: NewEntry) -> Call {
    Call::Create {
        entry: Box::new(entry),
        read_value: false,
    }
}

pub fn acquire(n: u64) -> Call {
    Call::Acquire {
        entry: entry(n),
        wait: true,
        read_value: false,
    }
}

/// The same, with the value.
pub fn acquire_with_value(n: u64) -> Call {
    Call::Acquire {
        entry: entry(n),
        wait: true,
        read_value: true,
    }
}

/// Without waiting.
pub fn acquire_now(n: u64) -> Call {
    Call::Acquire {
        entry: entry(n),
        wait: false,
        read_value: false,
    }
}

pub fn renew(n: u64) -> Call {
    Call::Renew { entry: entry(n) }
}

pub fn get(entry: EntryRef) -> Call {
    Call::Get { entry, call_no: 0 }
}

pub fn put(entry: EntryRef, text: &'static str) -> Call {
    Call::Put {
        entry,
        call_no: 0,
        value: put_of(text),
    }
}

pub fn release(entry: EntryRef) -> Call {
    Call::Release {
        entry,
        call_no: 0,
        put: None,
    }
}

/// A release that carries a put.
pub fn release_with(entry: EntryRef, call_no: u64) -> Call {
    Call::Release {
        entry,
        call_no,
        put: Some(put_of("x")),
    }
}

pub fn hand_over(n: u128) -> Call {
    let (to, if_idle) = (replica(n), false);
    Call::HandOver { to, if_idle }
}

/// An operator ends the entry with this number.
pub fn force(n: u64) -> Call {
    let (by, why) = ("op".into(), "stuck".into());
    let seq = Seq(n);
    Call::Force { seq, by, why }
}

/// How it ended then.
pub fn forced() -> EndReason {
    let (by, why) = ("op".into(), "stuck".into());
    EndReason::Forced { by, why }
}

pub fn no_row() -> Loaded {
    Loaded {
        state: Arc::default(),
        past: None,
    }
}

/// The row that another replica leaves that is the home of these entries.
pub fn row_of(n: u128, entries: &[NewEntry]) -> Arc<KeyState> {
    let limits = CoreLimits {
        width_min: 4,
        ..CoreLimits::default()
    };
    let take = Command::TakeOver {
        from: None,
        to: replica(n),
        past: None,
    };
    let commands: Vec<Command> = [take]
        .into_iter()
        .chain(entries.iter().cloned().map(Command::Create))
        .collect();
    let by = Decider {
        replica: replica(n),
        now_us: Some(NOW_US),
        limits: &limits,
    };
    Arc::new(decide(&KeyState::default(), &commands, by).state)
}

pub fn loaded(state: &Arc<KeyState>) -> Event {
    Event::Loaded(Ok(Loaded {
        state: Arc::clone(state),
        past: None,
    }))
}

/// The answers among these effects.
pub fn answers(effects: &[Effect]) -> Vec<(CallId, Result<Answer, CallError>)> {
    let answer = |effect: &Effect| match effect {
        Effect::Answer { call, answer } => Some((*call, answer.clone())),
        _ => None,
    };
    effects.iter().filter_map(answer).collect()
}

/// The calls that are answered.
pub fn answered(effects: &[Effect]) -> Vec<CallId> {
    let answers = answers(effects).into_iter();
    answers.map(|(call, _)| call).collect()
}

/// The errors among them.
pub fn errors(effects: &[Effect]) -> Vec<CallError> {
    let answers = answers(effects).into_iter();
    answers.filter_map(|(_, answer)| answer.err()).collect()
}

/// The state that the one swap among them makes.
pub fn swap(effects: &[Effect]) -> (Arc<KeyState>, Arc<KeyState>) {
    let swap = |effect: &Effect| match effect {
        Effect::Swap { old, new } => Some((Arc::clone(old), Arc::clone(new))),
        _ => None,
    };
    let mut swaps = effects.iter().filter_map(swap);
    let swap = swaps.next().unwrap();
    assert!(swaps.next().is_none(), "{effects:?}");
    swap
}

pub fn is_swap(effect: &Effect) -> bool {
    matches!(effect, Effect::Swap { .. })
}

/// The write among them.
pub fn write(effects: &[Effect]) -> (IoId, Datum) {
    let write = |effect: &Effect| match effect {
        Effect::WriteData { io, datum, .. } => Some((*io, datum.clone())),
        _ => None,
    };
    effects.iter().find_map(write).unwrap()
}

/// The read among them.
pub fn read(effects: &[Effect]) -> IoId {
    let read = |effect: &Effect| match effect {
        Effect::ReadData { io } => Some(*io),
        _ => None,
    };
    effects.iter().find_map(read).unwrap()
}

/// Whether one of them is answered HELD, under which grant.
pub fn grant_told(effects: &[Effect]) -> Option<u64> {
    answers(effects)
        .into_iter()
        .find_map(|(_, answer)| match answer {
            Ok(Answer::Held { entry, .. }) => entry.grant.map(|grant| grant.0),
            _ => None,
        })
}
