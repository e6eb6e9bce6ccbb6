//! The flags that put another system beside the service.

use std::path::PathBuf;

use serde::Serialize;

use super::System;
use crate::cli::cluster;
use crate::cli::failure::Failure;
use crate::store::cassandra::{CassandraOptions, Keyspace};

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
    /// lockRef. Its tables, music_…, are dropped in the end.
    ///
    /// Three things favour it: its statements go from this process straight to Cassandra, with no service in
    /// between; what its published code sends beyond them is left out; and its keys are new in each round.
    #[arg(
        long,
        value_name = "SYSTEM",
        value_enum,
        requires = "contact_points",
        hide_possible_values = true
    )]
    baseline: Option<Other>,

    /// How many turns each of the two has, for each number of workers; a turn is a warm-up and a duration
    #[arg(long, value_name = "N", default_value = "5", requires = "baseline",
          value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,

    /// Nodes of the Cassandra that the service stores in (which nobody checks), `HOST` or `HOST:PORT`, separated by
    /// commas
    #[arg(
        long,
        value_name = "HOSTS",
        value_delimiter = ',',
        requires = "baseline"
    )]
    contact_points: Vec<String>,

    /// The keyspace that gets the tables of the other system
    #[arg(
        long,
        value_name = "NAME",
        default_value = "fermata",
        requires = "baseline"
    )]
    keyspace: Keyspace,

    /// Who to be for Cassandra
    #[arg(long, value_name = "NAME", requires = "baseline")]
    user: Option<String>,

    /// A file with nothing but the password; `FERMATA_CASSANDRA_PASSWORD` is read where there is none
    #[arg(long, value_name = "FILE", requires = "baseline")]
    password_file: Option<PathBuf>,
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
            return Ok(None);
        };
        let cluster = cluster::options(
            self.contact_points,
            &self.keyspace,
            self.user,
            self.password_file.as_deref(),
        )?;
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
