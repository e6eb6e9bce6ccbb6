//! Nobody is stuck: whatever a key has been through, its entries can be ended, and whoever is behind
//! comes to hold the key.

use fermata::lock::{
    Command, CoreLimits, Evidence, Fence, Outcome, ReplicaId, Seq, State, Tag, decide,
};
use proptest::prelude::*;
use uuid::Uuid;

use crate::batch::{reached, steps};
use crate::start;

fn evict(seq: Seq, tag: Tag) -> Command {
    Command::Evict {
        seq,
        tag,
        evidence: Evidence::Forced {
            by: "root".into(),
            why: "drained".into(),
        },
    }
}

fn release(seq: Seq, tag: Tag) -> Command {
    Command::Release {
        seq,
        tag,
        home: ReplicaId(Uuid::nil()),
        grant: None,
        synced: false,
        open_write: false,
    }
}

/// Ends the entry at an index, by eviction or a release from anywhere.
fn end(state: &State, at: usize, evicted: bool) -> Option<(Seq, Command)> {
    let entry = state.entries.get(at)?;
    let command = if evicted { evict } else { release };
    Some((entry.seq, command(entry.seq, entry.tag())))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, ..ProptestConfig::default() })]

    #[test]
    fn once_the_clock_has_caught_up_any_entry_can_be_ended_in_any_order(
        before in steps(40),
        order in prop::collection::vec((0..4_usize, any::<bool>()), 4),
    ) {
        let start = start::fresh();
        let (mut state, now_us) = reached(&start, &before);
        let mut now_us = now_us.max(state.fence.0);
        for (at, evicted) in order {
            now_us += u64::from(start.limits.width_max);
            let at = at.min(state.entries.len().saturating_sub(1));
            let Some((seq, command)) = end(&state, at, evicted) else {
                break;
            };
            let after = decide(&state, &[command], now_us, &start.limits);
            let ended = matches!(
                after.outcomes[..],
                [Outcome::Evicted { .. } | Outcome::Released(_)]
            );
            prop_assert!(ended, "{:?}", after.outcomes);
            prop_assert_eq!(after.state.position(seq), None);
            prop_assert_eq!(after.state.entries.len() + 1, state.entries.len());
            state = after.state;
        }
        prop_assert_eq!(&state.entries.len(), &0);
        prop_assert_eq!(state.grant, Fence::NONE);
    }

    #[test]
    fn a_queue_drains_from_its_end_even_where_no_fence_can_be_taken(
        start in start::any(),
        before in steps(40),
        evicted in any::<bool>(),
    ) {
        let (mut state, _) = reached(&start, &before);
        while let Some((_, command)) = end(&state, state.entries.len().saturating_sub(1), evicted) {
            let after = decide(&state, &[command], 0, &start.limits);
            prop_assert_eq!(after.state.entries.len() + 1, state.entries.len());
            state = after.state;
        }
    }

    #[test]
    fn a_queue_drains_from_its_head_even_where_no_fence_can_be_taken(
        before in steps(40),
        evicted in any::<bool>(),
    ) {
        let start = start::fresh();
        let (mut state, _) = reached(&start, &before);
        let stuck = CoreLimits {
            clock_off: true,
            ..start.limits.clone()
        };
        while let Some((_, command)) = end(&state, 0, evicted) {
            let after = decide(&state, &[command], start.now_us, &stuck);
            prop_assert_eq!(after.state.entries.len() + 1, state.entries.len());
            prop_assert_eq!(after.state.grant, Fence::NONE);
            prop_assert_eq!(after.state.fence, state.fence);
            state = after.state;
            // Whoever is next holds the key once there is a fence again.
            let later = state.fence.0 + 1_000;
            let granted = decide(&state, &[], later, &start.limits).state;
            prop_assert_eq!(granted.grant, if state.entries.is_empty() { Fence::NONE } else { Fence(later) });
        }
    }
}
