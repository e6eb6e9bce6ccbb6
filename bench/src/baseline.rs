//! The options that put another system beside the service.

use fermata_cassandra::{CassandraOptions, Credentials, Keyspace};
use fermata_command::Failure;
use fermata_command::remote::variable;
use serde::Serialize;

/// The password of --user.
const PASSWORD_VARIABLE: &str = "FERMATA_CASSANDRA_PASSWORD";

/// A system that does sections.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(super) enum System {
    /// The service.
    #[value(skip)]
    Fermata,
    /// MUSIC's statements for a section.
    Music,
    /// The put of a section alone.
    Puts,
}

impl System {
    pub(super) fn name(self) -> &'static str {
        match self {
            System::Fermata => "fermata",
            System::Music => "music",
            System::Puts => "puts",
        }
    }
}

#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Beside another system")]
pub(super) struct BaselineArgs {
    /// Measure this system on the same Cassandra as well, in turns with Fermata, on keys of its own
    ///
    /// `music`: MUSIC's statements for a section. They read the guard at ONE, create the lockRef by a transaction, read the
    /// head of the queue at ONE, read and write the value at QUORUM, and delete the lockRef by a transaction. `puts`: one
    /// write of the value at QUORUM, without a lock; no section that writes a value takes less. Their tables, music_…, are
    /// made in --keyspace and dropped at the end. Name the nodes of the service; this is not checked.
    ///
    /// Three things favour them: no service stands between the benchmark and Cassandra, further statements of MUSIC's
    /// published code are left out, and their keys are new in each round.
    #[arg(
        long,
        value_name = "SYSTEM",
        value_enum,
        hide_possible_values = true,
        requires = "contact_points"
    )]
    baseline: Option<System>,

    /// The number of turns of each system, for each number of workers; a turn is a warm-up and a duration
    #[arg(long, value_name = "N", default_value = "5", requires = "baseline",
          value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,

    /// The nodes to connect to first, HOST or HOST:PORT, with commas between
    #[arg(
        long,
        value_name = "HOSTS",
        value_delimiter = ',',
        requires = "baseline"
    )]
    contact_points: Vec<String>,

    /// The keyspace for the tables of this run
    #[arg(long, value_name = "NAME", default_value = "fermata", value_parser = parse_keyspace)]
    keyspace: Keyspace,

    /// The datacenter whose nodes are asked before others
    #[arg(long, value_name = "NAME")]
    datacenter: Option<String>,

    /// The user of Cassandra; the password is in FERMATA_CASSANDRA_PASSWORD
    #[arg(long, value_name = "NAME")]
    user: Option<String>,
}

fn parse_keyspace(text: &str) -> Result<Keyspace, String> {
    Keyspace::parse(text).map_err(|error| error.to_string())
}

/// The other system, and its number of turns.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Baseline {
    pub(super) system: System,
    pub(super) rounds: u32,
    #[serde(skip)]
    pub(super) cluster: CassandraOptions,
}

impl BaselineArgs {
    /// `None` where only the service is measured.
    pub(super) fn baseline(self) -> Result<Option<Baseline>, Failure> {
        let Some(system) = self.baseline else {
            return Ok(None);
        };
        let missing = || Failure::usage(format!("--user needs {PASSWORD_VARIABLE}"));
        let credentials = match self.user {
            None => None,
            Some(user) => Some(Credentials {
                user,
                password: variable(PASSWORD_VARIABLE).ok_or_else(missing)?,
            }),
        };
        Ok(Some(Baseline {
            system,
            rounds: self.rounds,
            cluster: CassandraOptions {
                credentials,
                datacenter: self.datacenter,
                ..CassandraOptions::new(self.contact_points, self.keyspace)
            },
        }))
    }
}
