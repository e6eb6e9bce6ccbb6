//! Waiting for a turn, being called, and not coming (I5, I8).

use std::sync::{Arc, Mutex};
use std::time::Duration;

use fermata::engine::{Acquired, CreateCall, EngineError, LeaseId, LockStatus, WatchEvent};
use fermata::lock::{EndReason, EndedAs, LockRef, Seq};
use tokio::task::JoinHandle;

use super::world::{World, call, call_of, grant, lost, soon, until};

const TTL: Duration = Duration::from_secs(30);
const STEP: Duration = Duration::from_millis(200);

#[tokio::test]
async fn a_holder_that_came_but_cannot_be_granted_the_lock_yet_is_not_evicted_as_unclaimed() {
    let (world, clock) = World::by_hand().await;
    let (first, second) = world.create_two("k").await;
    world.put(&first, "v").await.unwrap();
    world.store.hold(|held| held.reads = true);
    world.force(&first, "to see").await;
    let acquire = tokio::spawn({
        let (engine, second) = (world.engine.clone(), second.clone());
        async move { engine.acquire(&second, Duration::ZERO, false).await }
    });
    until("the sync reads", || async { world.store.log().reads > 1 }).await;
    for _ in 0..4 {
        clock.advance(TTL / 2 + STEP).await;
        world.renew_entry(&second).await;
    }
    world.store.hold(|held| held.reads = false);
    let held = soon(acquire).await.unwrap().unwrap().lock_ref;
    assert_eq!(world.get(&held).await, Ok(Some("v".to_owned())));
}

/// An acquire that waits, in a task of its own.
fn wait_for(
    world: &World,
    lock_ref: &LockRef,
    wait: Duration,
) -> JoinHandle<Result<Acquired, EngineError>> {
    let (engine, lock_ref) = (world.engine.clone(), lock_ref.clone());
    tokio::spawn(async move { engine.acquire(&lock_ref, wait, false).await })
}

#[tokio::test]
async fn a_wait_that_runs_out_tells_the_position() {
    let (world, clock) = World::by_hand().await;
    world.create("k").await;
    world.create("k").await;
    let third = world.create("k").await.lock_ref;
    let tried = world.ask(&third).await;
    assert_eq!(tried.unwrap().status, LockStatus::Waiting { position: 2 });
    let waiting = wait_for(&world, &third, TTL / 2);
    clock.advance(TTL / 2 - STEP).await;
    assert!(!waiting.is_finished());
    clock.advance(2 * STEP).await;
    let status = soon(waiting).await.unwrap().unwrap().status;
    assert_eq!(status, LockStatus::Waiting { position: 2 });
}

#[tokio::test]
async fn a_wait_ends_when_the_one_ahead_is_released_forced_or_expires() {
    for end in ["release", "force", "expiry"] {
        let (world, clock) = World::by_hand().await;
        let first = world.engine.create(call("k", 10_000)).await;
        let first = first.unwrap().lock_ref;
        let second = world.create("k").await.lock_ref;
        let waiting = wait_for(&world, &second, TTL);
        match end {
            "release" => drop(world.release(&first).await.unwrap()),
            "force" => world.force(&first, "why").await,
            _ => {
                clock.advance(Duration::from_secs(10) - STEP).await;
                assert!(!waiting.is_finished());
                clock.advance(2 * STEP).await;
            }
        }
        let held = soon(waiting).await.unwrap().unwrap();
        assert!(matches!(held.status, LockStatus::Held { .. }), "{end}");
    }
}

#[tokio::test]
async fn two_hundred_waiters_get_their_turn_in_order() {
    let world = World::new().await;
    let first = world.create("k").await.lock_ref;
    let order = Arc::new(Mutex::new(Vec::new()));
    let mut waiting = Vec::new();
    for _ in 0..200 {
        let lock_ref = world.create("k").await.lock_ref;
        let (engine, order) = (world.engine.clone(), Arc::clone(&order));
        waiting.push(tokio::spawn(async move {
            let held = engine.acquire(&lock_ref, TTL, false).await.unwrap();
            order.lock().unwrap().push(grant(&held.status));
            engine.release(&held.lock_ref, None, 0).await.unwrap();
            held.lock_ref.seq
        }));
    }
    world.release(&first).await.unwrap();
    for (n, turn) in waiting.into_iter().enumerate() {
        assert_eq!(turn.await.unwrap(), Seq(first.seq.0 + 1 + n as u64));
    }
    let order = order.lock().unwrap();
    assert!(
        order.is_sorted_by(|a, b| a < b),
        "fences rise in the order of the queue"
    );
    assert_eq!(order.len(), 200);
}

