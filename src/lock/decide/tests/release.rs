use super::*;
use crate::lock::FenceError;

/// A Release of entry `seq` from its own home, which granted it the lock with `grant`.
fn release(seq: u64, home: ReplicaId, grant: Option<Fence>) -> Command {
    Command::Release {
        seq: Seq(seq),
        tag: tag(seq),
        home,
        grant,
        synced: true,
        open_write: false,
    }
}

fn released(was_holder: bool, clean: bool) -> Outcome {
    Outcome::Released(Released { was_holder, clean })
}

fn unsynced(homes: &[ReplicaId]) -> State {
    State {
        unsynced: true,
        ..queue(homes)
    }
}

#[test]
fn a_release_by_the_holders_home_gives_the_next_one_a_new_grant() {
    let (state, outcome) = one(&queue(&[A, B]), release(1, A, Some(G1)));
    assert_eq!(outcome, released(true, true));
    assert_eq!(
        state,
        State {
            version: 2,
            head: Seq(2),
            grant: G2,
            fence: G2,
            entries: queue(&[A, B]).entries.split_off(1),
            ..queue(&[A, B])
        }
    );
}

#[test]
fn the_last_release_leaves_no_holder_and_keeps_the_fence() {
    let (state, _) = one(&queue(&[A]), release(1, A, Some(G1)));
    assert_eq!((state.head, state.next), (Seq(2), Seq(2)));
    assert_eq!((state.grant, state.fence), (Fence::NONE, G1));
    assert_eq!(state.holder(), None);
}

#[test]
fn a_clean_synced_release_clears_unsynced() {
    let (state, _) = one(&unsynced(&[A]), release(1, A, Some(G1)));
    assert!(!state.unsynced);
}

#[test]
fn a_clean_release_that_is_not_synced_leaves_unsynced_as_it_was() {
    let not_synced = Command::Release {
        seq: Seq(1),
        tag: tag(1),
        home: A,
        grant: Some(G1),
        synced: false,
        open_write: false,
    };
    assert!(one(&unsynced(&[A]), not_synced.clone()).0.unsynced);
    assert!(!one(&queue(&[A]), not_synced).0.unsynced);
}

#[test]
fn a_release_with_an_open_write_leaves_the_key_unsynced() {
    let open = Command::Release {
        seq: Seq(1),
        tag: tag(1),
        home: A,
        grant: Some(G1),
        synced: true,
        open_write: true,
    };
    let (state, outcome) = one(&queue(&[A]), open.clone());
    assert_eq!(outcome, released(true, true));
    assert!(state.unsynced);
    assert!(one(&unsynced(&[A]), open).0.unsynced);
}

#[test]
fn a_release_from_elsewhere_or_with_another_grant_is_foreign() {
    let of_others = [
        release(1, B, Some(G1)),
        release(1, B, None),
        release(1, A, Some(Fence(G1.0 - 1))),
        release(1, A, None),
    ];
    for command in of_others {
        let (state, outcome) = one(&queue(&[A]), command.clone());
        assert_eq!(outcome, released(true, false));
        assert!(state.unsynced);
        again(
            &state,
            command,
            Outcome::Gone(EndedAs::Lost(EndReason::Foreign)),
        );
    }
}

#[test]
fn a_release_with_the_grant_from_before_a_take_over_is_foreign() {
    let taken = Command::TakeOver {
        seq: Seq(1),
        from_home: A,
        from_fence: G1,
        from_epoch: 0,
        to_home: A,
    };
    let (state, _) = one(&queue(&[A]), taken);
    let (state, outcome) = one(&state, release(1, A, Some(G1)));
    assert_eq!(outcome, released(true, false));
    assert!(state.unsynced);
}

#[test]
fn a_waiter_is_released_from_anywhere_and_changes_nothing_else() {
    let (state, outcome) = one(&unsynced(&[A, B]), release(2, C, None));
    assert_eq!(outcome, released(false, true));
    assert_eq!(
        state,
        State {
            version: 2,
            next: Seq(3),
            ..unsynced(&[A])
        }
    );
    again(
        &state,
        release(2, C, None),
        Outcome::Gone(EndedAs::Released),
    );
}

#[test]
fn a_second_release_finds_the_entry_gone() {
    let (state, _) = one(&queue(&[A, B]), release(1, A, Some(G1)));
    again(
        &state,
        release(1, A, Some(G1)),
        Outcome::Gone(EndedAs::Released),
    );
}

#[test]
fn a_release_with_another_tag_or_of_an_entry_to_come_is_refused() {
    let wrong_tag = Command::Release {
        seq: Seq(1),
        tag: tag(2),
        home: A,
        grant: Some(G1),
        synced: true,
        open_write: false,
    };
    refused(&queue(&[A]), wrong_tag, Refusal::NeverIssued);
    refused(&queue(&[A]), release(2, A, None), Refusal::NeverIssued);
    refused(&queue(&[A]), release(0, A, None), Refusal::NeverIssued);
}

#[test]
fn an_entry_that_became_holder_within_the_batch_is_released_like_a_waiter() {
    for home in [B, C] {
        let batch = [release(1, A, Some(G1)), release(2, home, None)];
        let decision = all(&queue(&[A, B, A]), &batch);
        assert_eq!(
            decision.outcomes,
            [released(true, true), released(false, true)]
        );
        assert!(!decision.state.unsynced);
        assert_eq!(decision.state.ended, State::default().ended);
        assert_eq!(decision.state.head, Seq(3));
    }
}

#[test]
fn an_entry_made_and_released_within_the_batch_was_granted_the_lock_by_nobody() {
    let batch = [Command::Create(create(1, A)), release(1, A, None)];
    let decision = all(&State::default(), &batch);
    assert_eq!(decision.outcomes.last(), Some(&released(false, true)));
    assert!(!decision.state.unsynced);
}

#[test]
fn nobody_that_was_never_granted_the_lock_clears_unsynced() {
    let batch = [
        Command::Evict {
            seq: Seq(1),
            tag: tag(1),
            evidence: Evidence::Silent { epoch: 0 },
        },
        release(2, B, Some(G1)),
        release(3, C, Some(Fence(G2.0 + 16))),
    ];
    let decision = all(&queue(&[A, B, C]), &batch);
    assert_eq!(decision.state.entries.len(), 0);
    assert!(decision.state.unsynced);
}

#[test]
fn where_the_fences_are_used_up_a_holder_goes_and_nobody_follows_it() {
    let last_slot = State {
        grant: Fence(Fence::MAX - 16),
        fence: Fence(Fence::MAX - 16),
        ..queue(&[A, B])
    };
    let (state, outcome) = one(&last_slot, release(1, C, None));
    assert_eq!(outcome, released(true, false));
    assert!(state.awaits_grant() && state.unsynced);
    let (state, outcome) = one(&last_slot, release(1, A, Some(last_slot.grant)));
    assert_eq!(outcome, released(true, true));
    assert!(state.awaits_grant() && !state.unsynced);
    let why = why_not_granted(&state, LATER, &limits());
    assert_eq!(why, Some(FenceError::UsedUp));
    let (state, outcome) = one(&state, release(2, C, None));
    assert_eq!(outcome, released(false, true));
    assert_eq!(state.entries.len(), 0);
}
