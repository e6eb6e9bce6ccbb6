//! The flags that put another system beside the service.

use serde::Serialize;

use super::System;
use crate::cli::cluster::{self, ClusterFlags, SettingsFile};
use crate::cli::failure::Failure;
use crate::config::{Config, Table};
use crate::lock::TableName;
use crate::store::cassandra::CassandraOptions;

/// What can be measured beside the service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Other {
    /// MUSIC's statements for a section
    Music,
}

#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Beside another system")]
pub(super) struct BaselineArgs {
    /// Measure this on the same Cassandra as well, the two in turns, on keys of their own
    ///
    /// `music` is the sequence of statements that MUSIC needs for a section: the guard read at ONE, a transaction
    /// for the lockRef, a peek at ONE, the value read and written at QUORUM, a transaction that deletes the
    /// lockRef. Its tables, music_…, are made in the keyspace that the settings for Cassandra name, and dropped in
    /// the end. Name the nodes that the service stores in: nobody checks that.
    ///
    /// Three things favour it: its statements go from this process straight to Cassandra, with no service in
    /// between (--in-process takes that away); what its published code sends beyond them is left out; and its keys
    /// are new in each round.
    #[arg(long, value_name = "SYSTEM", value_enum, hide_possible_values = true)]
    baseline: Option<Other>,

    /// Do fermata's sections in this process too, with a replica of its own and no network to it
    ///
    /// So both sides go from this process straight to Cassandra. The replica is a whole one, with the settings for
    /// Cassandra below, those of the file and those of the environment: calls pass all that those of a user pass,
    /// except sockets and HTTP/2. No server is asked, and none needs to run: best is that no other replica does on
    /// this keyspace. Its tables must be there, see `fermata schema apply`.
    #[arg(long, requires = "baseline", conflicts_with = "connections")]
    in_process: bool,

    /// How many turns each of the two has, for each number of workers; a turn is a warm-up and a duration
    #[arg(long, value_name = "N", default_value = "5", requires = "baseline",
          value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,

    #[command(flatten)]
    file: SettingsFile,

    #[command(flatten)]
    cluster: Box<ClusterFlags>,
}

/// The other system, and how often.
#[derive(Debug, Clone)]
pub(super) struct Baseline {
    pub(super) cluster: CassandraOptions,
    pub(super) rounds: u32,
    /// What the replica in this process is made of, where fermata's sections are done by one.
    pub(super) replica: Option<Box<Config>>,
}

/// What a report says of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct BaselineSettings {
    pub(super) system: System,
    pub(super) contact_points: Vec<String>,
    pub(super) keyspace: String,
    pub(super) rounds: u32,
}

impl BaselineArgs {
    /// `None` where only the service is measured.
    pub(super) fn baseline(self) -> Result<Option<Baseline>, Failure> {
        let Some(Other::Music) = self.baseline else {
            return match *self.cluster == ClusterFlags::default() {
                true => Ok(None),
                false => Err(Failure::usage("settings for Cassandra are for --baseline")),
            };
        };
        let config = match self.in_process {
            true => self.cluster.load_replica(self.file)?,
            false => self.cluster.load(self.file)?,
        };
        Ok(Some(Baseline {
            cluster: cluster::options(&config.store.cassandra)?,
            rounds: self.rounds,
            replica: self.in_process.then(|| Box::new(config)),
        }))
    }
}

impl Baseline {
    /// Has the replica in this process, where there is one, serve this table as well; an empty name is the default.
    pub(super) fn serve(&mut self, table: &str) -> Result<(), Failure> {
        let Some(replica) = self.replica.as_mut().filter(|_| !table.is_empty()) else {
            return Ok(());
        };
        let table = TableName::parse(table);
        let table = table.map_err(|error| Failure::usage(format!("--table: {error}")))?;
        replica.tables.entry(Table(table)).or_default();
        Ok(())
    }

    pub(super) fn settings(&self) -> BaselineSettings {
        BaselineSettings {
            system: System::Music,
            contact_points: self.cluster.contact_points.clone(),
            keyspace: self.cluster.keyspace.to_string(),
            rounds: self.rounds,
        }
    }
}