#[tokio::test]
async fn a_wait_is_answered_after_two_thirds_of_the_ttl_and_renews_only_when_it_is_asked_for() {
    const TTL: Duration = Duration::from_secs(10);
    let (world, clock) = World::by_hand().await;
    let session = world.open_session(3_600_000).await;
    let holder = world.create_in(session, "k").await;
    let waiter = world.engine.create(call("k", 10_000)).await.unwrap();
    let waiter = waiter.lock_ref;
    let long = Duration::from_secs(1_000);
    let waiting = wait_for(&world, &waiter, long);
    clock.advance(TTL * 2 / 3 - STEP).await;
    assert!(!waiting.is_finished());
    clock.advance(2 * STEP).await;
    let answered = soon(waiting).await.unwrap().unwrap();
    assert_eq!(answered.status, LockStatus::Waiting { position: 1 });
    // Its client asks again, and freezes; its connection stays open.
    let waiting = wait_for(&world, &waiter, long);
    clock.advance(TTL * 2 / 3 + STEP).await;
    let answered = soon(waiting).await.unwrap().unwrap();
    assert_eq!(answered.status, LockStatus::Waiting { position: 1 });
    clock.advance(TTL / 3).await;
    let late = world.ask(&waiter).await;
    let expired = lost(EndReason::Expired);
    assert_eq!(late.unwrap_err(), expired);
    world.put(&holder, "still here").await.unwrap();
}

#[tokio::test]
async fn an_entry_that_is_given_up_leaves_the_queue() {
    let world = World::new().await;
    let (first, second) = world.create_two("k").await;
    let third = world.create("k").await.lock_ref;
    let waiting = wait_for(&world, &second, TTL);
    tokio::task::yield_now().await;
    assert_eq!(world.release(&second).await, Ok(false));
    // By its own client.
    let ended = soon(waiting).await.unwrap();
    assert_eq!(ended.unwrap_err(), EngineError::Ended(EndedAs::Released));
    let again = world.engine.acquire(&second, TTL, false).await;
    assert_eq!(again.unwrap_err(), EngineError::Ended(EndedAs::Released));
    let moved = world.ask(&third).await.unwrap();
    assert_eq!(moved.status, LockStatus::Waiting { position: 1 });
    world.release(&first).await.unwrap();
    world.acquire(&third).await;
}

fn waiting(position: usize, estimate: Option<u64>) -> WatchEvent {
    WatchEvent::Waiting {
        position,
        estimate: estimate.map(Duration::from_secs),
    }
}

#[tokio::test]
async fn a_watch_guesses_the_wait_by_how_fast_the_queue_moved() {
    let (world, clock) = World::by_hand().await;
    let mut queue = Vec::new();
    for _ in 0..5 {
        queue.push(world.create("k").await.lock_ref);
    }
    let mut watch = world.engine.watch(&queue[4]).await.unwrap();
    assert_eq!(watch.next().await, Some(waiting(4, None)));
    // From when it is looked at, three seconds to the first turn, and five to the next.
    for (holder, seconds, position, guess) in [(0, 3, 3, 9), (1, 5, 2, 8)] {
        clock.advance(Duration::from_secs(seconds)).await;
        for entry in &queue[holder..] {
            world.renew_entry(entry).await;
        }
        let held = world.acquire(&queue[holder]).await;
        world.release(&held).await.unwrap();
        assert_eq!(watch.next().await, Some(waiting(position, Some(guess))));
    }
    // It did not move for a minute: nothing is guessed.
    world.acquire(&queue[2]).await;
    for _ in 0..14 {
        clock.advance(Duration::from_secs(5)).await;
        for entry in &queue[2..] {
            world.renew_entry(entry).await;
        }
    }
    let mut late = world.engine.watch(&queue[4]).await.unwrap();
    assert_eq!(late.next().await, Some(waiting(2, None)));
}

#[tokio::test]
async fn a_watch_tells_positions_then_held_then_how_it_was_lost() {
    let world = World::new().await;
    let (first, second) = world.create_two("k").await;
    let third = world.create("k").await.lock_ref;
    let mut watch = world.engine.watch(&third).await.unwrap();
    assert_eq!(watch.next().await, Some(waiting(2, None)));
    world.release(&second).await.unwrap();
    assert_eq!(watch.next().await, Some(waiting(1, None)));
    world.force(&first, "stuck").await;
    let held = watch.next().await;
    let Some(WatchEvent::Held { grant }) = held else {
        panic!("{held:?}");
    };
    let granted = LockRef {
        grant: Some(grant),
        ..third.clone()
    };
    world.put(&granted, "v").await.unwrap();
    world.force(&third, "stuck").await;
    let (by, why) = ("op".into(), "stuck".into());
    let forced = EndedAs::Lost(EndReason::Forced { by, why });
    assert_eq!(watch.next().await, Some(WatchEvent::Lost(forced)));
    assert_eq!(watch.next().await, None);
}

