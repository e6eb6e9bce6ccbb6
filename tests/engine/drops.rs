//! Calls that are given up, overtaken, or dropped in the middle (I11).

use std::time::Duration;

use fermata::engine::EngineError;
use fermata::limits::Limits;

use super::faulty::Fault;
use super::rng::{Rng, seed};
use super::world::{World, call, put, until};

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
    world.store.hold(|held| held.writes = true);
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
        world.store.hold(|held| held.writes = false);
    });
    small.unwrap();
    until("it has room again", || async {
        world.put(&other.lock_ref, &"3".repeat(1_000)).await.is_ok()
    })
    .await;
}
