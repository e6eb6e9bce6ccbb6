//! A keyspace of its own on the shared cluster, and replicas on it.

use std::io::Write as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, LazyLock};

use fermata::lock::TableName;
use fermata::store::cassandra::Keyspace;
use fermata::store::cassandra::schema::{self, Replication, Schema};
use tempfile::TempDir;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::certificates::Authority;
use super::driver;
use super::history::{CheckedAtEnd, Recorder};
use super::replica::{Replica, Setup};
use super::sprayed::Sprayed;
use super::support::{self, Cluster};

/// The replicas of one service, and where they keep what they know.
pub struct World {
    pub replicas: Vec<Replica>,
    pub keyspace: Keyspace,
    /// What clients were answered; judged when the world goes.
    pub history: Recorder,
    _checked: CheckedAtEnd,
    cluster: Arc<Cluster>,
    directory: TempDir,
    _room: Room,
}

/// What worlds share: there are two at once in which clients count, or three in which they mostly wait.
const ALL: u32 = 6;
const COUNTS: u32 = ALL / 2;
const WAITS: u32 = ALL / 3;
static ROOM: LazyLock<Arc<Semaphore>> = LazyLock::new(|| Arc::new(Semaphore::new(ALL as usize)));

/// Who has all of it has the only world: nodes may be killed or paused.
pub type Room = OwnedSemaphorePermit;

async fn room(many: u32) -> Room {
    Arc::clone(&ROOM).acquire_many_owned(many).await.unwrap()
}

/// Waits until there is no other world. Blocks.
pub fn alone() -> Room {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    runtime.block_on(room(ALL))
}

impl World {
    /// A keyspace without tables, and no replica; `None` where Cassandra is left out.
    pub async fn without_tables() -> Option<World> {
        World::in_room(WAITS).await
    }

    async fn in_room(many: u32) -> Option<World> {
        World::on(room(many).await, || support::for_tests::cluster(3)).await
    }