#[tokio::test]
async fn a_head_that_nobody_claimed_is_evicted_after_one_ttl_though_its_session_lives() {
    let (world, clock) = World::by_hand().await;
    let session = world.open_session(10_000).await;
    let first = world.create("k").await.lock_ref;
    let forgotten = world.engine.create(call_of(session, "k")).await.unwrap();
    let next = world.create("k").await.lock_ref;
    let waiting = wait_for(&world, &next, Duration::from_secs(1_000));
    world.release(&first).await.unwrap();
    let renew = || world.engine.renew(&forgotten.lease);
    for _ in 0..2 {
        clock.advance(Duration::from_secs(5) - STEP).await;
        renew().await.unwrap();
    }
    assert!(!waiting.is_finished());
    clock.advance(3 * STEP).await;
    soon(waiting).await.unwrap().unwrap();
    let late = world.ask(&forgotten.lock_ref).await;
    let unclaimed = lost(EndReason::Unclaimed);
    assert_eq!(late.unwrap_err(), unclaimed);
    renew().await.unwrap();
}

/// What was told to a watch that nobody listened to is no claim.
#[tokio::test]
async fn a_head_whose_watch_broke_before_it_was_told_is_evicted_as_unclaimed() {
    let (world, clock) = World::by_hand().await;
    let session = world.open_session(10_000).await;
    let first = world.create("k").await.lock_ref;
    let watched = world.engine.create(call_of(session, "k")).await.unwrap();
    let mut watch = world.engine.watch(&watched.lock_ref).await.unwrap();
    assert_eq!(watch.next().await, Some(waiting(1, None)));
    world.release(&first).await.unwrap();
    until("the second one was granted the key", || async {
        let state = world.state("k").await;
        state
            .holder()
            .is_some_and(|holder| holder.seq == watched.lock_ref.seq)
    })
    .await;
    drop(watch);
    for _ in 0..3 {
        clock.advance(Duration::from_secs(4)).await;
        world.engine.renew(&watched.lease).await.unwrap();
    }
    world.until_free("k").await;
    let late = world.ask(&watched.lock_ref);
    let unclaimed = lost(EndReason::Unclaimed);
    assert_eq!(late.await.unwrap_err(), unclaimed);
}

#[tokio::test]
async fn a_head_that_was_told_is_not_evicted_as_unclaimed() {
    let (world, clock) = World::by_hand().await;
    let session = world.open_session(10_000).await;
    let answered = world.engine.create(call_of(session, "k")).await.unwrap();
    for _ in 0..10 {
        clock.advance(Duration::from_secs(5)).await;
        world.engine.renew(&answered.lease).await.unwrap();
    }
    world.put(&answered.lock_ref, "here").await.unwrap();
}

#[tokio::test]
async fn an_answer_whose_caller_was_gone_is_no_claim() {
    let (world, clock) = World::by_hand().await;
    let session = world.open_session(10_000).await;
    // The create makes the holder, but its caller goes away while that is committed.
    world.store.hold(|held| held.swaps = true);
    let create = call_of(session, "k");
    let gone = tokio::time::timeout(STEP, world.engine.create(create)).await;
    assert!(gone.is_err());
    world.store.hold(|held| held.swaps = false);
    until("it is the holder", || async {
        !world.state("k").await.entries.is_empty()
    })
    .await;
    for _ in 0..3 {
        clock.advance(Duration::from_secs(4)).await;
        world.renew(session).await.unwrap();
    }
    world.until_free("k").await;
}

#[tokio::test]
async fn an_answer_that_comes_with_the_value_to_a_caller_who_is_gone_is_no_claim() {
    let (world, clock) = World::by_hand().await;
    let session = world.open_session(10_000).await;
    // So that the value need not be read for its timestamp.
    let first = world.create("k").await.lock_ref;
    world.release(&first).await.unwrap();
    world.store.hold(|held| held.reads = true);
    let reads = world.store.log().reads;
    let gone = tokio::spawn({
        let engine = world.engine.clone();
        let create = CreateCall {
            read_value: true,
            ..call_of(session, "k")
        };
        async move { engine.create(create).await }
    });
    let is_read = || async { world.store.log().reads > reads };
    until("the value is read", is_read).await;
    gone.abort();
    assert!(gone.await.unwrap_err().is_cancelled());
    world.store.hold(|held| held.reads = false);
    until("nobody claimed it", || async {
        clock.advance(Duration::from_secs(4)).await;
        let lease = LeaseId::Session(session);
        world.engine.renew(&lease).await.unwrap();
        world.state("k").await.entries.is_empty()
    })
    .await;
}
