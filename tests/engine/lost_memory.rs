//! A call of a key to its store panics: what its home knew of it is gone, and it takes the key over from itself (H11).

use fermata::engine::EngineError;
use fermata::limits::Limits;

use super::faulty::Fault;
use super::replicas::create;
use super::shared::Service;
use super::world::{World, assert_unavailable, call, until};

/// A holder with three acknowledged writes, whose home has just lost its memory of them.
async fn forgetful() -> (World, fermata::lock::LockRef) {
    let world = World::with(Limits {
        // A read panics: it must reach the store.
        remembered_value_bytes_max: 0,
        ..Limits::default()
    })
    .await;
    let held = world.create("k").await.lock_ref;
    for value in ["one", "two", "three"] {
        world.put(&held, value).await.unwrap();
    }
    world.store.fail_reads([Fault::Panic]);
    let interrupted = world.get(&held).await;
    assert_unavailable(&interrupted);
    (world, held)
}

#[tokio::test]
async fn a_home_without_its_memory_takes_a_new_fence_before_it_serves_again() {
    let (world, held) = forgetful().await;
    let superseded = Err(EngineError::GrantSuperseded);
    assert_eq!(world.put(&held, "late").await, superseded);
    let again = world.acquire(&held).await;
    assert!(again.grant > held.grant);
    assert_eq!(world.get(&again).await, Ok(Some("three".to_owned())));
    world.put(&again, "four").await.unwrap();
    assert_eq!(world.get(&again).await, Ok(Some("four".to_owned())));
}

#[tokio::test]
async fn a_home_without_its_memory_does_not_serve_while_its_take_over_is_not_known_to_be_done() {
    for fault in [
        Fault::UnknownLost,
        Fault::UnknownDone,
        Fault::NotStarted,
        Fault::UnknownLate(std::time::Duration::from_millis(3)),
    ] {
        let (world, held) = forgetful().await;
        world.store.fail_swaps([fault.clone()]);
        let again = world.acquire_patiently(&held).await;
        assert!(again.grant > held.grant, "{fault:?}");
        world.put(&again, "four").await.unwrap();
        let read = world.get(&again).await;
        assert_eq!(read, Ok(Some("four".to_owned())), "{fault:?}");
    }
}

#[tokio::test]
async fn an_entry_that_expired_while_its_memory_was_lost_is_still_evicted() {
    let world = World::new().await;
    let gone = world.engine.create(call("k", 1_000)).await.unwrap();
    let next = world.create("k").await;
    // The call with the eviction in its hands crashes.
    world.store.fail_swaps([Fault::Panic]);
    until("the eviction was tried", || async {
        world.store.log().swaps.len() > 2
    })
    .await;
    let held = world.acquire(&next.lock_ref).await;
    world.put(&held, "next").await.unwrap();
    let ended = world.put(&gone.lock_ref, "late").await;
    assert!(matches!(ended, Err(EngineError::Ended(_))), "{ended:?}");
}

/// As long as a replica knows a key, its sweep takes it for served.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_was_lost_and_went_to_another_replica_is_known_no_longer() {
    let (service, a, b) = &Service::two().await;
    // Of a key without a row the value is read.
    service.replicas[0].link.set(|faults| faults.panics = true);
    let interrupted = a.create(call("k", 20_000)).await;
    assert_unavailable(&interrupted);
    create(b, call("k", 20_000)).await;
    until("it is forgotten", || async { a.counts().active_keys == 0 }).await;
}
