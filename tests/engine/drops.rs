//! Calls that are given up, overtaken, or dropped in the middle (I11).

use std::time::Duration;

use fermata::engine::EngineError;
use fermata::limits::Limits;
use fermata::lock::EndedAs;

use super::faulty::Fault;
use super::rng::{Rng, seed};
use super::world::{World, call, put, until};

#[tokio::test]
async fn nothing_is_taken_after_a_release_whose_put_still_waits_for_timestamps() {
    let world = World::new().await;
    let held = world.create("k").await.lock_ref;
    for n in 0..15 {
        world.put(&held, &n.to_string()).await.unwrap();
    }
    world.store.hold_swaps(true);
    let (released, late, ()) = tokio::join!(
        biased;
        world.engine.release(&held, Some(put("last")), 0),
        world.put(&held, "late"),
        async {
            tokio::time::sleep(Duration::from_millis(50)).await;
            world.store.hold_swaps(false);
        }
    );
    assert_eq!(released, Ok(false));
    assert_eq!(late, Err(EngineError::Releasing));
    let next = world.create("k").await.lock_ref;
    assert_eq!(world.get(&next).await, Ok(Some("last".to_owned())));
}

#[tokio::test]
async fn a_last_put_that_fails_does_not_reopen_what_another_release_closed() {
    let world = World::new().await;
    let held = world.create("k").await.lock_ref;
    world.store.hold_writes(true);
    world.store.fail_writes([Fault::NotStarted]);
    let (with_put, plain, late) = tokio::join!(
        biased;
        world.engine.release(&held, Some(put("last")), 0),
        async {
            world.store.hold_swaps(true);
            world.release(&held).await
        },
        async {
            until("the put is in flight", || async { world.store.log().writes.len() == 1 }).await;
            world.store.hold_writes(false);
            tokio::time::sleep(Duration::from_millis(50)).await;
            let late = world.put(&held, "late").await;
            world.store.hold_swaps(false);
            late
        }
    );
    assert!(
        matches!(with_put, Err(EngineError::Ended(EndedAs::Released))),
        "not written, and released all the same: {with_put:?}"
    );
    assert_eq!(plain, Ok(false));
    assert_eq!(late, Err(EngineError::Releasing));
}

#[tokio::test]
async fn writes_that_wait_for_timestamps_are_not_overtaken_by_later_ones() {
    let world = World::new().await;
    let held = world.create("k").await.lock_ref;
    for n in 0..15 {
        world.put(&held, &n.to_string()).await.unwrap();
    }
    // The Extend takes effect late, and shows as a conflict with the next try of it.
    let late = Duration::from_millis(20);
    world
        .store
        .fail_swaps([Fault::UnknownLate(late), Fault::Slow(2 * late)]);
    let (a, b) = tokio::join!(biased; world.put(&held, "a"), async {
        while world.engine.counts().conflicts == 0 {
            tokio::task::yield_now().await;
        }
        world.put(&held, "b").await
    });
    a.unwrap();
    b.unwrap();
    assert_eq!(world.get(&held).await, Ok(Some("b".to_owned())));
}

#[tokio::test]
async fn a_call_no_that_is_not_above_the_last_is_refused() {
    let world = World::new().await;
    let held = world.create("k").await.lock_ref;
    let write = |no, value: &str| world.engine.critical_write(&held, put(value), no);
    write(1, "a").await.unwrap();
    write(5, "b").await.unwrap();
    for given in [5, 4, 1] {
        let refused = EngineError::CallNoNotAbove { given, last: 5 };
        assert_eq!(write(given, "late").await.unwrap_err(), refused);
        assert_eq!(
            world.engine.critical_get(&held, given).await.unwrap_err(),
            refused
        );
        let released = world.engine.release(&held, Some(put("late")), given).await;
        assert_eq!(released, Err(refused));
    }
    assert_eq!(world.get(&held).await, Ok(Some("b".to_owned())));
}

