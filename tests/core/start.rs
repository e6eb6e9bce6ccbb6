//! Where a run starts, and bounds so tight that every corner is met within a few commands.

use fermata::lock::{CoreLimits, Fence, Seq, State};
use proptest::prelude::*;

/// A first state, its bounds, and the clock in microseconds.
#[derive(Clone, Debug)]
pub struct Start {
    pub state: State,
    pub limits: CoreLimits,
    pub now_us: u64,
}

fn limits(ahead_us_max: Option<u64>) -> CoreLimits {
    CoreLimits {
        width_min: 2,
        width_max: 40,
        ended_max: 2,
        entries_max: 4,
        ahead_us_max,
        clock_off: false,
    }
}

/// A key without a row, where a fence may run ahead of the clock by a few slots only.
pub fn fresh() -> Start {
    Start {
        state: State::default(),
        limits: limits(Some(12)),
        now_us: 1_000,
    }
}

/// A key whose entries and fences are about to be used up.
pub fn nearly_used_up() -> Start {
    let next = Seq(Seq::LAST.0 - 5);
    Start {
        state: State {
            version: 7,
            next,
            head: next,
            fence: Fence(Fence::MAX - 60),
            width: 2,
            unsynced: true,
            ..State::default()
        },
        limits: limits(None),
        now_us: 1_000,
    }
}

pub fn any() -> impl Strategy<Value = Start> {
    prop_oneof![3 => Just(fresh()), 1 => Just(nearly_used_up())]
}
