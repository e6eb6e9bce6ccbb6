//! Sections: create, acquire, read, write, release.

use fermata::engine::EngineError;
use fermata::lock::{EndReason, EndedAs};

use super::world::{World, call, grant, lost};

#[tokio::test]
async fn a_section_reads_what_the_one_before_it_wrote() {
    let world = World::new().await;
    let first = world.create("k").await;
    let first_grant = grant(&first.status);
    assert_eq!(world.get(&first.lock_ref).await, Ok(None));
    world.put(&first.lock_ref, "one").await.unwrap();
    assert_eq!(world.get(&first.lock_ref).await, Ok(Some("one".to_owned())));
    assert_eq!(world.release(&first.lock_ref).await, Ok(false));
    assert_eq!(world.release(&first.lock_ref).await, Ok(true));
    let second = world.create("k").await;
    assert!(grant(&second.status) > first_grant);
    assert_eq!(
        world.get(&second.lock_ref).await,
        Ok(Some("one".to_owned()))
    );
    assert_eq!(
        world.get(&first.lock_ref).await,
        Err(EngineError::Ended(EndedAs::Released))
    );
}

#[tokio::test]
async fn a_holder_that_is_silent_for_its_ttl_is_replaced_and_told_why() {
    let world = World::new().await;
    let silent = world.engine.create(call("k", 1_000)).await.unwrap();
    world.put(&silent.lock_ref, "last words").await.unwrap();
    let next = world.create("k").await;
    let held = world.acquire(&next.lock_ref).await;
    assert_eq!(world.get(&held).await, Ok(Some("last words".to_owned())));
    let expired = Err(lost(EndReason::Expired));
    assert_eq!(world.put(&silent.lock_ref, "late").await, expired);
    assert_eq!(world.get(&held).await, Ok(Some("last words".to_owned())));
}

#[tokio::test]
async fn a_restart_keeps_queue_and_value_and_gives_the_holder_a_new_grant() {
    let world = World::new().await;
    let held = world.create("k").await.lock_ref;
    let waiting = world.create("k").await.lock_ref;
    world.put(&held, "kept").await.unwrap();
    let world = world.restart().await;
    assert_eq!(
        world.put(&held, "superseded").await,
        Err(EngineError::GrantSuperseded)
    );
    let again = world.acquire(&held).await;
    assert!(again.grant > held.grant);
    assert_eq!(world.get(&again).await, Ok(Some("kept".to_owned())));
    world.release(&again).await.unwrap();
    let next = world.acquire(&waiting).await;
    assert_eq!(world.get(&next).await, Ok(Some("kept".to_owned())));
}
