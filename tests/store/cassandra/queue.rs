//! Long queues, torn pages, swaps whose callers left.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fermata::key::KeyState;
use fermata::lock::{KeyId, Tag};
use fermata::store::cassandra::{CassandraOptions, CassandraStore};
use fermata::store::{KeyStore, Swap};

use super::World;
use crate::world::{apply, id, with_entry, without_holder};

/// A queue of so many entries.
async fn fill(store: &CassandraStore, key: &KeyId, entries: u128) -> KeyState {
    let mut state = KeyState::default();
    for request in 0..entries {
        state = KeyState {
            version: 0,
            ..with_entry(&state, request)
        };
    }
    state.version = 1;
    apply(store, key, &KeyState::default(), &state).await;
    state
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_waiters_load_whole_in_small_pages_and_large() {
    let Some(world) = World::shared().await else {
        return;
    };
    let state = fill(&world.store().await, &id("waiters"), 1_000).await;
    for page_rows in [7, 1_001, 2_000] {
        let options = CassandraOptions {
            page_rows,
            ..world.options()
        };
        let store = CassandraStore::open(options).await.unwrap();
        // The second time it knows the head.
        for _ in 0..2 {
            assert_eq!(
                store.load(&id("waiters")).await.unwrap().as_ref(),
                Some(&state)
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_load_whose_pages_are_of_two_versions_is_made_again() {
    let Some(world) = World::shared().await else {
        return;
    };
    let writer = Arc::new(world.store().await);
    let mut state = fill(&writer, &id("pages"), 60).await;
    let stop = Arc::new(AtomicBool::new(false));
    let writing = tokio::spawn({
        let stop = Arc::clone(&stop);
        async move {
            while !stop.load(Ordering::Relaxed) {
                let fresh = with_entry(&state, u128::from(state.version) + 1_000);
                let new = KeyState {
                    version: state.version + 1,
                    ..without_holder(&fresh)
                };
                apply(&*writer, &id("pages"), &state, &new).await;
                state = new;
            }
            state.version
        }
    });
    let options = CassandraOptions {
        page_rows: 5,
        ..world.options()
    };
    let reader = CassandraStore::open(options).await.unwrap();
    let mut version = 0;
    for _ in 0..100 {
        let seen = reader.load(&id("pages")).await.unwrap().unwrap();
        assert!(seen.version >= version, "{} after {version}", seen.version);
        assert_eq!(seen.entries.len(), 60);
        version = seen.version;
    }
    stop.store(true, Ordering::Relaxed);
    let written = writing.await.unwrap();
    assert!(version > 1 && version <= written, "{version} of {written}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_swap_whose_caller_left_applies_once_or_not_at_all() {
    let Some(world) = World::shared().await else {
        return;
    };
    let store = world.store().await;
    let mut state = KeyState::default();
    let mut applied = 0;
    for round in 0..60u32 {
        let key = id("left");
        let left = with_entry(&state, round.into());
        let swap = store.compare_and_swap(&key, &state, &left);
        let patience = std::time::Duration::from_millis(u64::from(round) / 6);
        let _ = tokio::time::timeout(patience, swap).await;
        let seen = store.load(&key).await.unwrap().unwrap_or_default();
        assert!(seen == state || seen == left, "{seen:?}");
        // While the version is the one it named it may still apply; a swap that applies settles it.
        let mine = with_entry(&seen, 1_000 + u128::from(round));
        state = match store.compare_and_swap(&key, &seen, &mine).await {
            Swap::Applied => mine,
            Swap::Conflict(Some(found)) => {
                assert_eq!((&seen, &found), (&state, &left), "nobody else is here");
                found
            }
            // A node that took its time was not waited for, and another one was asked.
            Swap::Unknown(_) => {
                let found = store.load_settled(&key).await.unwrap().unwrap_or_default();
                assert!([&seen, &left, &mine].contains(&&found), "{found:?}");
                found
            }
            other => panic!("{other:?}"),
        };
        applied += usize::from(
            state
                .entries
                .iter()
                .any(|e| e.tag == Tag::from_bits(round.into())),
        );
        assert_eq!(store.load(&key).await.unwrap().as_ref(), Some(&state));
    }
    println!("{applied} of 60 applied although their callers had left");
}
