//! A whole section, as a client sees it.

use std::time::Duration;

use fermata_proto::*;
use tonic::Code;

use crate::ask;
use crate::world::{World, create, done, hold};

#[tokio::test]
async fn a_section_reads_what_the_one_before_wrote() {
    let world = World::new().await;
    let mut client = world.client().await;
    let first = hold(&mut client, "orders-42").await;
    assert!(first.fencing_token > 0);
    let (entry, grant) = first.lock_ref.split_once('@').unwrap();
    assert_eq!(grant, first.fencing_token.to_string());
    assert_eq!(entry, first.session);
    assert_eq!(first.ttl.unwrap().seconds, 30);
    assert!(first.valid_for.unwrap().seconds <= 30);
    assert!(!first.exists && !first.already_existed);

    let put = ask::critical_put(&first.lock_ref, "one");
    assert!(done(client.critical_put(put)).await.valid_for.is_some());

    let second = create(&mut client, "orders-42").await;
    assert_eq!(second.state(), LockState::Waiting);
    assert_eq!((second.position, second.fencing_token), (1, 0));
    let release = ask::release_with_put(&first.lock_ref, "two");
    let released = done(client.release_lock(release.clone())).await;
    assert!(!released.already_released);
    assert!(done(client.release_lock(release)).await.already_released);

    let acquire = AcquireLockRequest {
        read_value: true,
        ..ask::wait(&second.lock_ref, 5)
    };
    let held = done(client.acquire_lock(acquire)).await;
    assert_eq!(held.state(), LockState::Held);
    assert!(held.fencing_token > first.fencing_token);
    assert_eq!((&held.value[..], held.exists), (&b"two"[..], true));

    done(client.critical_delete(ask::critical_delete(&held.lock_ref))).await;
    let read = done(client.critical_get(ask::critical_get(&held.lock_ref))).await;
    assert_eq!((read.value.len(), read.exists), (0, false));
    assert!(!done(client.get(ask::get("orders-42"))).await.exists);
}

async fn waiters(world: &World, key: &str) -> u32 {
    let mut admin = world.admin().await;
    done(admin.describe_lock(ask::describe(key)))
        .await
        .waiter_count
}

fn or_leave(lock_ref: &str, wait: Duration) -> AcquireLockRequest {
    AcquireLockRequest {
        wait: wait.try_into().ok(),
        ..ask::give_up(lock_ref)
    }
}

#[tokio::test]
async fn a_wait_that_gives_up_leaves_the_queue_in_one_change() {
    let world = World::new().await;
    let mut client = world.client().await;
    let held = hold(&mut client, "a").await;
    let waiting = create(&mut client, "a").await;
    let changes = world.engine.counts().swaps;
    let ask = or_leave(&waiting.lock_ref, Duration::from_millis(50));
    let left = done(client.acquire_lock(ask.clone())).await;
    assert_eq!(left.state(), LockState::Released);
    assert_eq!(world.engine.counts().swaps, changes + 1);
    assert_eq!(waiters(&world, "a").await, 0);
    // It has ended; and of the holder's nothing is given back.
    let status = client.acquire_lock(ask).await.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition);
    let ask = or_leave(&held.lock_ref, Duration::ZERO);
    let again = done(client.acquire_lock(ask)).await;
    assert_eq!(again.state(), LockState::Held);
    assert_eq!(world.engine.counts().swaps, changes + 1);
}

#[tokio::test]
async fn a_caller_that_hangs_up_gives_nothing_back() {
    let world = World::new().await;
    let mut client = world.client().await;
    hold(&mut client, "a").await;
    let waiting = create(&mut client, "a").await;
    let mut gone = world.client().await;
    let ask = or_leave(&waiting.lock_ref, Duration::from_secs(30));
    let wait = tokio::spawn(async move { gone.acquire_lock(ask).await });
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(!wait.is_finished());
    wait.abort();
    assert!(wait.await.unwrap_err().is_cancelled());
    // It may have been told of its turn by another call meanwhile.
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(waiters(&world, "a").await, 1);
}
