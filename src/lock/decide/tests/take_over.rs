use super::*;

/// Of an entry that has its first home still.
fn take_over(seq: u64, from_home: ReplicaId, from_fence: Fence, to_home: ReplicaId) -> Command {
    take_over_at(0, seq, from_home, from_fence, to_home)
}

fn take_over_at(
    from_epoch: u32,
    seq: u64,
    from_home: ReplicaId,
    from_fence: Fence,
    to_home: ReplicaId,
) -> Command {
    Command::TakeOver {
        seq: Seq(seq),
        from_home,
        from_fence,
        from_epoch,
        to_home,
    }
}

/// Home and epoch of an entry.
fn entry(state: &State, seq: u64) -> Option<(ReplicaId, u32)> {
    state.entry(Seq(seq)).map(|e| (e.home, e.epoch))
}

fn release(seq: u64, home: ReplicaId) -> Command {
    Command::Release {
        seq: Seq(seq),
        tag: tag(seq),
        home,
        grant: Some(G1),
        synced: true,
        open_write: false,
    }
}

#[test]
fn take_over_of_the_holder_sets_home_grant_and_unsynced_at_once() {
    let (state, outcome) = one(&queue(&[A, B]), take_over(1, A, G1, C));
    assert_eq!(outcome, Outcome::TakenOver);
    assert_eq!(entry(&state, 1), Some((C, 1)));
    assert_eq!((state.grant, state.fence, state.width), (G2, G2, 16));
    assert!(state.unsynced);
    assert_eq!((state.version, state.head), (2, Seq(1)));
    assert_eq!(entry(&state, 2), Some((B, 0)));
}

#[test]
fn take_over_of_the_holder_from_its_own_home_gives_a_new_grant() {
    let (state, _) = one(&queue(&[A]), take_over(1, A, G1, A));
    assert_eq!(entry(&state, 1), Some((A, 1)));
    assert_eq!(state.grant, G2);
    assert!(state.unsynced);
    again(&state, take_over(1, A, G1, A), Outcome::TakenOver);
}

#[test]
fn take_over_of_a_waiter_changes_its_home_only() {
    let (state, outcome) = one(&queue(&[A, B]), take_over(2, B, Fence::NONE, C));
    assert_eq!(outcome, Outcome::TakenOver);
    assert_eq!(entry(&state, 2), Some((C, 1)));
    let entries = state.entries.clone();
    let before = queue(&[A, B]);
    assert_eq!(
        state,
        State {
            version: 2,
            entries,
            ..before
        }
    );
}

#[test]
fn take_over_decided_again_changes_nothing_more() {
    let (state, _) = one(&queue(&[A, B]), take_over(1, A, G1, C));
    again(&state, take_over(1, A, G1, C), Outcome::TakenOver);
    let (state, _) = one(&queue(&[A, B]), take_over(2, B, Fence::NONE, C));
    again(&state, take_over(2, B, Fence::NONE, C), Outcome::TakenOver);
}

#[test]
fn take_over_of_a_holder_decided_again_after_an_extend_changes_nothing_more() {
    let (state, _) = one(&queue(&[A]), take_over(1, A, G1, C));
    let extend = Command::Extend {
        seq: Seq(1),
        home: C,
        fence: G2,
        past: None,
    };
    let (state, _) = one(&state, extend);
    again(&state, take_over(1, A, G1, C), Outcome::TakenOver);
}

#[test]
fn take_over_of_a_waiter_that_was_applied_is_found_again_once_it_is_the_head() {
    let command = take_over(2, B, Fence::NONE, C);
    let (state, _) = one(&queue(&[A, B]), command.clone());
    let (state, _) = one(&state, release(1, A));
    assert_eq!(state.head, Seq(2));
    again(&state, command, Outcome::TakenOver);
}

#[test]
fn take_over_of_a_waiter_is_refused_once_it_is_the_head() {
    let (state, _) = one(&queue(&[A, B]), release(1, A));
    let from_other = take_over(2, B, Fence::NONE, C);
    refused(&state, from_other, Refusal::IsHolder);
    let from_itself = take_over(2, B, Fence::NONE, B);
    refused(&state, from_itself, Refusal::IsHolder);
}

#[test]
fn take_over_is_refused_where_home_or_fence_are_not_the_ones_named() {
    let state = queue(&[A, B]);
    for command in [
        take_over(1, B, G1, C),
        take_over(1, A, Fence(G1.0 - 1), C),
        take_over(1, A, Fence(G1.0 + 1), C),
        take_over(2, A, Fence::NONE, C),
        take_over(2, B, G1, C),
    ] {
        refused(&state, command, Refusal::Overtaken);
    }
}

#[test]
fn agreement_given_for_one_fence_does_not_cover_the_next() {
    let extend = Command::Extend {
        seq: Seq(1),
        home: A,
        fence: G1,
        past: None,
    };
    let (state, _) = one(&queue(&[A]), extend);
    refused(&state, take_over(1, A, G1, C), Refusal::Overtaken);
    let (state, _) = one(&queue(&[A]), take_over(1, A, G1, B));
    let (state, _) = one(&state, take_over_at(1, 1, B, G2, A));
    refused(&state, take_over(1, A, G1, C), Refusal::Overtaken);
}

#[test]
fn a_waiter_that_went_to_another_home_and_back_is_not_the_one_that_agreed() {
    let (state, _) = one(&queue(&[A, A]), take_over(2, A, Fence::NONE, B));
    let (state, _) = one(&state, take_over_at(1, 2, B, Fence::NONE, A));
    refused(&state, take_over(2, A, Fence::NONE, C), Refusal::Overtaken);
}

#[test]
fn take_over_of_a_waiter_from_its_own_home_raises_its_epoch_once() {
    let (state, _) = one(&queue(&[A, B]), take_over(2, B, Fence::NONE, B));
    assert_eq!(entry(&state, 2), Some((B, 1)));
    again(&state, take_over(2, B, Fence::NONE, B), Outcome::TakenOver);
}

#[test]
fn take_over_of_an_entry_that_has_ended_says_so() {
    let (state, _) = one(&queue(&[A]), release(1, A));
    again(
        &state,
        take_over(1, A, G1, C),
        Outcome::Gone(EndedAs::Released),
    );
    refused(&state, take_over(2, A, G1, C), Refusal::NeverIssued);
}
