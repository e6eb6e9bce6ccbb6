//! A store that was restored from a backup: what was given out after it is not given out again (I2).

use std::time::{SystemTime, UNIX_EPOCH};

use fermata::lock::LockRef;
use fermata::store::BackupStore as _;

use super::world::World;

async fn back_up(world: &World) -> Vec<u8> {
    let mut parts = world.store.real().unwrap().back_up().await.unwrap();
    let mut whole = Vec::new();
    while let Some(part) = parts.recv().await {
        whole.extend_from_slice(&part.unwrap());
    }
    whole
}

fn fence(lock_ref: &LockRef) -> u64 {
    lock_ref.grant.unwrap().0
}

/// A section on a key; its fence.
async fn section(world: &World, key: &str, value: &str) -> u64 {
    let held = world.acquire(&world.create(key).await.lock_ref).await;
    world.put(&held, value).await.unwrap();
    world.release(&held).await.unwrap();
    fence(&held)
}

#[tokio::test]
async fn no_fence_of_a_restored_store_was_given_out_before() {
    let world = World::new().await;
    section(&world, "k", "before").await;
    let kept = world.acquire(&world.create("kept").await.lock_ref).await;
    let backup = back_up(&world).await;
    let mut given_out = 0;
    for key in ["k", "k", "later"] {
        given_out = given_out.max(section(&world, key, "after").await);
    }
    // As by a clock that is behind the one that gave them out.
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let behind_us = u64::try_from(now.as_micros()).unwrap() - 60_000_000;
    let world = world.restored(&backup, behind_us).await;
    let again = world.acquire(&kept).await;
    assert!(fence(&again) > given_out);
    for key in ["k", "later", "new"] {
        let held = world.acquire(&world.create(key).await.lock_ref).await;
        assert!(fence(&held) > given_out + 3_600_000_000, "{key}");
        let value = world.get(&held).await.unwrap();
        assert_eq!(value.as_deref(), (key == "k").then_some("before"));
        world.put(&held, "again").await.unwrap();
        assert_eq!(world.get(&held).await.unwrap().as_deref(), Some("again"));
        world.release(&held).await.unwrap();
        assert!(section(&world, key, "v").await > fence(&held));
    }
}

/// The rows are of one moment, whatever is written meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backup_is_of_one_moment() {
    let world = World::new().await;
    for number in 0..200 {
        section(&world, &format!("k{number}"), &"0".repeat(5_000)).await;
    }
    let mut parts = world.store.real().unwrap().back_up().await.unwrap();
    let mut whole = parts.recv().await.unwrap().unwrap().to_vec();
    for number in 0..200 {
        section(&world, &format!("k{number}"), "1").await;
    }
    while let Some(part) = parts.recv().await {
        whole.extend_from_slice(&part.unwrap());
    }
    let world = world.restored(&whole, 0).await;
    for number in 0..200 {
        let held = world
            .acquire(&world.create(&format!("k{number}")).await.lock_ref)
            .await;
        let value = world.get(&held).await.unwrap().unwrap();
        assert_eq!(value.len(), 5_000, "{number}");
    }
}
