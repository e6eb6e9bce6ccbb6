//! The core and the reference model side by side: same outcomes, same states, whatever is asked.

use fermata::lock::{Command, CoreLimits, Outcome, State, decide};
use proptest::prelude::*;
use proptest_state_machine::{ReferenceStateMachine, StateMachineTest, prop_state_machine};

use crate::model::{Effect, Model};
use crate::op::{self, Op};
use crate::start::{self, Start};
use crate::step;

/// A batch of commands, all aimed at the state before it.
#[derive(Clone, Debug)]
pub struct Batch {
    tick: i64,
    ops: Vec<Op>,
}

/// The model, and what the last batch was and must have done.
#[derive(Clone, Debug)]
pub struct Reference {
    start: Start,
    model: Model,
    now_us: u64,
    commands: Vec<Command>,
    effects: Vec<Effect>,
}

impl ReferenceStateMachine for Reference {
    type State = Reference;
    type Transition = Batch;

    fn init_state() -> BoxedStrategy<Reference> {
        let reference = |start: Start| Reference {
            model: Model::new(&start),
            now_us: start.now_us,
            commands: Vec::new(),
            effects: Vec::new(),
            start,
        };
        start::any().prop_map(reference).boxed()
    }

    fn transitions(_: &Reference) -> BoxedStrategy<Batch> {
        let ops = prop_oneof![
            3 => prop::collection::vec(op::any_op(), 1),
            1 => prop::collection::vec(op::any_op(), 2..5),
        ];
        (op::tick(), ops)
            .prop_map(|(tick, ops)| Batch { tick, ops })
            .boxed()
    }

    fn apply(mut reference: Reference, batch: &Batch) -> Reference {
        let now_us = op::later(reference.now_us, batch.tick);
        let view = reference.model.state();
        let commands: Vec<Command> = batch.ops.iter().map(|op| op.aim(&view, now_us)).collect();
        reference.effects = reference.model.batch(&commands, now_us);
        reference.commands = commands;
        reference.now_us = now_us;
        reference
    }
}

/// The core, with the bounds of its run.
pub struct Core {
    state: State,
    limits: CoreLimits,
}

impl StateMachineTest for Core {
    type SystemUnderTest = Core;
    type Reference = Reference;

    fn init_test(reference: &Reference) -> Core {
        Core {
            state: reference.start.state.clone(),
            limits: reference.start.limits.clone(),
        }
    }

    fn apply(core: Core, reference: &Reference, _: Batch) -> Core {
        let commands = &reference.commands;
        let now_us = reference.now_us;
        let decision = decide(&core.state, commands, now_us, &core.limits);
        let expected: Vec<Outcome> = reference.effects.iter().map(|(o, _)| o.clone()).collect();
        assert_eq!(decision.outcomes, expected, "{commands:?}");
        assert_eq!(decision.state, reference.model.state(), "{commands:?}");
        step::check(&core.state, &decision.state, commands, &reference.effects);
        step::tells_the_truth(&decision.state, &reference.model);
        if let ([command], [outcome]) = (&commands[..], &decision.outcomes[..]) {
            step::idempotent(&decision.state, command, outcome, now_us, &core.limits);
        }
        Core {
            state: decision.state,
            ..core
        }
    }
}

prop_state_machine! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn the_core_does_what_the_model_says(sequential 1..60 => Core);
}
