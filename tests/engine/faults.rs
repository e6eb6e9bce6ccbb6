//! A store that fails: outcomes that are not known, other writers, and nothing at all (I6).

use std::sync::Arc;
use std::time::Duration;

use fermata::clock::{Clock, SystemClock};
use fermata::engine::{CreateCall, EngineError};
use fermata::key::Entry;
use fermata::lock::{Fence, LockRef};
use fermata::store::{Cell, DataStore as _, Written};

use super::faulty::Fault;
use super::world::{World, assert_unavailable, call, key, soon, until};

/// The outcomes that a change may have without being simply done.
fn outcomes() -> Vec<Fault> {
    vec![
        Fault::NotStarted,
        Fault::UnknownDone,
        Fault::UnknownLost,
        Fault::UnknownLate(Duration::from_millis(3)),
        Fault::Slow(Duration::from_millis(3)),
    ]
}

async fn create_patiently(world: &World, create: CreateCall) -> LockRef {
    loop {
        match world.engine.create(create.clone()).await {
            Ok(created) => break created.lock_ref,
            Err(EngineError::Unavailable(_)) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

async fn release_patiently(world: &World, lock_ref: &LockRef) {
    loop {
        match world.release(lock_ref).await {
            Ok(_) => break,
            Err(EngineError::Unavailable(_)) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

#[tokio::test]
async fn one_call_has_one_entry_whatever_became_of_its_change() {
    for first in outcomes() {
        for second in outcomes() {
            let world = World::new().await;
            world.create("k").await;
            world.store.fail_swaps([first.clone(), second.clone()]);
            let create = call("k", 30_000);
            let entry = create_patiently(&world, create.clone()).await;
            let again = world.engine.create(create.clone()).await.unwrap();
            assert!(again.existed);
            assert_eq!(again.lock_ref, entry);
            tokio::time::sleep(Duration::from_millis(5)).await;
            let state = world.state("k").await;
            let same = |e: &&Arc<Entry>| e.tag == create.tag;
            assert_eq!(
                state.entries.iter().filter(same).count(),
                1,
                "{first:?}, {second:?}"
            );
        }
    }
}

#[tokio::test]
async fn operators_see_how_many_commits_were_in_doubt() {
    let world = World::new().await;
    world.create("k").await;
    let in_doubt = || world.engine.activity(1).unwrap().counts.unknown;
    assert_eq!(in_doubt(), 0);
    let unknown = [Fault::UnknownLost, Fault::UnknownDone];
    world.store.fail_swaps(unknown);
    create_patiently(&world, call("k", 30_000)).await;
    assert_eq!(in_doubt(), 2);
}

#[tokio::test]
async fn what_is_in_flight_is_settled_before_an_unknown_outcome_is_resolved() {
    let world = World::new().await;
    let held = world.create("k").await.lock_ref;
    world.put(&held, "v").await.unwrap();
    let before = world.state("k").await;
    world.store.forget_log();
    // After an unknown outcome the key is read again.
    world
        .store
        .fail_swaps([Fault::UnknownLost, Fault::UnknownDone]);
    world.store.tear_loads(2);
    world.create("k").await;
    let log = world.store.log();
    assert_eq!(log.swaps.len(), 2);
    for swap in &log.swaps {
        assert_eq!((swap.grant, swap.fence), (before.grant, before.fence));
    }
}

#[tokio::test]
async fn a_release_of_unknown_outcome_is_resolved_and_counts_once() {
    for first in outcomes() {
        for second in outcomes() {
            let world = World::new().await;
            let (held, next) = world.create_two("k").await;
            world.put(&held, "v").await.unwrap();
            world.store.fail_swaps([first.clone(), second.clone()]);
            release_patiently(&world, &held).await;
            let next = world.acquire_patiently(&next).await;
            assert_eq!(
                world.get(&next).await,
                Ok(Some("v".to_owned())),
                "{first:?}, {second:?}"
            );
            assert_eq!(world.release(&held).await, Ok(true));
            world.put(&next, "w").await.unwrap();
        }
    }
}

#[tokio::test]
async fn callers_learn_that_the_state_cannot_be_read_and_may_repeat() {
    let world = World::new().await;
    world.store.fail_loads(vec![Fault::NotStarted; 3]);
    for _ in 0..3 {
        let failed = world.engine.create(call("k", 30_000)).await;
        assert_unavailable(&failed);
    }
    world.create("k").await;
}

#[tokio::test]
async fn a_put_of_unknown_outcome_makes_the_next_holder_sync_at_the_first_timestamp() {
    for fault in [
        Fault::UnknownDone,
        Fault::UnknownLost,
        Fault::UnknownLate(Duration::from_millis(40)),
    ] {
        let world = World::new().await;
        let (held, next) = world.create_two("k").await;
        world.put(&held, "sure").await.unwrap();
        world.store.fail_writes([fault.clone()]);
        let unknown = world.put(&held, "maybe").await;
        assert!(
            matches!(unknown, Err(EngineError::WriteUnknown(_))),
            "{unknown:?}"
        );
        world.release(&held).await.unwrap();
        assert!(world.state("k").await.unsynced, "{fault:?}");
        let next = world.acquire(&next).await;
        let grant = next.grant.unwrap();
        let rewrites = world.store.writes_from(grant);
        assert_eq!(rewrites.len(), 1, "{fault:?}");
        assert_eq!(rewrites[0].timestamp, grant.0);
        let value = world.get(&next).await.unwrap();
        tokio::time::sleep(Duration::from_millis(60)).await;
        // A write that lands late does not show any more.
        assert_eq!(world.get(&next).await, Ok(value));
        assert!(world.state("k").await.unsynced, "until a clean release");
        world.release(&next).await.unwrap();
        assert!(!world.state("k").await.unsynced);
    }
}

#[tokio::test]
async fn a_put_that_is_given_up_makes_the_next_holder_sync() {
    let world = World::new().await;
    let held = world.create("k").await.lock_ref;
    world.store.hold(|held| held.writes = true);
    let given_up = tokio::time::timeout(Duration::from_millis(20), world.put(&held, "maybe")).await;
    assert!(given_up.is_err());
    world.release(&held).await.unwrap();
    assert!(world.state("k").await.unsynced);
}

/// A value that was written with a timestamp an hour ahead of the clock.
async fn ahead(world: &World, id: &str) -> u64 {
    world.history.leave_unchecked();
    let timestamp = SystemClock.wall_us() + 3_600_000_000;
    let cell = Cell {
        value: Some("ahead".into()),
        timestamp,
    };
    let store = world.store.real().unwrap();
    assert!(matches!(
        store.write_data(&key(id), cell).await,
        Written::Done
    ));
    timestamp
}

#[tokio::test]
async fn a_value_from_ahead_of_the_clock_is_met_by_the_first_create() {
    let world = World::new().await;
    let timestamp = ahead(&world, "k").await;
    let held = world.create("k").await.lock_ref;
    assert!(held.grant > Some(Fence(timestamp)));
    assert_eq!(world.get(&held).await, Ok(Some("ahead".to_owned())));
    world.put(&held, "over it").await.unwrap();
    assert_eq!(world.get(&held).await, Ok(Some("over it".to_owned())));
}

#[tokio::test]
async fn a_value_from_ahead_of_the_clock_is_met_by_a_read_and_written_over() {
    let world = World::new().await;
    let held = world.create("k").await.lock_ref;
    ahead(&world, "k").await;
    assert_eq!(world.get(&held).await, Ok(Some("ahead".to_owned())));
    world.put(&held, "over it").await.unwrap();
    assert_eq!(world.get(&held).await, Ok(Some("over it".to_owned())));
    world.release(&held).await.unwrap();
    let next = world.create("k").await.lock_ref;
    assert!(next.grant > held.grant);
    world.put(&next, "and again").await.unwrap();
    assert_eq!(world.get(&next).await, Ok(Some("and again".to_owned())));
}

#[tokio::test]
async fn timestamps_of_one_holder_rise_through_every_extend() {
    let world = World::new().await;
    let held = world.create("k").await.lock_ref;
    for n in 0..200 {
        if n % 50 == 17 {
            world.store.fail_swaps([Fault::UnknownDone]);
        }
        world.put(&held, &n.to_string()).await.unwrap();
    }
    let writes = world.store.writes_from(held.grant.unwrap());
    assert_eq!(writes.len(), 200);
    assert!(writes.is_sorted_by(|a, b| a.timestamp < b.timestamp));
    assert_eq!(world.get(&held).await, Ok(Some("199".to_owned())));
}

#[tokio::test]
async fn releases_that_are_repeated_in_an_outage_are_kept_once() {
    let world = World::new().await;
    let held = world.create("k").await.lock_ref;
    world.store.fail_swaps(vec![Fault::NotStarted; 6]);
    let releases = (0..40).map(|_| world.release(&held));
    futures_util::future::join_all(releases).await;
    world.until_free("k").await;
    // The create and one release: the others were not kept. (It is counted a moment after the store has it.)
    let swaps = || world.engine.counts().swaps;
    until("the release is counted", || async { swaps() >= 2 }).await;
    assert_eq!(swaps(), 2);
}

#[tokio::test]
async fn a_store_call_that_panics_costs_what_was_known_of_its_key_and_not_the_key() {
    let world = World::new().await;
    let session = world.open_session(30_000).await;
    let held = world.create_in(session, "k").await;
    world.put(&held, "v").await.unwrap();
    world.store.fail_swaps([Fault::Panic]);
    let lost = soon(world.engine.create(call("k", 30_000))).await;
    assert_unavailable(&lost);
    let again = world.acquire(&held).await;
    assert!(again.grant > held.grant);
    assert_eq!(world.get(&again).await, Ok(Some("v".to_owned())));
    world.release(&again).await.unwrap();
    // Nothing is left that lives by it.
    assert_eq!(soon(world.engine.close_session(session)).await, Ok(false));
}
