//! A majority of one datacenter.

use fermata::key::KeyState;
use fermata::store::cassandra::{CassandraError, CassandraOptions, CassandraStore, Majority};

use super::World;
use super::raw::Raw;
use crate::world::{apply, id, with_entry};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_the_majority_of_one_datacenter_its_name_is_that_of_one() {
    let Some(world) = World::shared().await else {
        return;
    };
    let options = |datacenter: &str| CassandraOptions {
        majority: Majority::OneDatacenter,
        datacenter: Some(datacenter.to_owned()),
        ..world.options()
    };
    let store = CassandraStore::open(options("datacenter1")).await.unwrap();
    let none = KeyState::default();
    apply(&store, &id("local"), &none, &with_entry(&none, 1)).await;
    let refused = CassandraStore::open(options("another")).await;
    let error = refused.map(drop).unwrap_err().to_string();
    let words = "the datacenter \"another\", which local_quorum needs, has no node; the cluster has datacenter1";
    assert!(error.contains(words), "{error}");
}

/// LOCAL_SERIAL and SERIAL do not exclude each other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whose_majority_decides_is_the_setting_of_the_first_replica_until_an_operator_deletes_it() {
    let Some(world) = World::make(&["default"]).await else {
        return;
    };
    let agrees = async |majority| {
        let options = CassandraOptions {
            majority,
            datacenter: Some("datacenter1".to_owned()),
            ..world.options()
        };
        let store = CassandraStore::open(options).await.unwrap();
        store.agree_on_majority().await
    };
    let both = tokio::join!(agrees(Majority::Everywhere), agrees(Majority::Everywhere));
    assert!(matches!(both, (Ok(()), Ok(()))), "{both:?}");
    let refused = agrees(Majority::OneDatacenter).await.unwrap_err();
    assert!(
        matches!(refused, CassandraError::OtherMajority { .. }),
        "{refused}"
    );
    let refused = refused.to_string();
    for words in [
        "use consistency quorum,",
        "set to local_quorum in the datacenter datacenter1:",
    ] {
        assert!(refused.contains(words), "{refused}");
    }
    let (_, statement) = refused.split_once("cqlsh: ").unwrap();
    Raw::of(&world).await.run(statement).await;
    agrees(Majority::OneDatacenter).await.unwrap();
    assert!(agrees(Majority::Everywhere).await.is_err());
}
