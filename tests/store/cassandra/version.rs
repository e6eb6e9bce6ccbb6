//! Keyspaces that are made, were half made, or are those of another version.

use std::sync::Arc;
use std::time::Duration;

use fermata::key::KeyState;
use fermata::store::cassandra::health::Weight;
use fermata::store::cassandra::schema::{self, Schema};
use fermata::store::cassandra::{
    CassandraError, CassandraStore, Quorum, RestoredError, RowTable, RowTables, restored,
};
use fermata::store::{ClusterStore, KeyStore};

use super::World;
use super::raw::Raw;
use crate::world::{apply, id, replica_row, table, with_entry};

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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_table_with_rows_of_a_user_is_checked_and_not_made() {
    let Some(world) = World::make(&["default"]).await else {
        return;
    };
    Raw::of(&world)
        .await
        .run(
            "CREATE TABLE \"@KEYSPACE@\".good (key text, column1 text, value blob, PRIMARY KEY (key, column1));\
             CREATE TABLE \"@KEYSPACE@\".bad (key blob, column1 text, value blob, PRIMARY KEY (key, column1));\
             CREATE TABLE \"@KEYSPACE@\".torn (key text, column1 text, value blob, PRIMARY KEY (key, column1)) WITH read_repair = 'NONE'",
        )
        .await;
    let store = world.store().await;
    let mut found = Vec::new();
    for name in ["good", "bad", "gone", "torn"] {
        let row = RowTable {
            name: format!("{}.{name}", world.keyspace).parse().unwrap(),
            quorum: Quorum::All,
        };
        let row_tables = RowTables::from([(table("accounts"), Arc::new(row))]);
        let schema = Schema {
            row_tables,
            ..world.schema(&["default"])
        };
        let findings = store
            .check(&world.options(), &schema, "apply")
            .await
            .unwrap();
        let wrong = findings.iter().filter(|one| one.weight == Weight::Wrong);
        found.push(wrong.map(ToString::to_string).collect::<String>());
    }
    assert_eq!(found[0], "");
    for (found, said) in [
        (&found[1], "another layout"),
        (&found[2], "there is no table"),
        (&found[3], "read_repair = 'NONE'"),
    ] {
        assert!(found.contains(said), "{found}");
        assert!(found.contains("tables.accounts.row_table"), "{found}");
    }
    assert!(found[1].contains("key partition_key blob"), "{}", found[1]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_replicas_serve_a_table_by_one_protocol() {
    let Some(world) = World::make(&["default"]).await else {
        return;
    };
    let (one, other) = (world.store().await, world.store().await);
    let accounts = table("accounts");
    one.agree_on_protocol(&accounts, "music").await.unwrap();
    other.agree_on_protocol(&accounts, "music").await.unwrap();
    let refused = other
        .agree_on_protocol(&accounts, "bakery")
        .await
        .unwrap_err();
    assert!(
        matches!(refused, CassandraError::OtherProtocol { .. }),
        "{refused:?}"
    );
    let said = refused.to_string();
    assert!(
        said.contains("by the protocol music") && said.contains("set tables.accounts"),
        "{said}"
    );
    // Another table is another matter.
    other
        .agree_on_protocol(&table("orders"), "bakery")
        .await
        .unwrap();
}
