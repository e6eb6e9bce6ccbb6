//! A batch is its commands one by one, in one change.

use fermata::lock::{Command, Outcome, Released, State, decide};
use proptest::prelude::*;

use crate::op::{self, Op};
use crate::start::{self, Start};

/// A state that some commands lead to, and the clock there.
pub fn reached(start: &Start, steps: &[(i64, Op)]) -> (State, u64) {
    let mut state = start.state.clone();
    let mut now_us = start.now_us;
    for (tick, op) in steps {
        now_us = op::later(now_us, *tick);
        let command = op.aim(&state, now_us);
        state = decide(&state, &[command], now_us, &start.limits).state;
    }
    (state, now_us)
}

pub fn steps(most: usize) -> impl Strategy<Value = Vec<(i64, Op)>> {
    prop::collection::vec((op::tick(), op::any_op()), 0..most)
}

/// Decides each command as a change of its own.
fn one_by_one(
    start: &Start,
    state: &State,
    commands: &[Command],
    now_us: u64,
) -> (State, Vec<Outcome>) {
    let mut state = state.clone();
    let mut outcomes = Vec::new();
    for command in commands {
        let command = std::slice::from_ref(command);
        let decision = decide(&state, command, now_us, &start.limits);
        state = decision.state;
        outcomes.extend(decision.outcomes);
    }
    (state, outcomes)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_500, ..ProptestConfig::default() })]

    /// Apart from the version there is one difference, and it is meant: between two changes somebody
    /// may have been granted the lock, within one nobody can have been. So an entry that became holder within the
    /// batch is given up like a waiter's; one by one, its Release has to show the grant.
    #[test]
    fn a_batch_is_its_commands_one_by_one(
        start in start::any(),
        before in steps(25),
        ops in prop::collection::vec(op::any_op(), 1..6),
    ) {
        let (old, now_us) = reached(&start, &before);
        let commands: Vec<Command> = ops.iter().map(|op| op.aim(&old, now_us)).collect();
        let batch = decide(&old, &commands, now_us, &start.limits);
        let (single, outcomes) = one_by_one(&start, &old, &commands, now_us);

        prop_assert_eq!(batch.state.version, old.version + u64::from(batch.state != old));
        let held_before = old.holder().map(|e| e.seq);
        let was_granted_between = |(command, outcome): (&Command, &Outcome)| {
            let holder = matches!(outcome, Outcome::Released(Released { was_holder: true, .. }));
            holder && !matches!(command, Command::Release { seq, .. } if Some(*seq) == held_before)
        };
        if commands.iter().zip(&outcomes).any(was_granted_between) {
            prop_assert_eq!(&batch.state.entries, &single.entries);
            prop_assert_eq!(batch.state.fence, single.fence);
            prop_assert_eq!(batch.state.grant, single.grant);
        } else {
            prop_assert_eq!(&batch.outcomes, &outcomes);
            let version = batch.state.version;
            prop_assert_eq!(&batch.state, &State { version, ..single });
        }
    }

    #[test]
    fn the_same_commands_on_the_same_state_give_the_same(
        start in start::any(),
        before in steps(25),
        ops in prop::collection::vec(op::any_op(), 0..6),
    ) {
        let (old, now_us) = reached(&start, &before);
        let commands: Vec<Command> = ops.iter().map(|op| op.aim(&old, now_us)).collect();
        let first = decide(&old, &commands, now_us, &start.limits);
        prop_assert_eq!(decide(&old, &commands, now_us, &start.limits), first);
    }
}
