//! Memory is for as many keys as active_keys_max says, not for all that were ever used.

use std::ops::Range;

use bytes::Bytes;
use fermata::engine::EngineError;
use fermata::limits::Limits;
use fermata::store::embedded::EmbeddedOptions;
use fermata::store::{Cell, DataStore as _, Written};
use futures_util::StreamExt;

use super::world::{World, call, key, put};

const MIB: u64 = 1024 * 1024;
/// How many keys are known at once.
const KEYS_MAX: usize = 5_000;

/// Resident memory of this process, in bytes.
fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = statm.split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4096
}

/// Fills the store's cache, as a replica that has run for a while has it: what the store keeps in memory
/// is bounded by a setting, and is not to be taken for what the engine keeps.
async fn fill_the_cache(world: &World) {
    let empty = resident();
    let cache = EmbeddedOptions::CACHE_BYTES_DEFAULT as u64;
    let store = world.store.real().unwrap();
    let store = &store;
    // One to a page of the file, and twice as many pages as the cache holds.
    let value = Bytes::from(vec![7; 3_000]);
    futures_util::stream::iter(0..2 * cache / 4096)
        .map(|n| (key(&format!("full/{n}")), value.clone()))
        .for_each_concurrent(256, |(id, value)| async move {
            let cell = Cell {
                value: Some(value),
                timestamp: 1,
            };
            let written = store.write_data(&id, cell).await;
            assert!(matches!(written, Written::Done), "{written:?}");
        })
        .await;
    let full = resident();
    assert!(
        full > empty + cache * 9 / 10,
        "the cache is not full: {} MiB before, {} MiB after",
        empty / MIB,
        full / MIB
    );
}

async fn use_once(world: &World, keys: Range<usize>) {
    futures_util::stream::iter(keys)
        .for_each_concurrent(256, |n| async move {
            let name = format!("key/{n}");
            let created = loop {
                match world.engine.create(call(&name, 30_000)).await {
                    Ok(created) => break created,
                    // A slow disk, or other tests beside this one.
                    Err(EngineError::Overloaded { again_after }) => {
                        tokio::time::sleep(again_after).await;
                    }
                    Err(error) => panic!("{error}"),
                }
            };
            // With a value, which the key remembers while it is known.
            let put = Some(put("remembered"));
            let released = world.engine.release(&created.lock_ref, put, 1);
            assert_eq!(released.await, Ok(false));
        })
        .await;
    assert!(world.engine.counts().active_keys <= KEYS_MAX);
    world.store.forget_log();
}

/// Set in the process that measures, to the commit mode.
const ALONE: &str = "FERMATA_TEST_ALONE";
const WRITE_THROUGH: &str = "write-through";
const WRITE_BACK: &str = "write-back";

#[test]
fn keys_beyond_the_limit_leave_no_memory_behind() {
    measure_alone(WRITE_THROUGH);
}

#[test]
fn keys_beyond_the_limit_leave_no_memory_behind_with_write_back() {
    measure_alone(WRITE_BACK);
}

/// Measured in a process of its own: the memory of this one is that of all tests that run beside.
fn measure_alone(mode: &str) {
    let ended = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "memory::measured_alone", "--nocapture"])
        .env(ALONE, mode)
        .status()
        .unwrap();
    assert!(ended.success(), "{mode}: {ended}");
}

/// Not a test by itself: what those above run.
#[tokio::test]
async fn measured_alone() {
    let Ok(mode) = std::env::var(ALONE) else {
        return;
    };
    let keys = std::env::var("FERMATA_KEYS").map_or(50_000, |n| n.parse().unwrap());
    let limits = Limits {
        active_keys_max: KEYS_MAX,
        ..Limits::default()
    };
    let world = match mode.as_str() {
        WRITE_BACK => World::writing_back(limits).await,
        _ => World::with(limits).await,
    };
    // What is noted takes memory.
    world.history.leave_unchecked();
    use_once(&world, 0..KEYS_MAX).await;
    fill_the_cache(&world).await;
    let before = resident();
    let mut highest = before;
    for at in (KEYS_MAX..KEYS_MAX + keys).step_by(10_000) {
        use_once(&world, at..(at + 10_000).min(KEYS_MAX + keys)).await;
        highest = highest.max(resident());
    }
    let after = resident();
    eprintln!(
        "{keys} keys, {mode}: {} MiB before, {} MiB after, {} MiB at most",
        before / MIB,
        after / MIB,
        highest / MIB
    );
    assert!(
        after < before + 20 * MIB,
        "{before} bytes before, {after} after"
    );
}
