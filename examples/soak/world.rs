//! The nodes, the tables on them, and the replicas.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fermata::lock::TableName;
use fermata::store::cassandra::schema::{self, Replication, Schema};
use fermata::store::cassandra::{CassandraOptions, Keyspace};
use tempfile::TempDir;

use super::Failure;
use super::run::SoakOptions;
use super::shared::cassandra::{Cluster, ClusterError};
use super::shared::history::Recorder;
use super::shared::replica::{Replica, Setup};
use super::shared::sprayed::Sprayed;

/// What a log says where a part of a replica crashed.
const PANICS: [&str; 2] = ["panicked at", "ended unexpectedly"];
/// How many such lines are kept.
const PANICS_MAX: usize = 20;

/// What it says where a replica found that it was declared down.
const FENCED: &str = "this replica is fenced for good";

pub struct World {
    pub cluster: Cluster,
    replicas: Vec<Mutex<Replica>>,
    _directory: TempDir,
}

/// Runs what blocks.
pub async fn blocking<T: Send + 'static>(
    what: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Failure> {
    Ok(tokio::task::spawn_blocking(what).await?)
}

impl World {
    /// Tables, and replicas that serve.
    pub async fn with(cluster: Cluster, asked: &SoakOptions) -> Result<Arc<World>, Failure> {
        let keyspace = Keyspace::parse(&format!("soak_{}", std::process::id()))?;
        let tables = Schema {
            keyspace: keyspace.clone(),
            replication: Some(Replication::Simple(super::NODES.try_into()?)),
            cell_tables: Vec::new(),
            row_tables: fermata::store::cassandra::RowTables::new(),
            tables: vec![TableName::default_table()],
        };
        let options = CassandraOptions::new(cluster.contact_points(), keyspace.clone());
        schema::apply(&options, &tables, &|_| {}).await?;
        let directory = tempfile::tempdir()?;
        let secret_file = directory.path().join("secret");
        std::fs::write(&secret_file, "the secret of this soak\n")?;
        let logs = asked.logs.clone();
        let logs = logs.unwrap_or_else(|| directory.path().to_owned());
        std::fs::create_dir_all(&logs)?;
        let program = std::env::current_exe()?;
        let commit = ("FERMATA_CFG_COMMIT".to_owned(), asked.commit.to_string());
        let setups = (0..asked.replicas).map(|number| Setup {
            program: program.clone(),
            contact_points: cluster.contact_points(),
            keyspace: keyspace.to_string(),
            secret_file: secret_file.clone(),
            log: logs.join(format!("replica-{}.log", number + 1)),
            settings: vec![commit.clone()],
        });
        let setups: Vec<Setup> = setups.collect();
        for setup in &setups {
            // Of an earlier soak; each start adds to it.
            std::fs::write(&setup.log, "")?;
        }
        let started = blocking(|| {
            let replicas: Vec<Replica> = setups.into_iter().map(Replica::start).collect();
            for replica in &replicas {
                replica.serving();
            }
            replicas
        });
        Ok(Arc::new(World {
            cluster,
            replicas: started.await?.into_iter().map(Mutex::new).collect(),
            _directory: directory,
        }))
    }

    pub fn replicas(&self) -> usize {
        self.replicas.len()
    }

    /// One replica, numbered from 0. Whoever has it may block.
    pub fn replica(&self, number: usize) -> MutexGuard<'_, Replica> {
        // One that panicked while it was started again is looked at by whoever comes next.
        self.replicas[number]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Clients of all replicas, whose calls are noted.
    pub fn clients(&self, history: &Recorder) -> Sprayed {
        let channels: Vec<_> = (0..self.replicas())
            .map(|number| self.replica(number).channel())
            .collect();
        Sprayed::new(channels.into_iter(), history)
    }

    /// The memory that each replica has resident, in bytes; nothing of one that does not run or is busy.
    pub fn memory(&self) -> Vec<Option<u64>> {
        let of = |replica: &Mutex<Replica>| {
            let pid = replica.try_lock().ok()?.pid()?;
            let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
            let line = status
                .lines()
                .find_map(|line| line.strip_prefix("VmRSS:"))?;
            let kib: u64 = line.trim().trim_end_matches(" kB").trim().parse().ok()?;
            Some(kib * 1024)
        };
        self.replicas.iter().map(of).collect()
    }

    /// What replicas did that they never should: ended by themselves, or panicked.
    pub fn misdeeds(&self) -> Vec<String> {
        let mut misdeeds = Vec::new();
        for (number, replica) in (1..).zip(&self.replicas) {
            // One that is restarted now is looked at by whoever does so.
            let Ok(mut replica) = replica.try_lock() else {
                continue;
            };
            if let Some(status) = replica.ended() {
                let end = replica.log_end();
                misdeeds.push(format!("replica {number} ended by itself: {status}\n{end}"));
            }
        }
        misdeeds
    }

    /// How often each replica has been fenced; nothing of one that is busy.
    pub fn fenced(&self) -> Vec<Option<usize>> {
        let times = |log: &str| log.lines().filter(|line| line.contains(FENCED)).count();
        let of = |replica: &Mutex<Replica>| Some(times(&replica.try_lock().ok()?.log()));
        self.replicas.iter().map(of).collect()
    }

    /// The lines of the replicas' logs that tell of a panic.
    pub fn panics(&self) -> Vec<String> {
        let logs = (0..self.replicas()).map(|number| self.replica(number).log());
        let panicked = |line: &&str| PANICS.iter().any(|words| line.contains(words));
        let mut panics: Vec<String> = logs
            .flat_map(|log| {
                log.lines()
                    .filter(panicked)
                    .map(str::to_owned)
                    .collect::<Vec<_>>()
            })
            .collect();
        panics.truncate(PANICS_MAX);
        panics
    }

    /// Waits until every node sees every other one. Blocks.
    pub fn wait_for_nodes(&self) -> Result<(), ClusterError> {
        self.cluster.wait_until_up(&|_| {})
    }
}
