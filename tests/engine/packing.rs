//! Keys are packed a few milliseconds after each call: also those that came from another replica.

use fermata::engine::{CreateCall, EngineError};
use fermata::limits::Limits;

use super::clients::{LONG_TTL_MS, name_of};
use super::replicas::{LONG, acquire, create, session, write};
use super::shared::Service;
use super::world::{World, call_of, soon, until};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_that_a_restart_took_over_are_packed_before_anybody_asks_for_them() {
    let world = World::packing(Limits::default()).await;
    let session = world.open_session(LONG_TTL_MS).await;
    let mut made = Vec::new();
    for at in 0..20 {
        made.push(world.create_in(session, &name_of(at)).await);
    }
    let world = world.restart().await;
    until("all are packed", || async {
        world.engine.counts().packed_keys >= 20
    })
    .await;
    let held = world.acquire(&made[7]).await;
    world.put(&held, "after").await.unwrap();
    assert_eq!(world.get(&held).await, Ok(Some("after".to_owned())));
    world.engine.close_session(session).await.unwrap();
    world.until_free(&name_of(8)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_that_were_locked_once_are_packed_and_make_room_for_others() {
    let world = World::packing(Limits {
        active_keys_max: 20,
        ..Limits::default()
    })
    .await;
    for at in 0..20 {
        let once = world.create(&name_of(at)).await.lock_ref;
        world.release(&once).await.unwrap();
    }
    let counts = || world.engine.counts();
    until("all are packed", || async { counts().packed_keys >= 20 }).await;
    world.store.forget_log();
    world.create(&name_of(7)).await;
    let terms: Vec<u64> = world.store.log().swaps.iter().map(|s| s.term()).collect();
    assert_eq!(terms, [1], "its home knows it still");
    for at in 20..30 {
        world.create(&name_of(at)).await;
    }
    assert_eq!(counts().forgotten_keys, 10);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_was_packed_is_still_of_the_machine_that_locked_it() {
    let world = World::packing(Limits {
        active_keys_max: 20,
        ..Limits::default()
    })
    .await;
    let session = world.open_session(LONG_TTL_MS).await;
    let call = |id: &str| CreateCall {
        share_of: "10.0.0.1".into(),
        ..call_of(session, id)
    };
    let mut made = Vec::new();
    for at in 0..18 {
        let created = soon(world.engine.create(call(&name_of(at)))).await;
        made.push(created.unwrap().lock_ref);
    }
    until("all are packed", || async {
        world.engine.counts().packed_keys >= 18
    })
    .await;
    for lock_ref in &made {
        world.acquire(lock_ref).await;
    }
    let more = soon(world.engine.create(call("more"))).await;
    assert!(
        matches!(more, Err(EngineError::ShareUsed { .. })),
        "{more:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn packed_locks_are_handed_over_at_a_stop_and_packed_there() {
    let service = Service::packing(true).await;
    let (a, b) = (service.engine(0), service.engine(1));
    let session = session(b, LONG_TTL_MS).await;
    let mut made = Vec::new();
    for at in 0..20 {
        made.push(create(a, call_of(session, &name_of(at))).await.lock_ref);
    }
    // Once they are durable.
    until("all are packed", || async { a.counts().packed_keys >= 20 }).await;
    a.stop();
    a.leave(LONG).await;
    until("all are packed again", || async {
        b.counts().packed_keys >= 20
    })
    .await;
    let held = acquire(b, &made[7]).await;
    assert!(held.grant > made[7].grant);
    write(b, &held, "of b").await.unwrap();
}
