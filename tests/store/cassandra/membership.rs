//! The rows of the replicas, which every replica reads in order to go on, and sweeps: what each needs of the nodes.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::time::Duration;

use fermata::key::KeyState;
use fermata::lock::{Key, TableName};
use fermata::store::cassandra::schema::{self, Replication, Schema};
use fermata::store::cassandra::{CassandraOptions, CassandraStore};
use fermata::store::{
    ClusterStore, ENDED_REPLICAS_MAX, KeyStore, REPLICAS_MAX, ReplicaState, StateSwap, StoreError,
};
use futures_util::StreamExt;
use tokio::task::block_in_place;

use super::World;
use super::hanging::Paused;
use super::raw::Raw;
use crate::world::{apply, id, replica, replica_row, with_entry};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_replicas_are_listed_however_many_pages_they_take_and_too_many_are_an_error() {
    let Some(world) = World::make(&["default"]).await else {
        return;
    };
    let options = CassandraOptions {
        page_rows: 500,
        ..world.options()
    };
    let store = CassandraStore::open(options).await.unwrap();
    let raw = Raw::of(&world).await;
    let most = REPLICAS_MAX as u128;
    futures_util::stream::iter(1..most)
        .for_each_concurrent(64, |number| raw.put_replica(replica_row(number)))
        .await;
    store.announce_replica(&replica_row(0)).await.unwrap();
    let listed = store.list_replicas().await.unwrap();
    assert_eq!(listed.len(), REPLICAS_MAX);
    assert!(listed.is_sorted_by_key(|row| row.id));
    assert_eq!(listed[1], replica_row(1), "as the store itself writes one");
    // One that has no state is none.
    store.heartbeat(replica(most), 1).await.unwrap();
    assert_eq!(store.list_replicas().await.unwrap().len(), REPLICAS_MAX);
    raw.put_replica(replica_row(most)).await;
    let listed = store.list_replicas().await;
    assert!(matches!(listed, Err(StoreError::Damaged(_))), "{listed:?}");
}

/// As processes leave them that start and end again within less than it takes to delete the row of another one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn however_many_replicas_ended_the_others_go_on_and_each_start_deletes_some_of_their_rows() {
    let Some(world) = World::make(&["default"]).await else {
        return;
    };
    let store = world.store().await;
    let raw = Raw::of(&world).await;
    let ended = REPLICAS_MAX as u128 + 1_000;
    raw.put_ended(10..10 + ended).await;
    let rows = async || {
        raw.count("SELECT \"id\" FROM \"@KEYSPACE@\".\"membership\"")
            .await
    };
    let before = rows().await;
    store.announce_replica(&replica_row(3)).await.unwrap();
    assert!(rows().await < before);
    let listed = store.list_replicas().await.unwrap();
    assert_eq!(listed.len(), ENDED_REPLICAS_MAX + 1);
    assert!(listed.contains(&replica_row(3)));
}

/// As when a replica slept for so long that what says that its row was deleted is gone as well.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_late_heartbeat_leaves_is_no_replica_and_is_cleaned_up_by_the_next_that_starts() {
    let Some(world) = World::make(&["default"]).await else {
        return;
    };
    let store = world.store().await;
    let raw = Raw::of(&world).await;
    let ids = "SELECT \"ttl\", \"id\" FROM \"@KEYSPACE@\".\"membership\"";
    store.announce_replica(&replica_row(3)).await.unwrap();
    for heartbeat in [700, 701] {
        store.heartbeat(replica(4), heartbeat).await.unwrap();
    }
    assert_eq!(store.list_replicas().await.unwrap(), [replica_row(3)]);
    let state = store
        .swap_state(replica(4), ReplicaState::Up(1), ReplicaState::Up(2))
        .await;
    assert!(matches!(state, StateSwap::Conflict(None)), "{state:?}");
    assert_eq!(raw.count(ids).await, 2);

    store.announce_replica(&replica_row(5)).await.unwrap();
    assert_eq!(raw.count(ids).await, 2);
    let listed = store.list_replicas().await.unwrap();
    assert_eq!(listed, [replica_row(3), replica_row(5)]);
    // Nor does it come back by what it sends later.
    store.heartbeat(replica(4), 702).await.unwrap();
    assert_eq!(raw.count(ids).await, 2);
}

/// Where each row has one copy, and one of three nodes is paused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_range_that_cannot_be_read_hides_neither_the_replicas_nor_what_other_ranges_keep() {
    const KEYS: u64 = 30;
    let Some(world) = World::of_entries(super::WORLDS).await else {
        return;
    };
    let table = TableName::default_table();
    let options = CassandraOptions {
        request_timeout: Duration::from_millis(1_500),
        ..world.options()
    };
    let schema = Schema {
        replication: Some(Replication::Simple(1)),
        ..world.schema(&["default"])
    };
    schema::apply(&options, &schema, &|_| {}).await.unwrap();
    let store = CassandraStore::open(options).await.unwrap();
    store.announce_replica(&replica_row(3)).await.unwrap();
    for number in 0..KEYS {
        let (new, made) = (KeyState::default(), with_entry(&KeyState::default(), 1));
        apply(&store, &id(&format!("k{number}")), &new, &made).await;
    }
    let swept = async || {
        let shown = Mutex::new(BTreeSet::new());
        let visit = |key: Key, _| {
            shown.lock().unwrap().insert(key);
        };
        let swept = store.each_live(&table, &visit).await;
        (swept, shown.into_inner().unwrap())
    };
    let (whole, all) = swept().await;
    assert!(whole.is_ok() && all.len() as u64 == KEYS, "{whole:?}");
    assert_eq!(store.list_replicas().await.unwrap().len(), 1);

    let (mut hidden, mut unlisted) = (Vec::new(), 0);
    for node in 1..=3 {
        let paused = Paused::node(node);
        unlisted += usize::from(store.list_replicas().await.is_err());
        let (swept, shown) = swept().await;
        assert!(swept.is_err());
        println!(
            "node {node} is paused: {} keys are shown: {swept:?}",
            shown.len()
        );
        hidden.extend(all.difference(&shown).cloned());
        drop(paused);
        block_in_place(|| world.cluster.wait_until_up(&|_| {})).unwrap();
    }
    assert_eq!(
        unlisted, 1,
        "only the node that keeps the replicas is needed for them"
    );
    // Each key only by the node that keeps it.
    hidden.sort();
    assert_eq!(hidden, all.into_iter().collect::<Vec<_>>());
}
