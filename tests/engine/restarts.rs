//! A start after which there is much to take over: what is asked for comes first.

use std::time::Duration;

use fermata::engine::{EngineError, LeaseId};
use fermata::limits::Limits;
use fermata::lock::{EndReason, LockRef, SessionId};

use super::world::{World, call, lost, session_call, soon};

const KEYS: usize = 100;

/// Killed and started, while keys that nobody asks for are not found.
async fn restarted(world: World) -> World {
    let limits = Limits::default();
    let world = world
        .restart_at_once(limits, |store| store.hold(|held| held.listings = true))
        .await;
    assert_eq!(world.engine.counts().active_keys, 0);
    world
}

/// The others are found as well.
async fn let_go(world: &World) {
    world.store.hold(|held| held.listings = false);
    soon(world.engine.recovered()).await;
}

async fn renew(world: &World, session: SessionId) {
    let lease = LeaseId::Session(session);
    soon(world.engine.renew(&lease)).await.unwrap();
}

async fn many_in(world: &World, session: SessionId) -> Vec<LockRef> {
    let mut held = Vec::new();
    for number in 0..KEYS {
        held.push(world.create_in(session, &format!("k{number}")).await);
    }
    held
}

#[tokio::test]
async fn a_start_takes_over_what_is_asked_for_and_then_the_rest() {
    let world = World::new().await;
    let session = world.open_session(60_000).await;
    let held = many_in(&world, session).await;
    let row = world.session_row(session).await.unwrap();
    let world = restarted(world).await;

    // Of a session nothing is written.
    renew(&world, session).await;
    assert_eq!(world.session_row(session).await, Some(row));
    assert!(world.store.log().swaps.is_empty());
    let seventh = world.acquire(&held[7]).await;
    world.put(&seventh, "7").await.unwrap();
    assert_eq!(world.get(&seventh).await.unwrap().unwrap(), "7");
    assert_eq!(world.engine.counts().active_keys, 1);

    let_go(&world).await;
    assert_eq!(world.engine.counts().active_keys, KEYS);
    // Who held a key before was granted nothing, and did not wait.
    let did = world.engine.activity(10).unwrap();
    assert_eq!((did.grants.at_once, did.last_minute.count), (0, 0));
    assert_eq!(did.counts.durable_grants, 0);
    for lock_ref in &held {
        let lock_ref = world.acquire(lock_ref).await;
        world.put(&lock_ref, "again").await.unwrap();
    }
}

#[tokio::test]
async fn a_session_that_is_closed_ends_what_was_not_taken_over_yet() {
    let world = World::new().await;
    let session = world.open_session(60_000).await;
    let held = many_in(&world, session).await;
    let world = restarted(world).await;
    soon(world.engine.close_session(session)).await.unwrap();

    // One of that name would be lived by.
    let reopened = soon(world.engine.open_session(session_call(session.0, 60_000))).await;
    assert_eq!(reopened.unwrap_err(), EngineError::SessionEnded);
    let next = world.create("k7").await.lock_ref;
    let next = world.acquire(&next).await;
    world.put(&next, "mine").await.unwrap();
    let ended = lost(EndReason::SessionClosed);
    assert_eq!(world.put(&held[7], "late").await, Err(ended));

    let_go(&world).await;
    for number in (0..KEYS).filter(|number| *number != 7) {
        world.until_free(&format!("k{number}")).await;
    }
}

#[tokio::test]
async fn a_holder_that_is_gone_and_that_nobody_asks_for_ends_all_the_same() {
    let world = World::new().await;
    soon(world.engine.create(call("gone", 1_000)))
        .await
        .unwrap();
    let world = restarted(world).await;
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    assert_eq!(world.state("gone").await.entries.len(), 1);
    let_go(&world).await;
    world.until_free("gone").await;
}