    async fn on(room: Room, cluster: fn() -> Option<Arc<Cluster>>) -> Option<World> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let cluster = tokio::task::spawn_blocking(cluster).await.unwrap()?;
        // Past libtest, which hides what passing tests print.
        let thread = std::thread::current();
        let test = thread.name().unwrap_or("a test");
        let _ = writeln!(std::io::stderr(), "replicas: {test}");
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("replicas_{}_{number}", std::process::id());
        let mut directory = tempfile::tempdir().unwrap();
        if std::env::var_os("FERMATA_KEEP_LOGS").is_some() {
            directory.disable_cleanup(true);
            eprintln!("logs of replicas: {}", directory.path().display());
        }
        std::fs::write(
            directory.path().join("secret"),
            "the secret of these tests\n",
        )
        .unwrap();
        let history = Recorder::new();
        Some(World {
            replicas: Vec::new(),
            _checked: history.checked_at_end("replicas on Cassandra"),
            history,
            keyspace: Keyspace::parse(&name).unwrap(),
            cluster,
            directory,
            _room: room,
        })
    }

    /// With tables, and this many replicas that serve.
    pub async fn of(replicas: usize) -> Option<World> {
        let world = World::in_room(COUNTS).await?;
        Some(world.with(replicas, &[]).await)
    }

    /// The same for a test that mostly waits.
    pub async fn that_waits(replicas: usize) -> Option<World> {
        let world = World::in_room(WAITS).await?;
        Some(world.with(replicas, &[]).await)
    }

    /// The same, while there is no other world: whatever is done to the nodes, nobody else sees it.
    pub async fn with_nodes_of_its_own(replicas: usize) -> Option<World> {
        let world = World::in_room(ALL).await?;
        Some(world.with(replicas, &[]).await)
    }

    /// The same, on nodes that nobody else uses, each in a group of its own.
    pub async fn of_alone(alone: Room, replicas: usize) -> Option<World> {
        let world = World::on(alone, || support::for_tests::cluster_alone(3)).await?;
        Some(world.with(replicas, &[]).await)
    }

    async fn with(mut self, replicas: usize, settings: &[(&str, &str)]) -> World {
        self.make_tables().await;
        for _ in 0..replicas {
            let mut setup = self.setup();
            let settings = settings
                .iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
            setup.settings.extend(settings);
            self.replicas.push(Replica::start(setup));
        }
        tokio::task::block_in_place(|| {
            for replica in &self.replicas {
                replica.serving();
            }
        });
        self
    }

    /// Replicas with a table for each leaderless protocol, while there is no other world.
    pub async fn of_leaderless(replicas: usize) -> Option<World> {
        let world = World::in_room(ALL).await?;
        world.apply(&["music", "bakery", "rows"]).await;
        // The rows are in a table of the user, with the layout of cells.
        let row_table = format!("{}.cells_rows", world.keyspace);
        let settings = [
            ("FERMATA_CFG_TABLES__MUSIC__PROTOCOL", "music"),
            ("FERMATA_CFG_TABLES__BAKERY__PROTOCOL", "bakery"),
            ("FERMATA_CFG_TABLES__BAKERY__ALLOW_UNFENCED", "true"),
            ("FERMATA_CFG_TABLES__ROWS__PROTOCOL", "column-prefix"),
            ("FERMATA_CFG_TABLES__ROWS__ALLOW_UNFENCED", "true"),
            ("FERMATA_CFG_TABLES__ROWS__ROW_TABLE", &row_table),
        ];
        Some(world.with(replicas, &settings).await)
    }

    /// A client of all replicas whose calls no history is made of.
    pub fn sprayed_unjudged(&self) -> Sprayed {
        Sprayed::new(self.replicas.iter().map(Replica::channel), &Recorder::new())
    }

    pub async fn make_tables(&self) {
        self.apply(&[]).await;
    }

    async fn apply(&self, cell_tables: &[&str]) {
        let cell_tables = cell_tables.iter().map(|name| TableName::parse(name));
        let schema = Schema {
            keyspace: self.keyspace.clone(),
            replication: Some(Replication::Simple(3)),
            cell_tables: cell_tables.collect::<Result<_, _>>().unwrap(),
            row_tables: fermata::store::cassandra::RowTables::new(),
            tables: vec![TableName::default_table()],
        };
        let options = driver::options(self.contact_points(), self.keyspace.clone());
        schema::apply(&options, &schema, &|_| {}).await.unwrap();
    }

    /// As [`World::of`], but whatever is decided is committed before it is answered.
    pub async fn of_write_through(replicas: usize) -> Option<World> {
        let world = World::in_room(COUNTS).await?;
        let commit = [("FERMATA_CFG_COMMIT", "write-through")];
        Some(world.with(replicas, &commit).await)
    }

    /// As [`World::of`], but the replicas send spans to this collector, if their callers want it.
    pub async fn of_traced(replicas: usize, collector: &str) -> Option<World> {
        let mut world = World::in_room(COUNTS).await?;
        world.make_tables().await;
        for at in 0..replicas {
            let mut setup = world.setup();
            let name = format!("replica-{at}");
            let settings = [
                ("FERMATA_CFG_TRACES__ENDPOINT", collector),
                ("FERMATA_CFG_TRACES__ONE_IN", "1000000"),
                ("FERMATA_CFG_PEERS__NAME", &name),
            ];
            let settings = settings.map(|(name, value)| (name.to_owned(), value.to_owned()));
            setup.settings.extend(settings);
            world.replicas.push(Replica::start(setup));
        }
        tokio::task::block_in_place(|| {
            for replica in &world.replicas {
                replica.serving();
            }
        });
        Some(world)
    }

    /// As [`World::of`], but each replica tells the others an address at which nobody is.
    pub async fn of_strangers(replicas: usize) -> Option<World> {
        let world = World::in_room(COUNTS).await?;
        let nowhere = [("FERMATA_CFG_PEERS__ADVERTISE", "127.0.0.1:9")];
        Some(world.with(replicas, &nowhere).await)
    }

    /// As [`World::of`], but the replicas show certificates to each other, and encrypt.
    pub async fn of_encrypted(replicas: usize, authority: &Authority) -> Option<World> {
        let world = World::in_room(COUNTS).await?;
        let host = "127.0.0.1";
        let shown = authority.issue(host, Some(host));
        let files = [
            ("FERMATA_CFG_PEERS__TLS__CA_FILE", authority.file()),
            ("FERMATA_CFG_PEERS__TLS__CERT_FILE", shown.certificate_file),
            ("FERMATA_CFG_PEERS__TLS__KEY_FILE", shown.key_file),
        ];
        let settings = files
            .each_ref()
            .map(|(name, file)| (*name, file.to_str().unwrap()));
        Some(world.with(replicas, &settings).await)
    }

    /// Waits until every node sees every other up.
    pub fn wait_for_nodes(&self) {
        self.cluster.wait_until_up(&|_| {}).unwrap();
    }

    /// Where the log of a node is.
    pub fn node_log(&self, node: usize) -> PathBuf {
        self.cluster.log(node).unwrap()
    }

    pub fn contact_points(&self) -> Vec<String> {
        self.cluster.contact_points()
    }

    /// How the next replica is started.
    pub fn setup(&self) -> Setup {
        Setup {
            program: env!("CARGO_BIN_EXE_fermata").into(),
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

    /// A client of one replica only.
    pub fn at(&self, replica: usize) -> Sprayed {
        let channel = self.replicas[replica].channel();
        Sprayed::new(std::iter::once(channel), &self.history)
    }

    /// A client that makes each call at the next replica.
    pub fn sprayed(&self) -> Sprayed {
        Sprayed::new(self.replicas.iter().map(Replica::channel), &self.history)
    }
}
