//! Calls that are given up, overtaken, or dropped in the middle (I11).

use std::time::Duration;

use fermata::engine::EngineError;

use super::faulty::Fault;
use super::world::{World, put, until};

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
            until("the put is under way", || async { world.store.log().writes.len() == 1 }).await;
            world.store.hold_writes(false);
            tokio::time::sleep(Duration::from_millis(50)).await;
            let late = world.put(&held, "late").await;
            world.store.hold_swaps(false);
            late
        }
    );
    assert!(
        matches!(with_put, Err(EngineError::Unavailable(_))),
        "{with_put:?}"
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
