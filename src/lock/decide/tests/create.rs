use super::*;
use crate::lock::{FenceError, SessionId};

fn created(seq: u64, existed: bool) -> Outcome {
    Outcome::Created(Created {
        seq: Seq(seq),
        existed,
    })
}

#[test]
fn the_first_create_makes_the_holder() {
    let (state, outcome) = one(&State::default(), Command::Create(create(1, A)));
    assert_eq!(outcome, created(1, false));
    assert_eq!(
        state,
        State {
            version: 1,
            next: Seq(2),
            head: Seq(1),
            grant: G2,
            fence: G2,
            width: 16,
            entries: [Arc::new(Entry {
                seq: Seq(1),
                mode: Mode::Exclusive,
                request_id: Uuid::from_u128(1),
                liveness: Liveness::Own { ttl_ms: 1_000 },
                epoch: 0,
                home: A,
                identity: "alice".into(),
                owner: "job 7".into(),
                created_at_ms: 5,
            })]
            .into(),
            ..State::default()
        }
    );
}

#[test]
fn a_later_create_waits_and_takes_no_fence() {
    let (state, outcome) = one(&queue(&[A]), Command::Create(create(2, B)));
    assert_eq!(outcome, created(2, false));
    assert_eq!((state.grant, state.fence, state.head), (G1, G1, Seq(1)));
    assert_eq!(state.position(Seq(2)), Some(1));
}

#[test]
fn a_create_on_an_empty_queue_keeps_what_the_key_has_been_through() {
    let evict = Command::Evict {
        seq: Seq(1),
        tag: tag(1),
        evidence: Evidence::Silent { epoch: 0 },
    };
    let (empty, _) = one(&queue(&[A]), evict);
    let (state, outcome) = one(&empty, Command::Create(create(2, B)));
    assert_eq!(outcome, created(2, false));
    assert_eq!(state.grant, Fence(LATER));
    assert!(state.unsynced);
    assert_eq!(state.ended, empty.ended);
}

#[test]
fn the_first_fence_is_above_what_the_data_table_holds() {
    let over_data = Create {
        past: Some(LATER + 9),
        ..create(1, A)
    };
    let (state, _) = one(&State::default(), Command::Create(over_data));
    assert_eq!(state.grant, Fence(LATER + 10));
}

#[test]
fn a_create_decided_again_finds_its_entry() {
    for n in [1, 2] {
        again(
            &queue(&[A, B]),
            Command::Create(create(n, A)),
            created(n, true),
        );
    }
}

#[test]
fn a_create_asked_through_another_replica_finds_its_entry() {
    let elsewhere = Create {
        home: C,
        created_at_ms: 9,
        past: Some(3),
        ..create(1, A)
    };
    again(&queue(&[A]), Command::Create(elsewhere), created(1, true));
}

#[test]
fn a_create_with_the_same_request_id_and_other_arguments_is_refused() {
    let others = [
        (
            "ttl",
            Create {
                liveness: Liveness::Own { ttl_ms: 999 },
                ..create(1, A)
            },
        ),
        (
            "session",
            Create {
                liveness: Liveness::Session(SessionId(Uuid::from_u128(7))),
                ..create(1, A)
            },
        ),
        (
            "owner",
            Create {
                owner: "job 8".into(),
                ..create(1, A)
            },
        ),
        (
            "request_id",
            Create {
                identity: "mallory".into(),
                ..create(1, A)
            },
        ),
    ];
    for (field, other) in others {
        refused(
            &queue(&[A]),
            Command::Create(other),
            Refusal::RequestMismatch { field },
        );
    }
}

#[test]
fn a_request_id_whose_entry_has_ended_makes_an_entry_at_the_end() {
    let release = Command::Release {
        seq: Seq(1),
        tag: tag(1),
        home: A,
        grant: Some(G1),
        synced: true,
        open_write: false,
    };
    let (state, _) = one(&queue(&[A, B]), release);
    let (state, outcome) = one(&state, Command::Create(create(1, A)));
    assert_eq!(outcome, created(3, false));
    assert_eq!(state.position(Seq(3)), Some(1));
}

#[test]
fn a_full_queue_refuses_but_still_finds() {
    let full = queue(&[A, A, A, A]);
    refused(
        &full,
        Command::Create(create(5, A)),
        Refusal::QueueFull { entries_max: 4 },
    );
    again(&full, Command::Create(create(4, A)), created(4, true));
}

#[test]
fn the_last_number_is_given_out_and_none_after_it() {
    let late = State {
        next: Seq::LAST,
        head: Seq::LAST,
        ..State::default()
    };
    let (state, outcome) = one(&late, Command::Create(create(1, A)));
    assert_eq!(outcome, created(Seq::LAST.0, false));
    refused(&state, Command::Create(create(2, A)), Refusal::SeqUsedUp);
}

#[test]
fn a_create_that_can_get_no_fence_is_refused() {
    let over_the_end = Create {
        past: Some(u64::MAX),
        ..create(1, A)
    };
    refused(
        &State::default(),
        Command::Create(over_the_end),
        Refusal::Fence(FenceError::UsedUp),
    );
}
