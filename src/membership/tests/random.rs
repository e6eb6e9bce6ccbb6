//! Replicas under random faults: no one is sure once its row says that it is down, and all that were not fenced are
//! sure again once the faults end.

use std::sync::Arc;

use super::world::{Faults, Machine, Replica, start_on, wait};
use crate::store::ReplicaState;

fn faults(machine: &Machine) -> Faults {
    let one_in = |n| machine.below(n) == 0;
    Faults {
        hangs: one_in(8),
        refuses: one_in(8),
        loses_heartbeats: one_in(5),
        loses_lists: one_in(6),
        hangs_requests: false,
        loses_swaps: one_in(4),
        swaps_unheard: one_in(4),
        delay_ms_max: [0, 20, 400, 1_500, 3_000][usize::try_from(machine.below(5)).unwrap()],
        loses_one_in: [None, Some(20), Some(3)][usize::try_from(machine.below(3)).unwrap()],
    }
}

fn check(all: &[Replica], seed: u64) {
    for one in all {
        let is_up = matches!(one.state(), Some(ReplicaState::Up(_)));
        assert!(is_up || !one.is_sure(), "seed {seed}: sure, and down");
        for other in all {
            let permits = other.membership.presence(one.id()) == crate::membership::Presence::Down;
            assert!(!permits || !is_up, "seed {seed}: taken for down, and up");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn nobody_is_sure_who_is_down_whatever_gets_lost_or_late() {
    let mut ended = 0;
    for seed in 1..=60 {
        let tables = Arc::default();
        let mut all = Vec::new();
        for n in 0..3 {
            let machine = Machine::new(&tables, seed * 10 + n);
            all.push(start_on(&machine, &format!("fermata-{n}")).await);
        }
        for _ in 0..30 {
            for one in &all {
                match one.machine.below(10) {
                    0 => one.machine.pause(),
                    1..=3 => one.machine.fail(|all| *all = faults(&one.machine)),
                    4 | 5 => one.machine.heal(),
                    _ => {}
                }
            }
            for _ in 0..one_pause(&all) / 50 {
                wait(50).await;
                check(&all, seed);
            }
            for one in &all {
                if one.machine.below(2) == 0 {
                    one.machine.resume();
                    check(&all, seed);
                }
            }
        }
        for one in &all {
            one.machine.heal();
            one.machine.resume();
        }
        wait(5_000).await;
        check(&all, seed);
        for one in &all {
            assert!(one.is_sure() != one.is_fenced(), "seed {seed}");
            ended += u32::from(one.is_fenced());
        }
    }
    // Else the faults prove nothing.
    assert!((20..160).contains(&ended), "{ended} of 180 were fenced");
}

fn one_pause(all: &[Replica]) -> u64 {
    all[0].machine.below(4_000)
}
