//! A majority of one datacenter.

use fermata::key::KeyState;
use fermata::store::cassandra::{CassandraOptions, CassandraStore, Majority};

use super::World;
use crate::world::{apply, id, with_entry};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_the_majority_of_one_datacenter_its_name_is_that_of_one() {
    let Some(world) = World::make(&["default"]).await else {
        return;
    };
    let options = |datacenter: &str| CassandraOptions {
        majority: Majority::OneDatacenter,
        datacenter: Some(datacenter.to_owned()),
        ..world.options()
    };
    let store = CassandraStore::open(options("datacenter1")).await.unwrap();
    let none = KeyState::default();
    apply(&store, &id("k"), &none, &with_entry(&none, 1)).await;
    let refused = CassandraStore::open(options("another")).await;
    let error = refused.map(drop).unwrap_err().to_string();
    let words = "no node is in the datacenter \"another\", whose majority is to agree; there are: datacenter1";
    assert!(error.contains(words), "{error}");
}
