//! The head of a queue for which no fence can be taken: it waits, and whatever holds goes on.

use super::*;
use crate::lock::FenceError;

fn clock_off() -> CoreLimits {
    CoreLimits {
        clock_off: true,
        ..limits()
    }
}

/// What one command makes of a state while no fence can be taken.
fn blocked(state: &State, command: Command) -> (State, Outcome) {
    let mut decision = decide(state, &[command], LATER, &clock_off());
    assert_eq!(decision.state.check(), Ok(()));
    (decision.state, decision.outcomes.remove(0))
}

fn release(seq: u64, grant: Option<Fence>) -> Command {
    Command::Release {
        seq: Seq(seq),
        tag: tag(seq),
        home: A,
        grant,
        synced: false,
        open_write: false,
    }
}

fn take_over(seq: u64, from_fence: Fence) -> Command {
    Command::TakeOver {
        seq: Seq(seq),
        from_home: A,
        from_fence,
        from_epoch: 0,
        to_home: B,
    }
}

fn forced(seq: u64) -> Command {
    Command::Evict {
        seq: Seq(seq),
        tag: tag(seq),
        evidence: Evidence::Forced {
            by: "root".into(),
            why: "stuck".into(),
        },
    }
}

/// Two entries, of which the first has no grant.
fn ungranted() -> State {
    let (state, outcome) = blocked(&queue(&[A, A, A]), release(1, Some(G1)));
    let clean = Released {
        was_holder: true,
        clean: true,
    };
    assert_eq!(outcome, Outcome::Released(clean));
    assert_eq!(
        (state.head, state.grant, state.fence),
        (Seq(2), Fence::NONE, G1)
    );
    state
}

#[test]
fn a_holder_goes_although_no_fence_can_be_taken_for_the_next_one() {
    let state = ungranted();
    assert!(state.awaits_grant());
    assert_eq!(state.holder(), None);
    let (state, outcome) = blocked(&queue(&[A, A]), forced(1));
    assert_eq!(outcome, Outcome::Evicted { was_holder: true });
    assert!(state.awaits_grant() && state.unsynced);
}

#[test]
fn a_head_without_a_grant_gets_one_from_an_empty_batch_once_a_fence_can_be_taken() {
    let state = ungranted();
    let still = decide(&state, &[], LATER, &clock_off());
    assert_eq!(still.state, state);
    let why = why_not_granted(&state, LATER, &clock_off());
    assert_eq!(why, Some(FenceError::ClockOff));
    assert_eq!(why_not_granted(&state, LATER, &limits()), None);
    let granted = all(&state, &[]).state;
    assert_eq!(
        (granted.version, granted.grant, granted.fence),
        (state.version + 1, G2, G2)
    );
    // Whoever has a grant keeps it.
    assert_eq!(all(&granted, &[]).state, granted);
}

#[test]
fn a_head_without_a_grant_gets_one_with_any_other_change() {
    let (state, _) = one(&ungranted(), Command::Create(create(4, B)));
    assert_eq!((state.head, state.grant), (Seq(2), G2));
}

#[test]
fn a_head_without_a_grant_leaves_like_a_waiter() {
    let (state, outcome) = blocked(&ungranted(), release(2, None));
    let waiter = Released {
        was_holder: false,
        clean: true,
    };
    assert_eq!(outcome, Outcome::Released(waiter));
    assert!(!state.unsynced && state.ended.entries.is_empty());
    assert!(state.awaits_grant());
    let (state, outcome) = blocked(&ungranted(), forced(2));
    assert_eq!(outcome, Outcome::Evicted { was_holder: false });
    assert!(!state.unsynced);
}

#[test]
fn a_head_without_a_grant_is_taken_over_as_a_waiter_and_granted_to_its_new_home() {
    let (state, outcome) = blocked(&ungranted(), take_over(2, Fence::NONE));
    assert_eq!(outcome, Outcome::TakenOver);
    assert!(state.awaits_grant() && !state.unsynced);
    let (state, outcome) = one(&ungranted(), take_over(2, Fence::NONE));
    assert_eq!(outcome, Outcome::TakenOver);
    assert_eq!((state.grant, state.entries[0].home), (G2, B));
    assert!(!state.unsynced);
    let (_, outcome) = blocked(&ungranted(), take_over(2, G1));
    assert_eq!(outcome, Outcome::Refused(Refusal::Overtaken));
}

#[test]
fn a_head_without_a_grant_is_neither_unclaimed_nor_extended() {
    for grant in [G1, Fence::NONE] {
        let unclaimed = Command::Evict {
            seq: Seq(2),
            tag: tag(2),
            evidence: Evidence::Unclaimed { home: A, grant },
        };
        let (state, outcome) = blocked(&ungranted(), unclaimed);
        assert_eq!(outcome, Outcome::Refused(Refusal::EvidenceGone));
        assert_eq!(state, ungranted());
    }
    let extend = Command::Extend {
        seq: Seq(2),
        home: A,
        fence: G1,
        past: None,
    };
    let (_, outcome) = blocked(&ungranted(), extend);
    assert_eq!(outcome, Outcome::Refused(Refusal::NotHolder));
}

#[test]
fn what_needs_a_fence_of_its_own_is_refused_and_changes_nothing() {
    let why = Refusal::Fence(FenceError::ClockOff);
    let extend = Command::Extend {
        seq: Seq(1),
        home: A,
        fence: G1,
        past: None,
    };
    for (state, command) in [
        (State::default(), Command::Create(create(1, A))),
        (queue(&[A]), take_over(1, G1)),
        (queue(&[A]), extend),
    ] {
        let (after, outcome) = blocked(&state, command);
        assert_eq!(outcome, Outcome::Refused(why.clone()));
        assert_eq!(after, state);
    }
    // An entry behind others needs none.
    let (state, outcome) = blocked(&queue(&[A]), Command::Create(create(2, A)));
    assert!(matches!(outcome, Outcome::Created(_)));
    assert_eq!(state.entries.len(), 2);
}
