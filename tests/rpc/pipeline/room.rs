//! How many calls a Pipeline begins, and which of them first.

use std::time::Duration;

use fermata_proto::pipeline_answer::Outcome;
use fermata_proto::pipeline_call::Call;
use fermata_proto::*;
use tokio::time::sleep;
use tonic::Code;
use tonic_types::StatusExt as _;

use super::{Pipe, create_ask, get_ask, look_ask, outcome, put_ask, renew_ask};
use crate::lever::Mode;
use crate::world::{World, code_and_reason, hold};

/// A lock that is held, a Pipeline, and a store that hangs from now on.
async fn hanging() -> (World, CreateLockRefResponse, Pipe) {
    let world = World::new().await;
    let mut client = world.client().await;
    let held = hold(&mut client, "a").await;
    let pipe = Pipe::open(&mut client).await;
    world.store.send_replace(Mode::Hangs);
    (world, held, pipe)
}

/// As many calls as may be in flight, none of which ends while the store hangs.
async fn filled(pipe: &mut Pipe) -> Vec<u64> {
    let creates = (0..960).map(|number| {
        Call::CreateLockRef(CreateLockRefRequest {
            read_value: false,
            ..create_ask(&format!("k{number}"))
        })
    });
    let creates: Vec<Call> = creates.collect();
    creates
        .chunks(256)
        .flat_map(|some| pipe.send(some.to_vec()))
        .collect()
}

/// A call of a holder that is answered at once, and is no renewal.
fn wait_ask(lock_ref: &str) -> Call {
    Call::AcquireLock(AcquireLockRequest {
        lock_ref: lock_ref.to_owned(),
        wait: Some(prost_types::Duration {
            seconds: 1,
            nanos: 0,
        }),
        ..Default::default()
    })
}

#[tokio::test]
async fn reads_that_hang_hold_up_nothing_but_reads() {
    let (_world, held, mut pipe) = hanging().await;
    // More than may read at once, as each is counted.
    let reads: Vec<Call> = (0..768).map(|_| get_ask("b")).collect();
    for some in reads.chunks(256) {
        pipe.send(some.to_vec());
    }
    pipe.made(look_ask(&held.lock_ref)).await.unwrap();
    pipe.made(renew_ask(&held.session)).await.unwrap();
    assert!(pipe.come.is_empty());
}

#[tokio::test]
async fn a_holder_reads_though_creates_hang_that_would_read() {
    let world = World::new().await;
    let mut client = world.client().await;
    let held = hold(&mut client, "a").await;
    let mut pipe = Pipe::open(&mut client).await;
    let get = Call::CriticalGet(CriticalGetRequest {
        lock_ref: held.lock_ref.clone(),
        ..Default::default()
    });
    pipe.made(get.clone()).await.unwrap();
    world.store.send_replace(Mode::Hangs);
    let creates = (0..512).map(|number| {
        Call::CreateLockRef(CreateLockRefRequest {
            read_value: true,
            ..create_ask(&format!("k{number}"))
        })
    });
    let creates: Vec<Call> = creates.collect();
    for some in creates.chunks(256) {
        pipe.send(some.to_vec());
    }
    // What it read before is remembered.
    pipe.made(get).await.unwrap();
    assert!(pipe.come.is_empty());
}

#[tokio::test]
async fn a_write_that_was_begun_and_is_given_up_is_of_unknown_outcome() {
    let (_world, held, mut pipe) = hanging().await;
    let put = pipe.send([Call::CriticalPut(put_ask(&held.lock_ref, "given up"))])[0];
    // It was read after that.
    pipe.made(renew_ask(&held.session)).await.unwrap();
    pipe.give_up(vec![put]);
    let given_up = outcome(pipe.answer(put).await.unwrap()).unwrap_err();
    let info = given_up.get_details_error_info().unwrap();
    assert_eq!(info.reason, "GIVEN_UP");
    assert_eq!(
        info.metadata.get("write").map(String::as_str),
        Some("unknown")
    );
}

