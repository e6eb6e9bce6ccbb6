//! What each command promises, one behaviour a test. A queue is built in one line, at [`NOW`]; the
//! command under test is decided at [`LATER`].

mod batch;
mod create;
mod evict;
mod extend;
mod release;
mod take_over;
mod ungranted;

use uuid::Uuid;

use super::*;
use crate::lock::{Ended, Mode};

/// Three replicas.
const A: ReplicaId = ReplicaId(Uuid::from_u128(0xa));
const B: ReplicaId = ReplicaId(Uuid::from_u128(0xb));
const C: ReplicaId = ReplicaId(Uuid::from_u128(0xc));

const NOW: u64 = 1_000_000;
const LATER: u64 = 2_000_000;

/// The grant of the holder of [`queue`], and the one that is given at [`LATER`].
const G1: Fence = Fence(NOW);
const G2: Fence = Fence(LATER);

/// Small where it is about corners: two ends are remembered, four entries fit.
fn limits() -> CoreLimits {
    CoreLimits {
        ended_max: 2,
        entries_max: 4,
        ..CoreLimits::default()
    }
}

/// A Create whose request_id is `n`, which lives by itself.
fn create(n: u64, home: ReplicaId) -> Create {
    Create {
        request_id: Uuid::from_u128(n.into()),
        mode: Mode::Exclusive,
        liveness: Liveness::Own { ttl_ms: 1_000 },
        home,
        identity: "alice".into(),
        owner: "job 7".into(),
        created_at_ms: 5,
        past: None,
    }
}

/// The tag of the entry that `create(n, _)` made.
fn tag(n: u64) -> Tag {
    Tag::of(Uuid::from_u128(n.into()))
}

/// Entries 1, 2, … at these homes, made at [`NOW`]; the entry and its request_id have the same number.
fn queue(homes: &[ReplicaId]) -> State {
    let creates: Vec<Command> = (1..)
        .zip(homes)
        .map(|(n, home)| Command::Create(create(n, *home)))
        .collect();
    let made = decide(&State::default(), &creates, NOW, &limits());
    assert_eq!(made.state.entries.len(), homes.len());
    made.state
}

/// What one command makes of a state at [`LATER`].
fn one(state: &State, command: Command) -> (State, Outcome) {
    let mut batch = all(state, &[command]);
    (batch.state, batch.outcomes.remove(0))
}

/// What a batch makes of a state at [`LATER`]; every state made in a test holds together.
fn all(state: &State, commands: &[Command]) -> Decision {
    let decision = decide(state, commands, LATER, &limits());
    assert_eq!(decision.state.check(), Ok(()));
    assert_eq!(decision.outcomes.len(), commands.len());
    decision
}

/// Asserts that a command is refused, and that the refusal changes nothing.
#[track_caller]
fn refused(state: &State, command: Command, why: Refusal) {
    let (after, outcome) = one(state, command);
    assert_eq!(outcome, Outcome::Refused(why));
    assert_eq!(&after, state);
}

/// Asserts that a command which was decided once answers this when it is decided again, and changes
/// nothing more.
#[track_caller]
fn again(state: &State, command: Command, outcome: Outcome) {
    let (after, second) = one(state, command);
    assert_eq!(second, outcome);
    assert_eq!(&after, state);
}
