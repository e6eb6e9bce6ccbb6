//! What a home remembers of the value of a busy key, and when it must read it again.

use std::time::Duration;

use fermata::engine::LockStatus;
use fermata::limits::Limits;
use fermata::lock::Fence;
use fermata::store::{Cell, DataStore as _};

use super::replicas::{create, get, write};
use super::shared::Service;
use super::world::{World, call, key, put, soon, until};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_another_replica_wrote_meanwhile_is_read() {
    let (service, a, b) = &Service::two().await;
    let id = key("k");
    let held = create(a, call("k", 20_000)).await.lock_ref;
    write(a, &held, "of a").await.unwrap();
    a.release(&held, None, 0).await.unwrap();
    // They cannot call each other, so the key goes through the store to whoever wants it.
    service.wires.cut("replica-0");
    service.wires.cut("replica-1");
    b.take_over(&id, a.replica()).await.unwrap();
    let held = create(b, call("k", 20_000)).await.lock_ref;
    assert_eq!(get(b, &held).await, Ok(Some("of a".to_owned())));
    write(b, &held, "of b").await.unwrap();
    b.release(&held, None, 0).await.unwrap();
    a.take_over(&id, b.replica()).await.unwrap();
    let held = create(a, call("k", 20_000)).await.lock_ref;
    assert_eq!(get(a, &held).await, Ok(Some("of b".to_owned())));
}

#[tokio::test]
async fn a_read_beside_a_write_is_not_what_the_write_left() {
    let world = World::new().await;
    let held = world.create("k").await.lock_ref;
    // Reads now, and says so after the write.
    world.store.hold(|held| held.answers = true);
    let engine = world.engine.clone();
    let reading = tokio::spawn({
        let held = held.clone();
        async move { engine.critical_get(&held, 0).await }
    });
    until("the value was read", || async {
        world.store.log().answers_held == 1
    })
    .await;
    world.put(&held, "written").await.unwrap();
    world.store.hold(|held| held.answers = false);
    let beside = soon(reading).await.unwrap().unwrap();
    assert_eq!(beside.value.bytes, None);
    assert_eq!(world.get(&held).await, Ok(Some("written".to_owned())));
}

#[tokio::test]
async fn after_a_forced_end_the_value_is_read() {
    let world = World::new().await;
    world.history.leave_unchecked();
    let held = world.create("k").await.lock_ref;
    world.put(&held, "ours").await.unwrap();
    let id = key("k");
    let state = world.state("k").await;
    assert!(state.grant > Fence::NONE);
    let theirs = Cell {
        value: Some("theirs".into()),
        timestamp: state.grant.0 + 2,
    };
    // A late write of an earlier life, which the sync of a new grant must take in.
    world.store.real().unwrap().write_data(&id, theirs).await;
    world.force(&held, "a test").await;
    let next = world.create("k").await.lock_ref;
    let next = world.acquire(&next).await;
    assert_eq!(world.get(&next).await, Ok(Some("theirs".to_owned())));
}

#[tokio::test]
async fn so_many_bytes_of_values_are_remembered_and_those_that_were_used_lately() {
    let world = World::with(Limits {
        remembered_bytes_max: 20 * 3_600,
        ..Limits::default()
    })
    .await;
    let mut held = Vec::new();
    for n in 0..100 {
        let one = world.create(&format!("k{n}")).await.lock_ref;
        world.put(&one, &"x".repeat(1_000)).await.unwrap();
        held.push(one);
    }
    world.store.forget_log();
    for lately in held.iter().rev().take(10).rev() {
        world.get(lately).await.unwrap();
    }
    assert_eq!(world.store.log().reads, 0);
    for before in held.iter().take(50) {
        world.get(before).await.unwrap();
    }
    assert_eq!(world.store.log().reads, 50);
}

/// What this home writes lies below that, and would be lost with its memory.
#[tokio::test]
async fn what_others_wrote_shows_after_a_minute_though_the_home_writes_meanwhile() {
    let (world, clock) = World::by_hand().await;
    world.history.leave_unchecked();
    let created = world.engine.create(call("k", 3_600_000)).await.unwrap();
    let held = created.lock_ref;
    world.put(&held, "ours").await.unwrap();
    let (id, store) = (key("k"), world.store.real().unwrap());
    let theirs = Cell {
        value: Some("theirs".into()),
        timestamp: world.state("k").await.fence.0 + 3_600_000_000,
    };
    store.write_data(&id, theirs).await;
    world.store.forget_log();
    for value in ["at 20 s", "at 40 s", "at 60 s", "at 80 s"] {
        clock.advance(Duration::from_secs(20)).await;
        world.put(&held, value).await.unwrap();
    }
    for _ in 0..5 {
        let read = world.get(&held).await;
        assert_eq!(read, Ok(Some("theirs".to_owned())));
    }
    assert_eq!(world.store.log().reads, 1);
    world.put(&held, "above it").await.unwrap();
    let kept = store.read_data(&id).await.unwrap();
    assert_eq!(kept.unwrap().value.as_deref(), Some(&b"above it"[..]));
}
/// Where a release carries the put and the next one waits for its turn, no call comes in between.
#[tokio::test]
async fn what_others_wrote_shows_after_a_minute_to_who_waits_for_a_lock() {
    let (world, clock) = World::by_hand().await;
    world.history.leave_unchecked();
    let created = world.engine.create(call("k", 3_600_000)).await.unwrap();
    let mut held = created.lock_ref;
    world.put(&held, "ours").await.unwrap();
    let theirs = Cell {
        value: Some("theirs".into()),
        timestamp: world.state("k").await.fence.0 + 3_600_000_000,
    };
    let store = world.store.real().unwrap();
    store.write_data(&key("k"), theirs).await;
    let mut seen = Vec::new();
    for value in ["at 25 s", "at 50 s", "at 75 s"] {
        let next = world.engine.create(call("k", 3_600_000)).await.unwrap();
        let (engine, next) = (world.engine.clone(), next.lock_ref);
        let wait = Duration::from_secs(600);
        let waits = tokio::spawn(async move { engine.acquire(&next, wait, true).await });
        clock.advance(Duration::from_secs(25)).await;
        let released = world.engine.release(&held, Some(put(value)), 1).await;
        assert_eq!(released, Ok(false));
        let acquired = soon(waits).await.unwrap().unwrap();
        held = acquired.lock_ref;
        let LockStatus::Held {
            value: Some(value), ..
        } = acquired.status
        else {
            panic!("it holds the key: {:?}", acquired.status);
        };
        seen.extend(value.bytes);
    }
    assert_eq!(
        seen.last().map(|value| &value[..]),
        Some(&b"theirs"[..]),
        "{seen:?}"
    );
}
