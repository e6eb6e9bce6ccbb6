//! ReleaseLock with a put: what its caller hears when not all of it is known to be done, and what a repeat hears.

use fermata::engine::EngineError;
use fermata::lock::{EndReason, EndedAs, LockRef};

use super::faulty::Fault;
use super::world::{World, put, soon};

async fn release(world: &World, held: &LockRef, call_no: u64) -> Result<bool, EngineError> {
    soon(world.engine.release(held, Some(put("last")), call_no)).await
}

async fn value(world: &World) -> Option<String> {
    let next = world.create("k").await.lock_ref;
    world.get(&world.acquire(&next).await).await.unwrap()
}

#[tokio::test]
async fn a_release_that_fails_after_its_put_says_that_the_put_may_count() {
    let world = World::new().await;
    let held = world.create("k").await.lock_ref;
    world.store.fail_swaps([Fault::NotStarted]);
    let failed = release(&world, &held, 1).await;
    assert!(
        matches!(failed, Err(EngineError::WriteUnknown(_))),
        "{failed:?}"
    );
    world.until_free("k").await;
    assert_eq!(release(&world, &held, 1).await, Ok(true));
    assert_eq!(value(&world).await, Some("last".to_owned()));
}

#[tokio::test]
async fn the_same_release_joins_the_one_in_flight() {
    let world = World::new().await;
    let held = world.create("k").await.lock_ref;
    let swaps = || world.store.log().swaps.len();
    let before = swaps();
    world.store.hold(|held| held.swaps = true);
    let first = release(&world, &held, 1);
    let second = async {
        super::world::until("it is being released", || async { swaps() > before }).await;
        // With another number it would be another put.
        let other = release(&world, &held, 2).await;
        assert_eq!(other, Err(EngineError::ReleasingDuringWrite));
        let again = release(&world, &held, 1);
        let let_go = async {
            tokio::task::yield_now().await;
            world.store.hold(|held| held.swaps = false);
        };
        tokio::join!(again, let_go).0
    };
    let (first, second) = tokio::join!(first, second);
    assert_eq!((first, second), (Ok(false), Ok(true)));
    assert_eq!(value(&world).await, Some("last".to_owned()));
}

#[tokio::test]
async fn the_same_release_is_tried_again_where_its_put_failed() {
    for fault in [Fault::NotStarted, Fault::UnknownDone, Fault::UnknownLost] {
        let world = World::new().await;
        let held = world.create("k").await.lock_ref;
        world.store.fail_writes([fault]);
        assert!(release(&world, &held, 3).await.is_err());
        assert_eq!(release(&world, &held, 3).await, Ok(false));
        assert_eq!(value(&world).await, Some("last".to_owned()));
    }
}

#[tokio::test]
async fn a_put_that_was_followed_by_another_call_is_not_tried_again() {
    let world = World::new().await;
    let held = world.create("k").await.lock_ref;
    world.store.fail_writes([Fault::UnknownLost]);
    assert!(release(&world, &held, 3).await.is_err());
    world.put(&held, "later").await.unwrap();
    let again = release(&world, &held, 3).await;
    let refused = EngineError::CallNoNotAbove { given: 3, last: 3 };
    assert_eq!(again, Err(refused));
}

#[tokio::test]
async fn a_release_of_what_ended_otherwise_says_that_its_put_may_count_and_is_no_success() {
    let world = World::new().await;
    let held = world.create("k").await.lock_ref;
    // During its put, and before its end.
    world.store.hold(|held| held.writes = true);
    let (released, ()) = tokio::join!(release(&world, &held, 1), async {
        super::world::until("its put is in flight", || async {
            world.store.log().writes.len() == 1
        })
        .await;
        world.force(&held, "stuck").await;
        world.store.hold(|held| held.writes = false);
    });
    let reason = EndReason::Forced {
        by: "op".into(),
        why: "stuck".into(),
    };
    let unknown = EngineError::EndedDuringWrite(EndedAs::Lost(reason.clone()));
    assert_eq!(released, Err(unknown));
    // Whoever repeats it learns how it ended; that its put may count, it was told.
    let again = release(&world, &held, 1).await;
    let ended = |e: &EngineError| match e {
        EngineError::Ended(end) | EngineError::EndedDuringWrite(end) => {
            *end == EndedAs::Lost(reason.clone())
        }
        _ => false,
    };
    assert!(again.as_ref().is_err_and(ended), "{again:?}");
}
