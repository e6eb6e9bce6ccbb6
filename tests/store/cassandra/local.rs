//! A majority of one datacenter.

use fermata::key::KeyState;
use fermata::store::KeyStore as _;
use fermata::store::cassandra::{CassandraOptions, CassandraStore, Majority};

use super::World;
use crate::world::{apply, id, with_entry};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_the_majority_of_one_datacenter_nodes_of_no_other_one_are_asked() {
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
    match CassandraStore::open(options("another")).await {
        Err(error) => println!("open: {error}"),
        Ok(store) => {
            let none = KeyState::default();
            let swap = store
                .compare_and_swap(&id("m"), &none, &with_entry(&none, 1))
                .await;
            println!("swap: {swap:?}");
            println!("load: {:?}", store.load(&id("m")).await);
        }
    }
}
