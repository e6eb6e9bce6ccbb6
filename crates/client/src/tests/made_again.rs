//! An entry that was lost with the replica that served its key is made again while it waits, and only then (H7).

use std::time::Duration;

use tokio::time::{Instant, timeout};
use tonic::Code;

use super::fake::{Act, refusal};
use super::{World, away, limited, secs};
use crate::{LockError, LostReason, QueueEntry, WaitError};

/// Somebody holds the key, and this waits for it.
async fn waiting(world: &World) -> (String, QueueEntry) {
    let holder = world.fake.occupy();
    (holder, world.client.enqueue("k").await.unwrap())
}

fn lose(world: &World, lock_ref: &str) {
    world.fake.end(lock_ref, "NO_LONGER_KEPT", "");
}

#[tokio::test(start_paused = true)]
async fn an_entry_that_was_lost_while_it_waited_is_made_again_by_the_same_request_id() {
    let world = World::new();
    let (holder, mut entry) = waiting(&world).await;
    let lost = entry.lock_ref().to_owned();
    let (guard, ()) = tokio::join!(entry.wait(None), async {
        tokio::time::sleep(secs(1)).await;
        lose(&world, &lost);
        tokio::time::sleep(secs(1)).await;
        world.fake.end(&holder, "RELEASED", "");
    });
    let guard = guard.unwrap();
    assert_ne!(guard.lock_ref(), lost);
    let ids = world.fake.calls("create");
    assert_eq!((ids.len(), &ids[0]), (2, &ids[1]));
    guard.release().await.unwrap();
    drop(entry);
    world.until_nobody_waits().await;
}

#[tokio::test(start_paused = true)]
async fn an_entry_that_was_answered_held_is_not_made_again() {
    let world = World::new();
    world.fake.state().memory = Some(secs(4));
    let mut entry = world.client.enqueue("k").await.unwrap();
    assert_eq!(entry.position(), 0);
    tokio::time::sleep(secs(5)).await;
    lose(&world, entry.lock_ref());
    let waited = entry.wait(None).await;
    let Err(WaitError::Lost(lost)) = waited else {
        panic!("{waited:?}");
    };
    assert_eq!(lost.reason, LostReason::NoLongerKept);
    assert!(matches!(entry.wait(None).await, Err(WaitError::Lost(_))));
    assert_eq!(world.fake.count("create"), 1);
}

#[tokio::test(start_paused = true)]
async fn what_a_wait_made_again_that_was_dropped_is_given_back_and_the_next_wait_goes_on() {
    let world = World::new();
    let (holder, mut entry) = waiting(&world).await;
    lose(&world, entry.lock_ref());
    world.fake.next("create", Act::Late(secs(3)));
    // What gives it back is slow.
    world.fake.next("create", Act::Late(secs(1)));
    let dropped = timeout(secs(1), entry.wait(None)).await;
    assert!(dropped.is_err());
    assert_eq!(world.fake.state().queue.len(), 2);
    let (guard, ()) = tokio::join!(entry.wait(None), async {
        tokio::time::sleep(secs(2)).await;
        world.fake.end(&holder, "RELEASED", "");
    });
    guard.unwrap().release().await.unwrap();
    drop(entry);
    world.until_nobody_waits().await;
}

#[tokio::test(start_paused = true)]
async fn an_entry_that_is_not_made_again_in_time_is_made_by_the_next_wait() {
    let world = World::new();
    let (holder, mut entry) = waiting(&world).await;
    lose(&world, entry.lock_ref());
    world.fake.always("create", away());
    let start = Instant::now();
    let waited = entry.wait(Some(secs(3))).await;
    assert_eq!(waited.unwrap_err(), WaitError::TimedOut { position: 1 });
    assert!(start.elapsed() <= secs(4), "{:?}", start.elapsed());
    world.fake.state().always.clear();
    world.fake.end(&holder, "RELEASED", "");
    let guard = entry.wait(Some(secs(3))).await.unwrap();
    guard.release().await.unwrap();
    drop(entry);
    world.until_nobody_waits().await;
}

#[tokio::test(start_paused = true)]
async fn an_entry_that_was_lost_is_not_there_to_be_given_up() {
    let world = World::new();
    let (_holder, mut entry) = waiting(&world).await;
    lose(&world, entry.lock_ref());
    let waited = entry.wait(Some(Duration::ZERO)).await;
    assert_eq!(waited.unwrap_err(), WaitError::TimedOut { position: 1 });
    assert!(entry.give_up().await.unwrap());
    assert_eq!(world.fake.count("release"), 0);
    assert_eq!(world.fake.count("create"), 1);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_made_again_in_a_session_that_ends() {
    let world = World::new();
    world.fake.occupy();
    let session = world.session().await;
    let mut entry = session.enqueue("k").await.unwrap();
    lose(&world, entry.lock_ref());
    world.fake.always("create", Act::Hang);
    let start = Instant::now();
    let (waited, closed) = tokio::join!(entry.wait(None), async {
        tokio::time::sleep(secs(2)).await;
        session.close().await
    });
    assert!(matches!(waited, Err(WaitError::Lost(_))), "{waited:?}");
    assert!(start.elapsed() <= secs(3), "{:?}", start.elapsed());
    closed.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_server_that_loses_every_entry_is_not_asked_in_a_busy_loop() {
    let world = World::new();
    world.fake.occupy();
    let lost = refusal(Code::FailedPrecondition, "NO_LONGER_KEPT", "");
    world.fake.always("acquire", Act::Refuse(lost));
    let waited = timeout(secs(60), world.client.lock("k")).await;
    assert!(waited.is_err());
    let made = world.fake.count("create");
    assert!((30..80).contains(&made), "{made}");
}

#[tokio::test(start_paused = true)]
async fn a_create_that_may_have_been_done_before_it_was_refused_is_given_back() {
    let world = World::new();
    world.fake.next("create", Act::LoseAnswer);
    world.fake.next("create", limited());
    let refused = world.client.lock("k").await;
    assert!(matches!(refused, Err(LockError::Create(_))), "{refused:?}");
    world.until_nobody_waits().await;
}
