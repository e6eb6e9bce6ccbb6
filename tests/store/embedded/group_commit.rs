//! One sync of the disk serves many callers, and no caller can leave half a job behind.

use std::sync::Arc;

use fermata::key::KeyState;
use fermata::store::{KeyStore, Swap};
use futures_util::FutureExt;
use tempfile::TempDir;

use super::{add, open};
use crate::world::{id, with_entry, without_holder};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_changes_share_a_commit() {
    const TASKS: usize = 64;
    const CHANGES: usize = 10_000;
    let directory = TempDir::new().unwrap();
    let store = Arc::new(open(directory.path()).unwrap());
    let tasks = (0..TASKS).map(|task| {
        let store = Arc::clone(&store);
        tokio::spawn(async move {
            let key = id(&format!("key {task}"));
            let mut state = KeyState::default();
            for _ in 0..CHANGES / TASKS {
                let next = if state.entries.is_empty() {
                    with_entry(&state, task as u128)
                } else {
                    without_holder(&state)
                };
                let swap = store.compare_and_swap(&key, &state, &next).await;
                assert!(matches!(swap, Swap::Applied), "{swap:?}");
                state = next;
            }
            (key, state)
        })
    });
    for task in futures_util::future::join_all(tasks).await {
        let (key, state) = task.unwrap();
        assert_eq!(store.load(&key).await.unwrap(), Some(state));
    }
    let commits = store.commits();
    assert!(commits > 0);
    assert!(commits < CHANGES as u64 / 4, "{commits} commits");
}

#[tokio::test]
async fn a_settled_load_comes_after_every_call_that_was_dropped_before_it() {
    let directory = TempDir::new().unwrap();
    let store = open(directory.path()).unwrap();
    let mut state = add(&store, "k").await;
    let mut done = 0;
    for round in 0..200u32 {
        let next = with_entry(&state, u128::from(round) + 100);
        let key = id("k");
        // Into the queue, and away. On a busy machine this thread may stand between the two for
        // as long as a commit takes: then it was answered.
        let answered = store.compare_and_swap(&key, &state, &next).now_or_never();
        let settled = store.load_settled(&key).await.unwrap().unwrap();
        match &answered {
            Some(swap) => {
                assert!(matches!(swap, Swap::Applied), "round {round}: {swap:?}");
                assert!(settled == next, "round {round}");
            }
            None => assert!(settled == state || settled == next, "round {round}"),
        }
        let other = with_entry(&settled, u128::from(round) + 1_000);
        let swap = store.compare_and_swap(&key, &settled, &other).await;
        assert!(matches!(swap, Swap::Applied), "round {round}: {swap:?}");
        done += usize::from(answered.is_none() && settled == next);
        state = other;
    }
    assert!(done > 0, "none was done after it was dropped");
}