#[tokio::test]
async fn a_renewal_is_made_though_there_is_no_room_for_other_calls() {
    let (_world, held, mut pipe) = hanging().await;
    filled(&mut pipe).await;
    let behind = pipe.send([wait_ask(&held.lock_ref)])[0];
    for _ in 0..3 {
        pipe.made(renew_ask(&held.session)).await.unwrap();
        pipe.made(look_ask(&held.lock_ref)).await.unwrap();
    }
    let lock_refs = vec![held.lock_ref.clone()];
    let renewed = pipe.made(Call::RenewLocks(RenewLocksRequest { lock_refs }));
    assert!(matches!(renewed.await.unwrap(), Outcome::RenewLocks(_)));
    assert!(!pipe.come.contains_key(&behind), "there is no room for it");
}

#[tokio::test]
async fn a_call_that_is_given_up_ends_and_makes_room() {
    let (world, held, mut pipe) = hanging().await;
    let hang = filled(&mut pipe).await;
    let behind = pipe.send([wait_ask(&held.lock_ref), wait_ask(&held.lock_ref)]);
    // One that was not begun, and an id that nobody knows.
    pipe.give_up(vec![behind[1], u64::MAX]);
    let given_up = outcome(pipe.answer(behind[1]).await.unwrap()).unwrap_err();
    assert_eq!(
        code_and_reason(Err::<(), _>(given_up)),
        (Code::Cancelled, "GIVEN_UP".to_owned())
    );
    assert!(pipe.come.is_empty());
    pipe.give_up(hang[..900].to_vec());
    for id in &hang[..900] {
        let given_up = outcome(pipe.answer(*id).await.unwrap()).unwrap_err();
        assert_eq!(given_up.code(), Code::Cancelled);
    }
    outcome(pipe.answer(behind[0]).await.unwrap()).unwrap();
    // The others go on.
    world.store.send_replace(Mode::Works);
    for id in &hang[900..] {
        let made = outcome(pipe.answer(*id).await.unwrap()).unwrap();
        assert!(matches!(made, Outcome::CreateLockRef(_)));
    }
    assert!(pipe.come.is_empty());
}

#[tokio::test]
async fn a_call_that_was_not_begun_in_time_is_not_done() {
    let (world, held, mut pipe) = hanging().await;
    let hang = filled(&mut pipe).await;
    let given = Duration::from_millis(200);
    let put = Call::CriticalPut(put_ask(&held.lock_ref, "late"));
    let wait = Call::AcquireLock(AcquireLockRequest {
        wait: Some(prost_types::Duration {
            seconds: 10,
            nanos: 0,
        }),
        lock_ref: held.lock_ref.clone(),
        ..Default::default()
    });
    let late = pipe.send_within([put, wait], Some(given));
    // It was read before this one was.
    pipe.made(renew_ask(&held.session)).await.unwrap();
    sleep(given).await;
    world.store.send_replace(Mode::Works);
    for late in late {
        let refused = outcome(pipe.answer(late).await.unwrap()).unwrap_err();
        assert_eq!(
            code_and_reason(Err::<(), _>(refused)),
            (Code::Unavailable, "MESSAGE_LATE".to_owned())
        );
    }
    for id in hang {
        outcome(pipe.answer(id).await.unwrap()).unwrap();
    }
    let Ok(Outcome::Get(got)) = pipe.made(get_ask("a")).await else {
        panic!("it was well made");
    };
    assert!(!got.exists);
}

/// The turns to read belong to the connection: those of one stream are missing on the other.
#[tokio::test]
async fn a_read_without_a_turn_is_answered_within_its_timeout() {
    let world = World::new().await;
    let mut client = world.client().await;
    let mut full = Pipe::open(&mut client).await;
    let mut other = Pipe::open(&mut client).await;
    world.store.send_replace(Mode::Hangs);
    full.send(vec![get_ask("b"); 64]);
    // All are begun once a further call of their stream is answered.
    let missing = full.made(Call::ReleaseLock(ReleaseLockRequest::default()));
    missing.await.unwrap_err();
    let late = other.send_within([get_ask("c")], Some(Duration::from_millis(200)))[0];
    let refused = outcome(other.answer(late).await.unwrap()).unwrap_err();
    assert_eq!(
        code_and_reason(Err::<(), _>(refused)),
        (Code::Unavailable, "MESSAGE_LATE".to_owned())
    );
    assert!(full.come.is_empty());
}
