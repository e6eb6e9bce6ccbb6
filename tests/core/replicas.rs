//! Two replicas that decide on what they last saw and compare-and-swap, with outcomes that are lost,
//! unknown, or late: nothing takes effect twice, all that takes effect is right on the state it met, and
//! every answer is true.

use std::collections::BTreeMap;

use fermata::lock::{
    Command, EndReason, EndedAs, Fence, Outcome, Refusal, Released, State, decide,
};
use proptest::prelude::*;

use crate::model::{End, Model};
use crate::op::{self, Op};
use crate::start::{self, Start};
use crate::step;

/// What the store does with a compare-and-swap whose version fits.
#[derive(Clone, Copy, Debug)]
enum Fate {
    /// Applied, and said so.
    Applied,
    /// Applied, but the answer is lost.
    AppliedUnknown,
    /// Lost, and nobody can tell.
    LostUnknown,
    /// Unknown, and still open: it may land later, as long as the version fits.
    Open,
}

#[derive(Clone, Copy, Debug)]
enum Event {
    /// Somebody asks a replica, which aims at what it last saw.
    Ask(usize, Op),
    /// A replica decides on what it last saw and swaps.
    Swap(usize, Fate),
    /// A replica looks at the store.
    ReRead(usize),
    /// An open proposal of a replica lands, if the version still fits.
    Land(usize),
    Tick(i64),
}

fn any_event() -> impl Strategy<Value = Event> {
    let fate = prop_oneof![
        4 => Just(Fate::Applied),
        2 => Just(Fate::AppliedUnknown),
        1 => Just(Fate::LostUnknown),
        2 => Just(Fate::Open),
    ];
    prop_oneof![
        8 => (0..2_usize, op::any_op()).prop_map(|(r, op)| Event::Ask(r, op)),
        6 => (0..2_usize, fate).prop_map(|(r, fate)| Event::Swap(r, fate)),
        2 => (0..2_usize).prop_map(Event::ReRead),
        2 => (0..2_usize).prop_map(Event::Land),
        1 => op::tick().prop_map(Event::Tick),
    ]
}

/// Commands by number, so that each one's effects can be counted.
type Batch = Vec<(usize, Command)>;

/// A proposal: what was decided, when and on which state.
#[derive(Clone, Debug)]
struct Proposal {
    old: State,
    now_us: u64,
    batch: Batch,
    new: State,
    outcomes: Vec<Outcome>,
}

#[derive(Clone, Debug)]
struct Replica {
    view: State,
    unanswered: Batch,
    open: Option<Proposal>,
}

struct World {
    start: Start,
    truth: Model,
    stored: State,
    now_us: u64,
    replicas: [Replica; 2],
    asked: usize,
    effects: BTreeMap<usize, u32>,
}

