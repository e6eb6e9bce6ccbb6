//! The flags that put another system beside the service.

use fermata_cassandra::CassandraOptions;
use fermata_command::Failure;
use serde::Serialize;

use super::System;
use super::program::{Program, StartReplica};

/// What can be measured beside the service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Other {
    /// MUSIC's statements for a section
    Music,
    /// The put of a section alone
    Puts,
}

impl Other {
    fn system(self) -> System {
        match self {
            Other::Music => System::Music,
            Other::Puts => System::Puts,
        }
    }
}

#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Beside another system")]
pub(super) struct BaselineArgs<P: Program> {
    /// Measure this on the same Cassandra as well, the two in turns, on keys of their own
    ///
    /// `music` is the sequence of statements that MUSIC needs for a section: the guard read at ONE, a transaction
    /// for the lockRef, a peek at ONE, the value read and written at QUORUM, a transaction that deletes the
    /// lockRef. `puts` is one write of the value at QUORUM and nothing else, without a lock: the floor of a section
    /// that puts a value. Their tables, music_…, are made in the keyspace that the settings for Cassandra name, and dropped in
    /// the end. Name the nodes that the service stores in: nobody checks that.
    ///
    /// Three things favour them: their statements go from this process straight to Cassandra, with no service in
    /// between (--in-process takes that away); what MUSIC's published code sends beyond them is left out; and their keys
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
    program: P,
}

/// The other system, and how often.
#[derive(Debug, Clone)]
pub(super) struct Baseline {
    pub(super) system: System,
    pub(super) cluster: CassandraOptions,
    pub(super) rounds: u32,
    /// Whether fermata's sections are done by a replica in this process.
    pub(super) in_process: bool,
}

/// What a report says of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct BaselineSettings {
    pub(super) system: System,
    pub(super) contact_points: Vec<String>,
    pub(super) keyspace: String,
    pub(super) rounds: u32,
}

impl<P: Program> BaselineArgs<P> {
    /// `None` where only the service is measured.
    pub(super) fn baseline(&self) -> Result<Option<Baseline>, Failure> {
        let Some(other) = self.baseline else {
            return match self.program.is_given() {
                false => Ok(None),
                true => Err(Failure::usage("settings for Cassandra are for --baseline")),
            };
        };
        Ok(Some(Baseline {
            system: other.system(),
            cluster: self.program.cassandra()?,
            rounds: self.rounds,
            in_process: self.in_process,
        }))
    }

    /// That does fermata's sections, and serves this table as well; `None` where a server does them.
    pub(super) fn replica(&self, table: &str) -> Result<Option<Box<dyn StartReplica>>, Failure> {
        self.in_process
            .then(|| self.program.replica(table))
            .transpose()
    }
}

impl Baseline {
    pub(super) fn settings(&self) -> BaselineSettings {
        BaselineSettings {
            system: self.system,
            contact_points: self.cluster.contact_points.clone(),
            keyspace: self.cluster.keyspace.to_string(),
            rounds: self.rounds,
        }
    }
}
