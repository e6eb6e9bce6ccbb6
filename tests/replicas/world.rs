//! A keyspace of its own on the shared cluster, and replicas on it.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, LazyLock};

use fermata::lock::TableName;
use fermata::store::cassandra::schema::{self, Replication, Schema};
use fermata::store::cassandra::{CassandraOptions, Keyspace};
use tempfile::TempDir;
use tokio::sync::{Mutex, OwnedMutexGuard};

use super::replica::{Replica, Setup};
use super::sprayed::Sprayed;
use super::support::{self, Cluster};

/// The replicas of one service, and where they keep what they know.
pub struct World {
    pub replicas: Vec<Replica>,
    pub keyspace: Keyspace,
    cluster: Arc<Cluster>,
    directory: TempDir,
    /// Nodes are killed and paused: one world at a time.
    _alone: OwnedMutexGuard<()>,
}

impl World {
    /// A keyspace without tables, and no replica; `None` where Cassandra is left out.
    pub async fn without_tables() -> Option<World> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        static ALONE: LazyLock<Arc<Mutex<()>>> = LazyLock::new(Arc::default);
        let alone = Arc::clone(&ALONE).lock_owned().await;
        let cluster = tokio::task::spawn_blocking(|| support::for_tests::cluster(3));
        let cluster = cluster.await.unwrap()?;
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("replicas_{}_{number}", std::process::id());
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(
            directory.path().join("secret"),
            "the secret of these tests\n",
        )
        .unwrap();
        Some(World {
            replicas: Vec::new(),
            keyspace: Keyspace::parse(&name).unwrap(),
            cluster,
            directory,
            _alone: alone,
        })
    }

    /// With tables, and this many replicas that serve.
    pub async fn of(replicas: usize) -> Option<World> {
        let mut world = World::without_tables().await?;
        world.make_tables().await;
        for _ in 0..replicas {
            let replica = Replica::start(world.setup());
            world.replicas.push(replica);
        }
        tokio::task::block_in_place(|| {
            for replica in &world.replicas {
                replica.serving();
            }
        });
        Some(world)
    }

    pub async fn make_tables(&self) {
        let schema = Schema {
            keyspace: self.keyspace.clone(),
            replication: Some(Replication::Simple(3)),
            tables: vec![TableName::default_table()],
        };
        let options = CassandraOptions::new(self.contact_points(), self.keyspace.clone());
        schema::apply(&options, &schema, &|_| {}).await.unwrap();
    }

    /// As [`World::of`], but each replica tells the others an address at which nobody is.
    pub async fn of_strangers(replicas: usize) -> Option<World> {
        let mut world = World::without_tables().await?;
        world.make_tables().await;
        for _ in 0..replicas {
            let mut setup = world.setup();
            let nowhere = ("FERMATA_CFG_PEERS__ADVERTISE", "127.0.0.1:9");
            setup
                .settings
                .push((nowhere.0.to_owned(), nowhere.1.to_owned()));
            world.replicas.push(Replica::start(setup));
        }
        tokio::task::block_in_place(|| {
            for replica in &world.replicas {
                replica.serving();
            }
        });
        Some(world)
    }

    /// Waits until every node sees every other up.
    pub fn wait_for_nodes(&self) {
        self.cluster.wait_until_up(&|_| {}).unwrap();
    }

    pub fn contact_points(&self) -> Vec<String> {
        self.cluster.contact_points()
    }

    /// How the next replica is started.
    pub fn setup(&self) -> Setup {
        Setup {
            contact_points: self.contact_points(),
            keyspace: self.keyspace.to_string(),
            secret_file: self.path("secret"),
            log: self.path(&format!("log-{}", self.replicas.len())),
            settings: Vec::new(),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// A client that makes each call at the next replica.
    pub fn sprayed(&self) -> Sprayed {
        Sprayed::new(self.replicas.iter().map(Replica::channel))
    }
}
