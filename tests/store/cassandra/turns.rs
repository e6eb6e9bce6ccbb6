//! A flood of transactions waits at home.

use std::cell::Cell;
use std::num::NonZeroUsize;
use std::time::Duration;

use fermata::key::KeyState;
use fermata::store::cassandra::{CassandraOptions, CassandraStore};
use fermata::store::{KeyStore, StoreHealth, Swap};
use futures_util::future::join_all;

use super::World;
use crate::world::{id, with_entry};

#[tokio::test]
async fn no_more_transactions_are_in_flight_than_may_be_and_all_have_their_turn() {
    const KEYS: usize = 40;
    const MAX: u64 = 3;
    let Some(world) = World::shared().await else {
        return;
    };
    let store = CassandraStore::open(CassandraOptions {
        transactions_max: NonZeroUsize::new(MAX as usize).unwrap(),
        // What takes longer than a sixth of it makes room for others.
        request_timeout: Duration::from_secs(60),
        ..world.options()
    });
    let store = store.await.unwrap();
    let old = KeyState::default();
    // Prepares the statement.
    let (first, new) = (id("first turn"), with_entry(&old, 1));
    let prepared = store.compare_and_swap(&first, &old, &new).await;
    assert!(matches!(prepared, Swap::Applied));

    let before = store.counts().transactions;
    let (done, most) = (Cell::new(0), Cell::new(0));
    // All in one task: between its polls nothing is begun or ends.
    let swaps = (0..KEYS).map(|n| {
        let (store, old, done, most) = (&store, &old, &done, &most);
        async move {
            let (key, new) = (id(&format!("turn {n}")), with_entry(old, 100 + n as u128));
            let outcome = store.compare_and_swap(&key, old, &new).await;
            let begun = store.counts().transactions - before;
            most.set(most.get().max(begun - done.get()));
            done.set(done.get() + 1);
            outcome
        }
    });
    for (n, outcome) in join_all(swaps).await.into_iter().enumerate() {
        assert!(matches!(outcome, Swap::Applied), "key {n}: {outcome:?}");
    }
    assert_eq!(most.get(), MAX);
}
