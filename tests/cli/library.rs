//! The Rust client against a real server.

use std::time::Duration;

use fermata::engine::REPLICA_TTL;
use fermata_client::{Client, ClientOptions, LockRequest, Mutation};

use super::world::World;

const TTL: Duration = Duration::from_secs(20);

/// Where a replica crashes, what it had goes on at another one once its TTL has passed: not when calls were just given
/// up.
#[test]
fn a_call_outlives_the_crash_of_a_replica_unless_told_otherwise() {
    let timeout = ClientOptions::default().timeout;
    assert!(timeout >= REPLICA_TTL * 3 / 2, "{timeout:?}");
}

#[tokio::test]
async fn a_lock_outlives_the_crash_of_its_server_with_a_new_fencing_token() {
    let mut world = World::new();
    let client = Client::connect([&world.endpoint]).unwrap();
    let guard = client.lock(LockRequest::new("k").ttl(TTL)).await.unwrap();
    guard.put("before").await.unwrap();
    let token = guard.fencing_token();
    world.restart_server();
    assert_eq!(guard.get().await.unwrap().unwrap(), "before");
    assert!(guard.fencing_token() > token);
    guard
        .release_with(Mutation::Put("after".into()))
        .await
        .unwrap();
    assert_eq!(client.get("", "k").await.unwrap().unwrap(), "after");
}

#[tokio::test]
async fn a_wait_goes_on_after_the_crash_of_the_server() {
    let mut world = World::new();
    let client = Client::connect([&world.endpoint]).unwrap();
    let holder = client.lock(LockRequest::new("k").ttl(TTL)).await.unwrap();
    let mut entry = client
        .enqueue(LockRequest::new("k").ttl(TTL))
        .await
        .unwrap();
    let lock_ref = entry.lock_ref().to_owned();
    let waiting = tokio::spawn(async move { entry.wait(None).await });
    world.restart_server();
    assert_eq!(world.queue("k"), (1, 1));
    holder.release().await.unwrap();
    let guard = waiting.await.unwrap().unwrap();
    assert!(guard.lock_ref().starts_with(&lock_ref));
    guard.release().await.unwrap();
}