impl World {
    fn new(start: Start) -> World {
        let replica = Replica {
            view: start.state.clone(),
            unanswered: Vec::new(),
            open: None,
        };
        World {
            truth: Model::new(&start),
            stored: start.state.clone(),
            now_us: start.now_us,
            replicas: [replica.clone(), replica],
            asked: 0,
            effects: BTreeMap::new(),
            start,
        }
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Ask(r, op) => {
                let command = op.aim(&self.replicas[r].view, self.now_us);
                self.replicas[r].unanswered.push((self.asked, command));
                self.asked += 1;
            }
            Event::Swap(r, fate) => self.swap(r, fate),
            Event::ReRead(r) => self.replicas[r].view = self.stored.clone(),
            Event::Land(r) => {
                if let Some(open) = self.replicas[r].open.take() {
                    self.apply(&open);
                }
            }
            Event::Tick(tick) => self.now_us = op::later(self.now_us, tick),
        }
    }

    fn decided(&self, r: usize) -> Proposal {
        let Replica {
            view, unanswered, ..
        } = &self.replicas[r];
        let commands: Vec<Command> = unanswered.iter().map(|(_, c)| c.clone()).collect();
        let decision = decide(view, &commands, self.now_us, &self.start.limits);
        Proposal {
            old: view.clone(),
            now_us: self.now_us,
            batch: unanswered.clone(),
            new: decision.state,
            outcomes: decision.outcomes,
        }
    }

    fn swap(&mut self, r: usize, fate: Fate) {
        let proposal = self.decided(r);
        if proposal.old.version != self.stored.version {
            // Conflict. What was decided on the old state counts for nothing.
            self.replicas[r].view = self.stored.clone();
            return;
        }
        let nothing_to_do = proposal.new.version == proposal.old.version;
        match fate {
            Fate::Applied => {
                self.apply(&proposal);
                self.answer(r, proposal);
                self.replicas[r].view = self.stored.clone();
            }
            _ if nothing_to_do => self.answer(r, proposal),
            Fate::AppliedUnknown => {
                self.apply(&proposal);
                self.replicas[r].view = self.stored.clone();
            }
            Fate::LostUnknown => {}
            Fate::Open => self.replicas[r].open = Some(proposal),
        }
    }

    /// The store takes a proposal if the version still fits; the truth is decided beside it.
    fn apply(&mut self, proposal: &Proposal) {
        if proposal.old.version != self.stored.version {
            return;
        }
        let commands: Vec<Command> = proposal.batch.iter().map(|(_, c)| c.clone()).collect();
        let effects = self.truth.batch(&commands, proposal.now_us);
        assert!(effects.iter().map(|(o, _)| o).eq(&proposal.outcomes));
        assert_eq!(self.truth.state(), proposal.new);
        step::check(&self.stored, &proposal.new, &commands, &effects);
        step::tells_the_truth(&proposal.new, &self.truth);
        for ((id, command), (_, did)) in proposal.batch.iter().zip(effects) {
            let count = self.effects.entry(*id).or_default();
            *count += u32::from(did);
            assert!(
                *count < 2 || may_repeat(command),
                "{command:?} took effect twice"
            );
        }
        self.stored = proposal.new.clone();
    }

    /// Tells the callers. Each outcome must be true of the state at its turn in the batch.
    fn answer(&mut self, r: usize, proposal: Proposal) {
        let commands: Vec<Command> = proposal.batch.iter().map(|(_, c)| c.clone()).collect();
        for (at, (id, command)) in proposal.batch.iter().enumerate() {
            let Proposal { old, now_us, .. } = &proposal;
            let then = decide(old, &commands[..=at], *now_us, &self.start.limits).state;
            let outcome = &proposal.outcomes[at];
            let did = self.effects.get(id).copied().unwrap_or(0) > 0;
            assert!(
                self.is_true(command, outcome, did, &then),
                "{command:?} was answered {outcome:?}; it took effect: {did}"
            );
        }
        self.replicas[r].unanswered.clear();
    }

    fn is_true(&self, command: &Command, outcome: &Outcome, did: bool, now: &State) -> bool {
        let end_of = |seq| self.truth.end_of(seq);
        let home_of = |seq| now.entry(seq).map(|e| e.home);
        let gone = |seq, ended: &EndedAs| match (end_of(seq), ended) {
            (Some(_), EndedAs::NoLongerKept) => true,
            (Some(End::Released), EndedAs::Released) => true,
            (Some(End::Otherwise(reason)), EndedAs::Lost(said)) => reason == *said,
            _ => false,
        };
        match (command, outcome) {
            (Command::Create(create), Outcome::Created(created)) => {
                let record = self.truth.record(created.seq);
                record.is_some_and(|r| r.entry.request_id == create.request_id)
            }
            (Command::Release { seq, .. }, Outcome::Released(Released { clean, .. })) => {
                let foreign = End::Otherwise(EndReason::Foreign);
                did && end_of(*seq) == Some(if *clean { End::Released } else { foreign })
            }
            (Command::Evict { seq, .. }, Outcome::Evicted { .. }) => {
                did && matches!(end_of(*seq), Some(End::Otherwise(_)))
            }
            (
                Command::TakeOver {
                    seq,
                    from_fence,
                    from_epoch,
                    to_home,
                    ..
                },
                Outcome::TakenOver,
            ) => {
                home_of(*seq) == Some(*to_home)
                    && now.entry(*seq).is_some_and(|e| e.epoch > *from_epoch)
                    && (*from_fence == Fence::NONE || now.grant > *from_fence)
            }
            (
                Command::Extend {
                    seq, home, fence, ..
                },
                Outcome::Extended,
            ) => home_of(*seq) == Some(*home) && now.fence > *fence,
            (
                Command::Release { seq, .. }
                | Command::Evict { seq, .. }
                | Command::TakeOver { seq, .. }
                | Command::Extend { seq, .. },
                Outcome::Gone(ended),
            ) => gone(*seq, ended),
            (_, Outcome::Refused(refusal)) => !did || may_refuse_after(command, refusal, now),
            _ => false,
        }
    }
}

/// A command that took effect and is refused when it is decided again: only where the effect was undone
/// by somebody in between.
fn may_refuse_after(command: &Command, refusal: &Refusal, now: &State) -> bool {
    let home_of = |seq| now.entry(seq).map(|e| e.home);
    match command {
        Command::Create(create) => {
            let mut live = now.entries.iter();
            !live.any(|e| e.request_id == create.request_id)
                || matches!(refusal, Refusal::RequestMismatch { .. })
        }
        Command::TakeOver { seq, to_home, .. } => home_of(*seq) != Some(*to_home),
        Command::Extend {
            seq, home, fence, ..
        } => home_of(*seq) != Some(*home) || now.grant > *fence,
        Command::Release { .. } | Command::Evict { .. } => false,
    }
}

/// A Create whose entry has ended makes another (I5).
fn may_repeat(command: &Command) -> bool {
    match command {
        Command::Create(_) => true,
        Command::TakeOver { .. }
        | Command::Release { .. }
        | Command::Evict { .. }
        | Command::Extend { .. } => false,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 800, ..ProptestConfig::default() })]

    #[test]
    fn what_two_replicas_decide_takes_effect_once_and_is_answered_truly(
        start in start::any(),
        events in prop::collection::vec(any_event(), 1..80),
    ) {
        let mut world = World::new(start);
        for event in events {
            world.happen(event);
        }
        // In the end everybody gets an answer.
        for r in [0, 1, 0, 1] {
            world.happen(Event::Land(r));
            world.happen(Event::ReRead(r));
            world.happen(Event::Swap(r, Fate::Applied));
        }
        for replica in &world.replicas {
            prop_assert_eq!(&replica.unanswered, &Vec::new());
        }
    }
}
