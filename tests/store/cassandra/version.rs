//! Keyspaces that are made, were half made, or are those of another version.

use std::time::Duration;

use fermata::key::KeyState;
use fermata::store::cassandra::schema;
use fermata::store::cassandra::{CassandraError, CassandraStore, RestoredError, restored};
use fermata::store::{ClusterStore, KeyStore};

use super::World;
use super::raw::Raw;
use crate::world::{apply, id, replica_row, with_entry};

/// Makes one entry, and a replica.
async fn works(store: &CassandraStore) {
    let first = with_entry(&KeyState::default(), 6);
    apply(store, &id("k"), &KeyState::default(), &first).await;
    assert_eq!(store.load(&id("k")).await.unwrap(), Some(first));
    store.announce_replica(&replica_row(4)).await.unwrap();
    assert_eq!(store.list_replicas().await.unwrap(), [replica_row(4)]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tables_that_somebody_began_to_make_are_completed() {
    let Some(world) = World::empty().await else {
        return;
    };
    let begun = world.schema(&["default"]).statements();
    Raw::of(&world).await.run(&begun[..3].join(";")).await;
    assert!(matches!(
        CassandraStore::open(world.options()).await,
        Err(CassandraError::NoSchema { .. })
    ));
    world.apply(&["default"]).await.unwrap();
    works(&world.store().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_keyspace_of_another_version_is_left_alone() {
    let Some(world) = World::make(&["default"]).await else {
        return;
    };
    let raw = Raw::of(&world).await;
    for other in [schema::VERSION - 1, schema::VERSION + 1] {
        raw.run(&format!(
            "UPDATE \"@KEYSPACE@\".\"schema_version\" SET \"version\" = {other} WHERE \"part\" = 'locks' IF EXISTS"
        ))
        .await;
        let refused = CassandraStore::open(world.options()).await.unwrap_err();
        assert!(
            matches!(refused, CassandraError::OtherSchema { found, .. } if found == other),
            "{refused:?}"
        );
        let said = format!("has schema version {other}, but this program works with");
        assert!(refused.to_string().contains(&said), "{refused}");
        let refused = world.apply(&["default", "another"]).await.unwrap_err();
        assert!(
            matches!(refused, CassandraError::OtherSchema { found, .. } if found == other),
            "{refused:?}"
        );
        assert!(refused.to_string().contains(&said), "{refused}");
        assert!(!raw.tables().await.contains(&"lock_another".to_owned()));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_restore_fences_go_on_above_all_that_were_given_out() {
    let Some(world) = World::make(&["default"]).await else {
        return;
    };
    let store = world.store().await;
    assert_eq!(store.fence_floor().await.unwrap(), 0);
    let now_us = store.clock_us().await.unwrap();
    let floor = restored(world.options(), None).await.unwrap();
    assert!(floor > now_us + 3_600_000_000, "{floor} {now_us}");
    assert_eq!(store.fence_floor().await.unwrap(), floor);
    // It only rises: fences ran ahead of it as of a clock.
    let above = floor + 9_000_000_000;
    let raised = restored(world.options(), Some(above)).await.unwrap();
    assert_eq!(raised, above + 1);
    let again = restored(world.options(), Some(7)).await.unwrap();
    assert_eq!(again, raised + 7_200_000_000);
    assert_eq!(world.store().await.fence_floor().await.unwrap(), again);
    let high = restored(world.options(), Some(now_us * 1_000)).await;
    assert!(
        matches!(high, Err(RestoredError::TooHigh { .. })),
        "{high:?}"
    );

    // One whose row came back with the tables writes no heartbeat, and is declared down.
    store.announce_replica(&replica_row(4)).await.unwrap();
    restored(world.options(), None).await.unwrap();
    // Not while a replica works on it.
    let row = replica_row(5);
    store.announce_replica(&row).await.unwrap();
    let heartbeats = tokio::spawn(async move {
        for heartbeat in row.heartbeat + 1.. {
            store.heartbeat(row.id, heartbeat).await.unwrap();
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    });
    let running = restored(world.options(), None).await;
    assert!(
        matches!(running, Err(RestoredError::Running(_))),
        "{running:?}"
    );
    heartbeats.abort();
}
