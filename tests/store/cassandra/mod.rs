//! The store on Cassandra, on three real nodes: what every store promises, and what it promises beyond that.

mod access;
mod command;
#[path = "../../support/driver.rs"]
mod driver;
mod faults;
mod hanging;
mod local;
mod membership;
#[path = "../../support/cql_proxy.rs"]
mod proxy;
mod queue;
mod raw;
mod rows;
#[path = "../../support/cassandra/mod.rs"]
mod support;
mod turns;
mod version;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use fermata::store::cassandra::schema::{self, Replication, Schema};
use fermata::store::cassandra::{CassandraError, CassandraOptions, CassandraStore, Keyspace};
use tokio::sync::{Mutex, Semaphore, SemaphorePermit};

use crate::contract::{Fresh, keeps_its_promises};
use crate::world::table;
use support::Cluster;

/// The tables that a promise of the contract speaks of; making one takes a while.
fn tables_of(promise: &str) -> &'static [&'static str] {
    match promise {
        "keys_and_tables_do_not_touch_each_other" => &["default", "d", "default_2"],
        "live_keys_are_listed_in_order_and_by_page" => &["default", "d", "default_2", "other"],
        _ => &["default"],
    }
}

/// Nodes that make tables one at a time do not agree faster when they are asked for many at once.
static MAKING: Mutex<()> = Mutex::const_new(());

/// How many worlds there may be at once. One in which nodes hang takes the place of all.
const WORLDS: u32 = 1_000;
static ENTRIES: Semaphore = Semaphore::const_new(WORLDS as usize);

/// A keyspace of its own on the cluster that all tests of this program share.
struct World {
    cluster: Arc<Cluster>,
    keyspace: Keyspace,
    _entry: SemaphorePermit<'static>,
}

impl World {
    /// With these tables. `None` where Cassandra is left out.
    async fn make(tables: &[&str]) -> Option<World> {
        World::empty().await?.with(tables).await
    }

    /// The same, while there is no other world: whatever is done to the nodes, nobody else sees it.
    async fn make_alone(tables: &[&str]) -> Option<World> {
        World::of_entries(WORLDS).await?.with(tables).await
    }

    /// Without a keyspace.
    async fn empty() -> Option<World> {
        World::of_entries(1).await
    }

    async fn with(self, tables: &[&str]) -> Option<World> {
        self.apply(tables).await.unwrap();
        Some(self)
    }

    async fn of_entries(entries: u32) -> Option<World> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let entry = ENTRIES.acquire_many(entries).await.unwrap();
        let cluster = tokio::task::spawn_blocking(|| support::for_tests::cluster(3));
        let cluster = cluster.await.unwrap()?;
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("test_{}_{number}", std::process::id());
        let keyspace = Keyspace::parse(&name).unwrap();
        Some(World {
            cluster,
            keyspace,
            _entry: entry,
        })
    }

    async fn apply(&self, tables: &[&str]) -> Result<(), CassandraError> {
        let _one = MAKING.lock().await;
        schema::apply(&self.options(), &self.schema(tables), &|_| {}).await
    }

    fn schema(&self, tables: &[&str]) -> Schema {
        Schema {
            keyspace: self.keyspace.clone(),
            replication: Some(Replication::Simple(3)),
            tables: tables.iter().map(|name| table(name)).collect(),
        }
    }

    fn options(&self) -> CassandraOptions {
        driver::options(self.cluster.contact_points(), self.keyspace.clone())
    }

    async fn store(&self) -> CassandraStore {
        CassandraStore::open(self.options()).await.unwrap()
    }
}

async fn empty_store(promise: &str) -> Option<Fresh<World>> {
    let world = World::make(tables_of(promise)).await?;
    Some(Fresh {
        store: Arc::new(world.store().await).store(),
        _guard: world,
    })
}

keeps_its_promises!(empty_store, shared);
