//! How many calls a Pipeline begins, and which of them first.

use std::time::Duration;

use fermata_proto::pipeline_answer::Outcome;
use fermata_proto::pipeline_call::Call;
use fermata_proto::*;
use tokio::time::sleep;
use tonic::Code;
use tonic_types::StatusExt as _;

use super::{Pipe, get_ask, look_ask, put_ask, renew_ask, wait_ask};
use crate::ask;
use crate::lever::Mode;
use crate::world::{World, hold, refused};

/// A lock that is held, a Pipeline, and a store that hangs from now on.
async fn hanging() -> (World, CreateLockRefResponse, Pipe) {
    let world = World::new().await;
    let mut client = world.client().await;
    let held = hold(&mut client, "a").await;
    let pipe = Pipe::open(&mut client).await;
    world.store.send_replace(Mode::Hangs);
    (world, held, pipe)
}

/// Sends so many creates, in frames that are not too large.
fn creates(pipe: &mut Pipe, number: usize, read_value: bool) -> Vec<u64> {
    let create = |number| {
        Call::CreateLockRef(CreateLockRefRequest {
            read_value,
            ..ask::create(&format!("k{number}"))
        })
    };
    let creates: Vec<Call> = (0..number).map(create).collect();
    let frames = creates.chunks(256);
    frames.flat_map(|some| pipe.send(some.to_vec())).collect()
}

/// As many calls as may be in flight, none of which ends while the store hangs.
fn filled(pipe: &mut Pipe) -> Vec<u64> {
    creates(pipe, 960, false)
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
    let get = Call::CriticalGet(ask::critical_get(&held.lock_ref));
    pipe.made(get.clone()).await.unwrap();
    world.store.send_replace(Mode::Hangs);
    creates(&mut pipe, 512, true);
    // What it read before is remembered.
    pipe.made(get).await.unwrap();
    assert!(pipe.come.is_empty());
}

#[tokio::test]
async fn a_write_that_was_begun_and_is_given_up_is_of_unknown_outcome() {
    let (_world, held, mut pipe) = hanging().await;
    let put = pipe.send([put_ask(&held.lock_ref, "given up")])[0];
    // It was read after that.
    pipe.made(renew_ask(&held.session)).await.unwrap();
    pipe.give_up(vec![put]);
    let given_up = refused(pipe.outcome(put), Code::Cancelled, "GIVEN_UP").await;
    let info = given_up.get_details_error_info().unwrap();
    assert_eq!(info.metadata["write"], "unknown");
}

#[tokio::test]
async fn a_renewal_is_made_though_there_is_no_room_for_other_calls() {
    let (_world, held, mut pipe) = hanging().await;
    filled(&mut pipe);
    let behind = pipe.send([wait_ask(&held.lock_ref, 1)])[0];
    for _ in 0..3 {
        pipe.made(renew_ask(&held.session)).await.unwrap();
        pipe.made(look_ask(&held.lock_ref)).await.unwrap();
    }
    let renewed = pipe.made(Call::RenewLocks(ask::renew_locks(&[&held.lock_ref])));
    assert!(matches!(renewed.await.unwrap(), Outcome::RenewLocks(_)));
    assert!(!pipe.come.contains_key(&behind), "there is no room for it");
}

#[tokio::test]
async fn a_call_that_is_given_up_ends_and_makes_room() {
    let (world, held, mut pipe) = hanging().await;
    let hang = filled(&mut pipe);
    let behind = pipe.send([wait_ask(&held.lock_ref, 1), wait_ask(&held.lock_ref, 1)]);
    // One that was not begun, and an id that nobody knows.
    pipe.give_up(vec![behind[1], u64::MAX]);
    refused(pipe.outcome(behind[1]), Code::Cancelled, "GIVEN_UP").await;
    assert!(pipe.come.is_empty());
    pipe.give_up(hang[..900].to_vec());
    for id in &hang[..900] {
        refused(pipe.outcome(*id), Code::Cancelled, "GIVEN_UP").await;
    }
    pipe.outcome(behind[0]).await.unwrap();
    // The others go on.
    world.store.send_replace(Mode::Works);
    for id in &hang[900..] {
        let made = pipe.outcome(*id).await.unwrap();
        assert!(matches!(made, Outcome::CreateLockRef(_)));
    }
    assert!(pipe.come.is_empty());
}

#[tokio::test]
async fn a_call_that_was_not_begun_in_time_is_not_done() {
    let (world, held, mut pipe) = hanging().await;
    let hang = filled(&mut pipe);
    let given = Duration::from_millis(200);
    let put = put_ask(&held.lock_ref, "late");
    let wait = wait_ask(&held.lock_ref, 10);
    let late = pipe.send_within([put, wait], Some(given));
    // It was read before this one was.
    pipe.made(renew_ask(&held.session)).await.unwrap();
    sleep(given).await;
    world.store.send_replace(Mode::Works);
    for late in late {
        refused(pipe.outcome(late), Code::Unavailable, "MESSAGE_LATE").await;
    }
    for id in hang {
        pipe.outcome(id).await.unwrap();
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
    let missing = full.made(Call::ReleaseLock(ask::release("")));
    missing.await.unwrap_err();
    let late = other.send_within([get_ask("c")], Some(Duration::from_millis(200)))[0];
    refused(other.outcome(late), Code::Unavailable, "MESSAGE_LATE").await;
    assert!(full.come.is_empty());
}
