use super::*;
use crate::lock::FenceError;

fn extend(home: ReplicaId, fence: Fence, past: Option<u64>) -> Command {
    Command::Extend {
        seq: Seq(1),
        home,
        fence,
        past,
    }
}

#[test]
fn extend_moves_the_fence_past_its_slot_and_widens_it_eightfold() {
    let (state, outcome) = one(&queue(&[A, B]), extend(A, G1, None));
    assert_eq!(outcome, Outcome::Extended);
    assert_eq!(
        state,
        State {
            version: 2,
            fence: G2,
            width: 128,
            ..queue(&[A, B])
        }
    );
}

#[test]
fn extend_goes_above_a_timestamp_seen_in_the_data() {
    let (state, _) = one(&queue(&[A]), extend(A, G1, Some(LATER + 7)));
    assert_eq!(state.fence, Fence(LATER + 8));
}

#[test]
fn the_width_stops_at_its_limit_and_a_new_grant_resets_it() {
    let mut state = queue(&[A, B]);
    for width in [128, 1024, 1024] {
        let fence = state.fence;
        state = one(&state, extend(A, fence, None)).0;
        assert_eq!(state.width, width);
    }
    let fence = state.fence;
    let taken = Command::TakeOver {
        seq: Seq(1),
        from_home: A,
        from_fence: fence,
        from_epoch: 0,
        to_home: C,
    };
    let (state, _) = one(&state, taken);
    assert_eq!(state.grant, Fence(fence.0 + 1024));
    assert_eq!((state.fence, state.width), (state.grant, 16));
}

#[test]
fn extend_decided_again_takes_no_second_slot() {
    let (state, _) = one(&queue(&[A]), extend(A, G1, None));
    again(&state, extend(A, G1, None), Outcome::Extended);
}

#[test]
fn extend_is_for_the_home_of_the_holder_and_its_fence_alone() {
    let state = queue(&[A, B]);
    refused(&state, extend(B, G1, None), Refusal::Overtaken);
    refused(&state, extend(A, Fence(G1.0 + 1), None), Refusal::Overtaken);
    let of_waiter = Command::Extend {
        seq: Seq(2),
        home: B,
        fence: G1,
        past: None,
    };
    refused(&state, of_waiter, Refusal::NotHolder);
}

#[test]
fn extend_of_a_grant_that_was_taken_over_is_refused_even_where_the_home_is_the_same() {
    let taken = Command::TakeOver {
        seq: Seq(1),
        from_home: A,
        from_fence: G1,
        from_epoch: 0,
        to_home: A,
    };
    let (state, _) = one(&queue(&[A]), taken);
    assert_eq!(state.grant, G2);
    refused(&state, extend(A, G1, None), Refusal::Overtaken);
}

#[test]
fn extend_of_an_entry_that_has_ended_says_so() {
    let forced = Command::Evict {
        seq: Seq(1),
        tag: tag(1),
        evidence: Evidence::Silent { epoch: 0 },
    };
    let (state, _) = one(&queue(&[A]), forced);
    again(
        &state,
        extend(A, G1, None),
        Outcome::Gone(EndedAs::Lost(EndReason::Expired)),
    );
}

#[test]
fn limits_that_contradict_each_other_stop_nothing() {
    let upside_down = CoreLimits {
        width_min: 8,
        width_max: 4,
        ..limits()
    };
    let decision = decide(&queue(&[A]), &[extend(A, G1, None)], LATER, &upside_down);
    assert_eq!(decision.outcomes, [Outcome::Extended]);
    assert_eq!(decision.state.width, 8);
}

#[test]
fn extend_is_refused_where_its_wider_slot_would_pass_the_last_timestamp() {
    let near_the_end = State {
        grant: Fence(Fence::MAX - 100),
        fence: Fence(Fence::MAX - 100),
        ..queue(&[A])
    };
    refused(
        &near_the_end,
        extend(A, near_the_end.fence, None),
        Refusal::Fence(FenceError::UsedUp),
    );
}
