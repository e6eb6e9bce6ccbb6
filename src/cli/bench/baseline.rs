//! The flags that put another system beside the service.

use serde::Serialize;

use super::System;
use crate::cli::cluster::{self, ClusterFlags, SettingsFile};
use crate::cli::failure::Failure;
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
    /// between; what its published code sends beyond them is left out; and its keys are new in each round.
    #[arg(long, value_name = "SYSTEM", value_enum, hide_possible_values = true)]
    baseline: Option<Other>,

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
        let config = self.cluster.load(self.file)?;
        let cluster = cluster::options(&config.store.cassandra)?;
        Ok(Some(Baseline {
            cluster,
            rounds: self.rounds,
        }))
    }
}

impl Baseline {
    pub(super) fn settings(&self) -> BaselineSettings {
        BaselineSettings {
            system: System::Music,
            contact_points: self.cluster.contact_points.clone(),
            keyspace: self.cluster.keyspace.to_string(),
            rounds: self.rounds,
        }
    }
}
