//! MUSIC's statements, as `fermata bench` sends them.

use std::time::Duration;

use fermata::store::cassandra::baseline::{Fault, Music};
use tokio::time::timeout;

use super::World;
use super::raw::Raw;

/// Only a test that fails waits for so long.
const PATIENCE: Duration = Duration::from_secs(60);
const NOW_MS: i64 = 1_800_000_000_000;

/// Waits until it is the turn of a lockRef: a read at ONE may be old for a moment.
async fn its_turn(music: &Music, lock_ref: i64) {
    let turn = async { while music.peek("k").await != Ok(Some(lock_ref)) {} };
    timeout(PATIENCE, turn).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_of_music_serves_its_places_in_order_and_leaves_no_table() {
    let Some(world) = World::make(&["default"]).await else {
        return;
    };
    let raw = Raw::of(&world).await;
    let tables = raw.tables().await;
    let music = Music::make(&world.options(), 7).await.unwrap();
    assert_eq!(raw.tables().await.len(), tables.len() + 2);
    let taken = Music::make(&world.options(), 7).await.map(drop);
    assert!(matches!(taken, Err(Fault::NotStarted(_))), "{taken:?}");

    assert_eq!(music.guard("k").await, Ok(0));
    assert_eq!(music.peek("k").await, Ok(None));
    assert_eq!(music.enqueue("k", 0, "first", NOW_MS).await, Ok(true));
    assert_eq!(
        music.enqueue("k", 0, "late", NOW_MS).await,
        Ok(false),
        "the guard is 1"
    );
    assert_eq!(music.enqueue("k", 1, "second", NOW_MS).await, Ok(true));

    its_turn(&music, 1).await;
    assert_eq!(music.get("k").await, Ok(None));
    assert_eq!(music.put("k", 1, b"one", NOW_MS).await, Ok(()));
    assert_eq!(music.release("k", 1).await, Ok(true));
    assert_eq!(music.release("k", 1).await, Ok(false), "it is gone");

    its_turn(&music, 2).await;
    assert_eq!(music.get("k").await, Ok(Some(b"one".to_vec())));
    assert_eq!(music.put("k", 2, b"two", NOW_MS).await, Ok(()));
    // The first one goes on writing, a minute later.
    let late = music.put("k", 1, b"late", NOW_MS + 60_000).await;
    assert_eq!(late, Ok(()));
    assert_eq!(music.get("k").await, Ok(Some(b"two".to_vec())));
    assert_eq!(music.release("k", 2).await, Ok(true));
    let guard = async { while music.guard("k").await != Ok(2) {} };
    timeout(PATIENCE, guard).await.unwrap();

    music.drop_tables().await.unwrap();
    assert_eq!(raw.tables().await, tables);
}
