//! What is left in the tables.

use std::time::Duration;

use fermata::key::{Command, KeyState, WritesOfHolder};
use fermata::store::cassandra::CassandraStore;
use fermata::store::{DataStore, KeyStore};

use super::World;
use super::raw::Raw;
use crate::world::{create, decided, id, with_entry, without_holder};

async fn apply(store: &CassandraStore, key: &str, old: &KeyState, new: KeyState) -> KeyState {
    crate::world::apply(store, &id(key), old, &new).await;
    new
}

/// The state after the entries with these seqs gave up.
fn without(state: &KeyState, seqs: impl Iterator<Item = u64>) -> KeyState {
    let gone: Vec<Command> = seqs
        .map(|seq| {
            let entry = state
                .entries
                .iter()
                .find(|entry| entry.seq.0 == seq)
                .unwrap();
            Command::Release {
                seq: entry.seq,
                tag: entry.tag,
                writes: WritesOfHolder::NONE,
            }
        })
        .collect();
    decided(state, &gone)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_entry_that_ended_in_the_middle_stays_ended_for_every_store() {
    let Some(world) = World::shared().await else {
        return;
    };
    let (one, other) = (world.store().await, world.store().await);
    let mut state = KeyState::default();
    for request in 0..5 {
        state = apply(&one, "middle", &state, with_entry(&state, request)).await;
    }
    state = apply(&one, "middle", &state, without(&state, [2, 4].into_iter())).await;
    assert_eq!(
        other.load(&id("middle")).await.unwrap().as_ref(),
        Some(&state)
    );
    // The rows are there: nothing was deleted that could come back.
    let raw = Raw::of(&world).await;
    assert_eq!(raw.seqs("middle").await, [0, 1, 2, 3, 4, 5, i64::MAX]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_run_in_the_middle_is_ignored_whatever_is_there() {
    let Some(world) = World::shared().await else {
        return;
    };
    let store = world.store().await;
    let mut state = KeyState::default();
    for _ in 0..2 {
        let many: Vec<_> = (0..60)
            .map(|n| create(u128::from(state.next.0) + n))
            .collect();
        let new = decided(&state, &many);
        state = apply(&store, "run", &state, new).await;
    }
    state = apply(&store, "run", &state, without(&state, 5..100)).await;
    let raw = Raw::of(&world).await;
    let left = raw.seqs("run").await;
    assert_eq!(
        left.iter().filter(|seq| (5..100).contains(*seq)).count(),
        0,
        "{left:?}"
    );
    raw.bring_back("run", 50).await;
    let fresh = world.store().await;
    assert_eq!(fresh.load(&id("run")).await.unwrap().as_ref(), Some(&state));
    // The run grows, and the head passes it.
    state = apply(&store, "run", &state, without(&state, 100..105)).await;
    assert_eq!(fresh.load(&id("run")).await.unwrap().as_ref(), Some(&state));
    while state.head().0 < 110 {
        state = apply(&store, "run", &state, without_holder(&state)).await;
    }
    assert_eq!(fresh.load(&id("run")).await.unwrap().as_ref(), Some(&state));
}

/// So many entries pass through one key: 16 go and 16 come with each change.
fn cycles() -> u64 {
    match std::env::var("FERMATA_CASSANDRA_CYCLES") {
        Ok(cycles) => cycles.parse().unwrap(),
        Err(_) => 8_000,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_cycles_on_one_key_leave_few_rows_and_no_tombstone_warning() {
    let Some(world) = World::make(&["default"]).await else {
        return;
    };
    let store = world.store().await;
    let mut state = KeyState::default();
    while state.next.0 < cycles() {
        let next = u128::from(state.next.0);
        let mut new = state.clone();
        for request in next..next + 16 {
            new = with_entry(&new, request);
        }
        for _ in 0..state.entries.len() {
            new = without_holder(&new);
        }
        new.version = state.version + 1;
        state = apply(&store, "k", &state, new).await;
        if state.version % 100 == 0 {
            assert_eq!(store.load(&id("k")).await.unwrap().as_ref(), Some(&state));
        }
    }
    // Of a process that has never seen the key.
    let fresh = world.store().await;
    assert_eq!(fresh.load(&id("k")).await.unwrap().as_ref(), Some(&state));
    let left = Raw::of(&world).await.seqs("k").await;
    assert!(left.len() <= 2 + 16 + 16, "{} rows are left", left.len());
    assert_eq!((left.first(), left.last()), (Some(&0), Some(&i64::MAX)));
    for node in 1..=3 {
        let log = std::fs::read_to_string(world.cluster.log(node).unwrap()).unwrap();
        let keyspace = world.keyspace.as_str();
        let warned = |line: &&str| line.contains("tombstone") && line.contains(keyspace);
        let warnings: Vec<&str> = log.lines().filter(warned).collect();
        assert!(warnings.is_empty(), "node {node}: {warnings:?}");
    }
}

/// A value that somebody else wrote with a timestamp far ahead must not take the fences of its key there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fences_may_run_ahead_of_the_clock_by_two_days() {
    let Some(world) = World::shared().await else {
        return;
    };
    let two_days = Duration::from_secs(2 * 24 * 60 * 60);
    let ahead = world.store().await.ahead_us_max();
    assert_eq!(ahead.map(Duration::from_micros), Some(two_days));
}
