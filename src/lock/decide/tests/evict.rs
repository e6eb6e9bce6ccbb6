use super::*;
use crate::lock::SessionId;

const SESSION: SessionId = SessionId(Uuid::from_u128(0x5e55));

fn evict(seq: u64, evidence: Evidence) -> Command {
    Command::Evict {
        seq: Seq(seq),
        tag: tag(seq),
        evidence,
    }
}

fn forced() -> Evidence {
    Evidence::Forced {
        by: "root".into(),
        why: "stuck".into(),
    }
}

fn gone(reason: EndReason) -> Outcome {
    Outcome::Gone(EndedAs::Lost(reason))
}

/// A holder and a waiter that live by a session.
fn of_session() -> State {
    let creates = [1, 2].map(|n| {
        Command::Create(Create {
            liveness: Liveness::Session(SESSION),
            ..create(n, A)
        })
    });
    decide(&State::default(), &creates, NOW, &limits()).state
}

fn taken_over(seq: u64, from_fence: Fence) -> State {
    let take_over = Command::TakeOver {
        seq: Seq(seq),
        from_home: A,
        from_fence,
        from_epoch: 0,
        to_home: B,
    };
    let (state, outcome) = one(&queue(&[A, A]), take_over);
    assert_eq!(outcome, Outcome::TakenOver);
    state
}

#[test]
fn the_holder_that_is_evicted_leaves_the_key_unsynced_to_the_next() {
    let (state, outcome) = one(&queue(&[A, B]), evict(1, Evidence::Silent { epoch: 0 }));
    assert_eq!(outcome, Outcome::Evicted { was_holder: true });
    assert_eq!(
        state,
        State {
            version: 2,
            head: Seq(2),
            grant: G2,
            fence: G2,
            unsynced: true,
            entries: queue(&[A, B]).entries.split_off(1),
            ended: Ended {
                entries: [EndedEntry {
                    seq: Seq(1),
                    tag: tag(1),
                    reason: EndReason::Expired
                }]
                .into(),
                complete_from: Seq(1)
            },
            ..queue(&[A, B])
        }
    );
}

#[test]
fn a_waiter_that_is_evicted_leaves_the_holder_alone() {
    let (state, outcome) = one(&queue(&[A, B]), evict(2, Evidence::Silent { epoch: 0 }));
    assert_eq!(outcome, Outcome::Evicted { was_holder: false });
    assert_eq!((state.grant, state.fence, state.head), (G1, G1, Seq(1)));
    assert!(!state.unsynced);
}

#[test]
fn every_reason_is_remembered_as_it_was() {
    let unclaimed = Evidence::Unclaimed { home: A, grant: G1 };
    let by = |state: &State, evidence: Evidence| {
        let (after, _) = one(state, evict(1, evidence.clone()));
        one(&after, evict(1, evidence)).1
    };
    assert_eq!(
        by(&queue(&[A]), Evidence::Silent { epoch: 0 }),
        gone(EndReason::Expired)
    );
    assert_eq!(
        by(&of_session(), Evidence::SessionEnded(SESSION)),
        gone(EndReason::SessionClosed)
    );
    assert_eq!(by(&queue(&[A]), unclaimed), gone(EndReason::Unclaimed));
    assert_eq!(
        by(&queue(&[A]), forced()),
        gone(EndReason::Forced {
            by: "root".into(),
            why: "stuck".into()
        })
    );
}

#[test]
fn an_evict_decided_again_ends_nobody_else() {
    let (state, _) = one(&queue(&[A, B]), evict(1, forced()));
    let remembered = gone(EndReason::Forced {
        by: "root".into(),
        why: "stuck".into(),
    });
    let silent = evict(1, Evidence::Silent { epoch: 0 });
    again(&state, silent, remembered);
}

#[test]
fn silence_seen_before_a_take_over_proves_nothing_after_it() {
    for (seq, from_fence) in [(1, G1), (2, Fence::NONE)] {
        let state = taken_over(seq, from_fence);
        let before = evict(seq, Evidence::Silent { epoch: 0 });
        refused(&state, before, Refusal::EvidenceGone);
        let (_, outcome) = one(&state, evict(seq, Evidence::Silent { epoch: 1 }));
        assert!(matches!(outcome, Outcome::Evicted { .. }));
    }
}

#[test]
fn silence_of_its_own_does_not_end_what_lives_by_a_session() {
    let silent = evict(1, Evidence::Silent { epoch: 0 });
    refused(&of_session(), silent, Refusal::EvidenceGone);
}

#[test]
fn the_end_of_a_session_ends_its_own_entries_alone() {
    let other = Evidence::SessionEnded(SessionId(Uuid::from_u128(1)));
    refused(&of_session(), evict(2, other), Refusal::EvidenceGone);
    let ended = Evidence::SessionEnded(SESSION);
    refused(&queue(&[A]), evict(1, ended.clone()), Refusal::EvidenceGone);
    let (_, outcome) = one(&of_session(), evict(2, ended));
    assert_eq!(outcome, Outcome::Evicted { was_holder: false });
}

#[test]
fn only_the_holder_of_that_grant_and_home_is_unclaimed() {
    let unclaimed = |home, grant| Evidence::Unclaimed { home, grant };
    let state = queue(&[A, A]);
    for command in [
        evict(1, unclaimed(B, G1)),
        evict(1, unclaimed(A, Fence(G1.0 - 1))),
        evict(2, unclaimed(A, G1)),
    ] {
        refused(&state, command, Refusal::EvidenceGone);
    }
    let taken = taken_over(1, G1);
    refused(&taken, evict(1, unclaimed(A, G1)), Refusal::EvidenceGone);
}

#[test]
fn an_evict_with_another_tag_or_of_an_entry_to_come_is_refused() {
    let wrong_tag = Command::Evict {
        seq: Seq(1),
        tag: tag(2),
        evidence: forced(),
    };
    refused(&queue(&[A]), wrong_tag, Refusal::NeverIssued);
    refused(&queue(&[A]), evict(2, forced()), Refusal::NeverIssued);
}