#[tokio::test]
async fn a_release_comes_after_the_acknowledgement_of_the_put_that_it_carries() {
    let world = World::new().await;
    let held = world.create("k").await.lock_ref;
    let next = world.create("k").await.lock_ref;
    world.store.hold_writes(true);
    let (engine, lock_ref) = (world.engine.clone(), held.clone());
    let release =
        tokio::spawn(async move { engine.release(&lock_ref, Some(put("last")), 1).await });
    until("the put is in flight", || async {
        world.store.log().writes.len() == 1
    })
    .await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(world.state("k").await.entries.len(), 2);
    world.store.hold_writes(false);
    assert_eq!(release.await.unwrap(), Ok(false));
    let next = world.acquire(&next).await;
    assert!(!world.state("k").await.unsynced);
    assert_eq!(world.get(&next).await, Ok(Some("last".to_owned())));
    // Repeated: it is not written twice.
    assert_eq!(
        world.engine.release(&held, Some(put("last")), 1).await,
        Ok(true)
    );
    assert_eq!(world.store.log().writes.len(), 1);
}

#[tokio::test]
async fn calls_that_are_dropped_anywhere_leave_no_entry_beyond_its_lease() {
    let mut rng = Rng::new(seed(7));
    let world = World::new().await;
    for round in 0..150 {
        let name = format!("k{}", round % 3);
        let mut create = call(&name, 1_000);
        create.read_value = rng.below(2) == 0;
        world.store.fail_randomly(rng.next(), 10);
        let patience = Duration::from_micros(rng.below(3_000));
        let _ = tokio::time::timeout(patience, async {
            let entry = world.engine.create(create).await?.lock_ref;
            let held = world
                .engine
                .acquire(&entry, Duration::from_secs(1), true)
                .await?
                .lock_ref;
            world.put(&held, "v").await?;
            world.engine.release(&held, Some(put("w")), 0).await
        })
        .await;
    }
    world.store.fail_randomly(0, 0);
    for name in ["k0", "k1", "k2"] {
        // Each entry that was left has a second from its last renewal; they run out together.
        let begun = std::time::Instant::now();
        let last = world.create(name).await.lock_ref;
        let held = world.acquire_patiently(&last).await;
        assert!(
            begun.elapsed() < Duration::from_secs(3),
            "{:?}",
            begun.elapsed()
        );
        world.release(&held).await.unwrap();
        assert!(world.state(name).await.entries.is_empty());
    }
}

#[tokio::test]
async fn what_is_being_written_is_bounded_also_where_its_callers_are_gone() {
    let world = World::with(Limits {
        // Each write takes a KiB beside its value.
        bytes_in_flight_max: 3_100,
        ..Limits::default()
    })
    .await;
    let (one, other) = (world.create("one").await, world.create("other").await);
    world.store.hold_writes(true);
    let gone = tokio::spawn({
        let (engine, lock_ref) = (world.engine.clone(), one.lock_ref.clone());
        async move {
            engine
                .critical_write(&lock_ref, put(&"1".repeat(1_000)), 0)
                .await
        }
    });
    until("it is in flight", || async {
        world.store.log().writes.len() == 1
    })
    .await;
    gone.abort();
    let refused = world
        .put(&other.lock_ref, &"2".repeat(1_000))
        .await
        .unwrap_err();
    let EngineError::Unavailable(why) = &refused else {
        panic!("{refused:?}");
    };
    assert!(why.contains("limits.bytes_in_flight_max"), "{why}");
    // What has room goes on.
    let small = world.put(&other.lock_ref, "ab");
    let (small, ()) = tokio::join!(small, async {
        until("that is as well", || async {
            world.store.log().writes.len() == 2
        })
        .await;
        world.store.hold_writes(false);
    });
    small.unwrap();
    until("it has room again", || async {
        world.put(&other.lock_ref, &"3".repeat(1_000)).await.is_ok()
    })
    .await;
}
