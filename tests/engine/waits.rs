//! Waiting for a turn, being called, and not coming (design §7, I5, I8).

use std::sync::Arc;
use std::time::Duration;

use fermata::engine::{EngineError, Standing, Watched};
use fermata::lock::{EndReason, Over};

use super::faulty::Fault;
use super::manual_clock::ManualClock;
use super::world::{World, call, call_of, until};

const TTL: Duration = Duration::from_secs(30);
const STEP: Duration = Duration::from_millis(200);

#[tokio::test]
async fn a_holder_that_came_but_cannot_be_let_in_yet_is_not_evicted_for_not_coming() {
    let clock = ManualClock::new();
    let world = World::at(Arc::clone(&clock) as _).await;
    let first = world.create("k").await.lock_ref;
    let second = world.create("k").await.lock_ref;
    world.put(&first, "v").await.unwrap();
    world.store.hold_reads(true);
    world
        .engine
        .force_release(&first, "op", "to see")
        .await
        .unwrap();
    let acquire = tokio::spawn({
        let (engine, second) = (world.engine.clone(), second.clone());
        async move { engine.acquire(&second, Duration::ZERO, false).await }
    });
    until("the sync reads", || async { world.store.log().reads > 1 }).await;
    clock.advance(3 * TTL).await;
    world.store.hold_reads(false);
    let held = acquire.await.unwrap().unwrap().lock_ref;
    assert_eq!(world.get(&held).await, Ok(Some("v".to_owned())));
}

#[tokio::test]
async fn an_eviction_for_not_coming_is_dropped_when_somebody_comes_before_it_takes_effect() {
    let clock = ManualClock::new();
    let world = World::at(Arc::clone(&clock) as _).await;
    let session = world.open_session(600_000).await;
    let first = world.create("k").await.lock_ref;
    let second = world.engine.create(call_of(session, "k")).await.unwrap();
    world.release(&first).await.unwrap();
    world.store.fail_swaps(vec![Fault::NotStarted; 10]);
    clock.advance(Duration::from_secs(600) - STEP).await;
    world.engine.renew(&second.lease).await.unwrap();
    clock.advance(2 * STEP).await;
    until("the eviction failed once", || async {
        world.store.log().swaps.len() > 3
    })
    .await;
    let held = world.acquire(&second.lock_ref).await;
    clock.advance(TTL).await;
    world.put(&held, "here").await.unwrap();
}
