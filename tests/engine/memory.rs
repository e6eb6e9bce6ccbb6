//! Memory is for keys that are in use, not for keys that were.

use std::time::Duration;

use futures_util::StreamExt;

use super::world::{World, call, until};

const MIB: u64 = 1024 * 1024;

/// Resident memory of this process, in bytes.
fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = statm.split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4096
}

async fn use_once(world: &World, keys: std::ops::Range<usize>) {
    futures_util::stream::iter(keys)
        .for_each_concurrent(256, |n| async move {
            let name = format!("key/{n}");
            let created = world.engine.create(call(&name, 30_000)).await.unwrap();
            world.release(&created.lock_ref).await.unwrap();
        })
        .await;
    let idle = || async { world.engine.counts().active_keys == 0 };
    until("all keys are idle", idle).await;
}

/// Set in the process that measures.
const ALONE: &str = "FERMATA_TEST_ALONE";

/// Measured in a process of its own: the memory of this one is that of all tests that run beside.
#[test]
fn keys_that_were_used_once_leave_no_memory_behind() {
    let ended = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "memory::measured_alone", "--nocapture"])
        .env(ALONE, "1")
        .status()
        .unwrap();
    assert!(ended.success(), "{ended}");
}

/// Not a test by itself: what the one above runs.
#[tokio::test]
async fn measured_alone() {
    if std::env::var_os(ALONE).is_none() {
        return;
    }
    let keys = std::env::var("FERMATA_KEYS").map_or(100_000, |n| n.parse().unwrap());
    let world = World::new().await;
    use_once(&world, 0..5_000).await;
    world.store.forget_log();
    let before = resident();
    let mut at = 5_000;
    let mut highest = before;
    while at < 5_000 + keys {
        let next = (at + 10_000).min(5_000 + keys);
        use_once(&world, at..next).await;
        world.store.forget_log();
        highest = highest.max(resident());
        at = next;
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    let after = resident();
    eprintln!(
        "{keys} keys: {} MiB before, {} MiB after, {} MiB at most",
        before / MIB,
        after / MIB,
        highest / MIB
    );
    assert!(
        after < before + 64 * MIB,
        "{before} bytes before, {after} after"
    );
}
