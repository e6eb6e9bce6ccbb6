//! Keyspaces that earlier versions made.

use bytes::Bytes;
use fermata::lock::State;
use fermata::store::cassandra::schema::{self, SchemaError};
use fermata::store::cassandra::{CassandraStore, OpenError};
use fermata::store::{Cell, SessionRow, SessionSwap, Store};

use super::World;
use super::raw::Raw;
use crate::world::{apply, id, replica, replica_row, session, with_entry};

/// What `fermata schema print` printed, and `apply` made, when the version was 1.
const VERSION_1: &str = include_str!("version_1.cql");
/// A value, a session and a replica as the program of that time wrote them. (Its locks had no digest, and cannot be read.)
const VERSION_1_ROWS: &str = include_str!("version_1_rows.cql");

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_keyspace_of_version_1_is_migrated_by_any_number_at_once_and_keeps_its_rows() {
    let Some(world) = World::empty().await else {
        return;
    };
    let raw = Raw::of(&world).await;
    raw.run(VERSION_1).await;
    raw.run(VERSION_1_ROWS).await;
    match CassandraStore::open(world.options()).await {
        Err(error @ OpenError::OldSchema { found: 1, .. }) => {
            let answered = error.to_string();
            assert!(answered.contains("fermata schema apply"), "{answered}");
        }
        other => panic!("{other:?}"),
    }

    let (options, schema) = (world.options(), world.schema(&["default"]));
    let migrate = || schema::apply(&options, &schema, &|_| {});
    let (one, two, three) = tokio::join!(migrate(), migrate(), migrate());
    assert!(
        one.is_ok() && two.is_ok() && three.is_ok(),
        "{one:?} {two:?} {three:?}"
    );
    migrate().await.unwrap();

    let store = world.store().await;
    let value = Some(Bytes::from_static(b"v"));
    let timestamp = 1_001;
    let cell = store.read_data(&id("k")).await.unwrap();
    assert_eq!(cell, Some(Cell { value, timestamp }));
    let kept_session = SessionRow {
        disconnect_grace_ms: 0,
        ..session(1, 1, true)
    };
    let found = store.load_session(kept_session.id).await.unwrap();
    assert_eq!(found, Some(kept_session));
    let changed = session(1, 2, true);
    store.swap_session(1, &changed).await;
    let found = store.load_session(changed.id).await.unwrap();
    assert_eq!(found, Some(changed));
    let first = with_entry(&State::default(), 6);
    apply(&store, &id("k"), &State::default(), &first).await;
    assert_eq!(store.load(&id("k")).await.unwrap(), Some(first));
    // A replica of that time gave no heartbeats; it is not one to wait for.
    assert_eq!(store.list_replicas().await.unwrap(), []);
    store.announce_replica(&replica_row(4)).await.unwrap();
    store.heartbeat(replica(4), 1, false).await.unwrap();
    assert_eq!(store.list_replicas().await.unwrap()[0].heartbeat, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tables_that_an_earlier_program_began_to_make_are_completed() {
    let Some(world) = World::empty().await else {
        return;
    };
    let raw = Raw::of(&world).await;
    let begun = VERSION_1.split_inclusive(';').take(4);
    raw.run(&begun.collect::<String>()).await;
    assert!(matches!(
        CassandraStore::open(world.options()).await,
        Err(OpenError::NoSchema { .. })
    ));
    world.apply(&["default"]).await.unwrap();
    let store = world.store().await;
    store.announce_replica(&replica_row(4)).await.unwrap();
    assert_eq!(store.list_replicas().await.unwrap().len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_column_that_joined_the_version_after_a_keyspace_was_made_is_added() {
    let Some(world) = World::make(&["default"]).await else {
        return;
    };
    let raw = Raw::of(&world).await;
    raw.run("ALTER TABLE \"@KEYSPACE@\".\"sessions\" DROP \"disconnect_grace\"")
        .await;
    world.apply(&["default"]).await.unwrap();
    let store = world.store().await;
    let open = session(1, 1, true);
    let opened = store.swap_session(0, &open).await;
    assert!(matches!(opened, SessionSwap::Applied), "{opened:?}");
    assert_eq!(store.load_session(open.id).await.unwrap(), Some(open));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_keyspace_of_a_later_version_is_left_alone() {
    let Some(world) = World::make(&["default"]).await else {
        return;
    };
    let raw = Raw::of(&world).await;
    raw.run("UPDATE \"@KEYSPACE@\".\"schema_version\" SET \"version\" = 4 WHERE \"part\" = 'locks' IF EXISTS")
        .await;
    assert!(matches!(
        CassandraStore::open(world.options()).await,
        Err(OpenError::OtherSchema { found: 4, .. })
    ));
    assert!(matches!(
        world.apply(&["default", "another"]).await,
        Err(SchemaError::Newer { found: 4, .. })
    ));
    let tables = "SELECT gc_grace_seconds FROM system_schema.tables \
                  WHERE keyspace_name = '@KEYSPACE@' AND table_name = 'lock_another'";
    assert_eq!(raw.numbers(tables).await, [0; 0]);
}
