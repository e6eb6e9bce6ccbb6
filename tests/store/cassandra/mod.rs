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

use fermata::store::CellStore;
use fermata::store::cassandra::schema::{self, Replication, Schema};
use fermata::store::cassandra::{
    CassandraError, CassandraOptions, CassandraStore, Keyspace, Quorum, RowTable, RowTables,
};
use tokio::sync::{Mutex, MutexGuard, OnceCell, Semaphore, SemaphorePermit};

use crate::contract::{CELLS, Fresh, cells_keep_their_promises, keeps_its_promises};
use crate::world::table;
use support::Cluster;

/// Nodes that make tables one at a time do not agree faster when they are asked for many at once.
static MAKING: Mutex<()> = Mutex::const_new(());

/// How many worlds there may be at once. One in which nodes hang takes the place of all.
const WORLDS: u32 = 1_000;
static ENTRIES: Semaphore = Semaphore::const_new(WORLDS as usize);

/// A keyspace of its own on the cluster that all tests of this program share.
pub struct World {
    cluster: Arc<Cluster>,
    keyspace: Keyspace,
    _entry: SemaphorePermit<'static>,
}

impl World {
    /// With these tables. `None` where Cassandra is left out.
    async fn make(tables: &[&str]) -> Option<World> {
        World::empty().await?.with(tables).await
    }

    /// A place in the keyspace that all share who keep to keys, replicas and sessions of their own: to make one takes a
    /// second.
    async fn shared() -> Option<World> {
        static KEYSPACE: OnceCell<Keyspace> = OnceCell::const_new();
        let world = World::empty().await?;
        let made = KEYSPACE.get_or_init(|| async {
            world.apply(&["default", CELLS]).await.unwrap();
            world.keyspace.clone()
        });
        let keyspace = made.await.clone();
        Some(World { keyspace, ..world })
    }

    /// A keyspace of its own, while there is no other world: whatever is done to the nodes, nobody else sees it.
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

    /// The table [`CELLS`] is one of cells.
    fn schema(&self, tables: &[&str]) -> Schema {
        let tables = |of_cells: bool| {
            let chosen = tables.iter().filter(|name| (**name == CELLS) == of_cells);
            chosen.map(|name| table(name)).collect()
        };
        Schema {
            keyspace: self.keyspace.clone(),
            replication: Some(Replication::Simple(3)),
            tables: tables(false),
            cell_tables: tables(true),
            row_tables: RowTables::new(),
        }
    }

    fn options(&self) -> CassandraOptions {
        driver::options(self.cluster.contact_points(), self.keyspace.clone())
    }

    async fn store(&self) -> CassandraStore {
        CassandraStore::open(self.options()).await.unwrap()
    }
}

/// All rows of replicas are of one partition, on which transactions get in the way of each other: one promise at a time.
static REPLICAS: Mutex<()> = Mutex::const_new(());

/// Those that list keys or sessions have a keyspace of their own.
async fn store_for(promise: &str) -> Option<Fresh<(World, Option<MutexGuard<'static, ()>>)>> {
    let world = match promise {
        "keys_and_tables_do_not_touch_each_other_and_live_keys_are_listed" => {
            World::make(&["default", "d", "default_2", "other"]).await?
        }
        "sessions_are_listed_in_order_and_by_page" => World::make(&["default"]).await?,
        _ => World::shared().await?,
    };
    let is_of_replicas = ["replica", "life", "heartbeat"].map(|word| promise.contains(word));
    let turn = match is_of_replicas.contains(&true) {
        true => Some(REPLICAS.lock().await),
        false => None,
    };
    Some(Fresh {
        store: Arc::new(world.store().await).store(),
        _guard: (world, turn),
    })
}

keeps_its_promises!(store_for, shared);

pub async fn cells_for() -> Option<(Arc<dyn CellStore>, World)> {
    let world = World::shared().await?;
    Some((Arc::new(world.store().await).cells(), world))
}

/// The same cells, as a table of a user.
pub async fn rows_for() -> Option<(Arc<dyn CellStore>, World)> {
    let world = World::shared().await?;
    let row = RowTable {
        name: format!("{}.cells_{CELLS}", world.keyspace).parse().unwrap(),
        quorum: Quorum::Each,
    };
    let rows = RowTables::from([(table(CELLS), Arc::new(row))]);
    let store = world.store().await.with_row_tables(rows);
    Some((Arc::new(store).cells(), world))
}

cells_keep_their_promises!(super::cells_for);
