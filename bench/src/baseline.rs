//! The flags that put another system beside the service.

use fermata_cassandra::{CassandraOptions, Credentials, Keyspace};
use fermata_command::Failure;
use fermata_command::remote::variable;
use serde::Serialize;

/// The password of --user.
const PASSWORD_VARIABLE: &str = "FERMATA_CASSANDRA_PASSWORD";

/// Whose sections are measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(super) enum System {
    /// The service.
    #[value(skip)]
    Fermata,
    /// A baseline: MUSIC's statements for a section.
    Music,
    /// A baseline: the put of a section alone.
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

/// The flags that name a cluster.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Straight to Cassandra")]
pub(super) struct ClusterArgs {
    /// Nodes to ask first, HOST or HOST:PORT, with commas between
    #[arg(long, value_name = "HOSTS", value_delimiter = ',')]
    contact_points: Vec<String>,

    /// Where the tables of this run are made
    #[arg(long, value_name = "NAME", default_value = "fermata", value_parser = parse_keyspace)]
    keyspace: Keyspace,

    /// The datacenter whose nodes are asked before others
    #[arg(long, value_name = "NAME")]
    datacenter: Option<String>,

    /// Log in as this user, with the password in FERMATA_CASSANDRA_PASSWORD
    #[arg(long, value_name = "NAME")]
    user: Option<String>,
}

fn parse_keyspace(text: &str) -> Result<Keyspace, String> {
    Keyspace::parse(text).map_err(|error| error.to_string())
}

impl ClusterArgs {
    pub(super) fn is_given(&self) -> bool {
        !self.contact_points.is_empty()
    }

    /// How the cluster is reached.
    pub(super) fn options(&self) -> Result<CassandraOptions, Failure> {
        if !self.is_given() {
            return Err(Failure::usage("name the nodes with --contact-points"));
        }
        let credentials = match &self.user {
            None => None,
            Some(user) => {
                let password = variable(PASSWORD_VARIABLE);
                let missing = || Failure::usage(format!("--user needs {PASSWORD_VARIABLE}"));
                let (user, password) = (user.clone(), password.ok_or_else(missing)?);
                Some(Credentials { user, password })
            }
        };
        Ok(CassandraOptions {
            credentials,
            datacenter: self.datacenter.clone(),
            ..CassandraOptions::new(self.contact_points.clone(), self.keyspace.clone())
        })
    }
}

#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Beside another system")]
pub(super) struct BaselineArgs {
    /// Measure this on the same Cassandra as well, the two in turns, on keys of their own
    ///
    /// `music` is the sequence of statements that MUSIC needs for a section: the guard read at ONE, a transaction
    /// for the lockRef, a peek at ONE, the value read and written at QUORUM, a transaction that deletes the
    /// lockRef. `puts` is one write of the value at QUORUM and nothing else, without a lock: the floor of a section
    /// that puts a value. Their tables, music_…, are made in --keyspace, and dropped in the end. Name the nodes that the service stores in: nobody checks that.
    ///
    /// Three things favour them: their statements go from this process straight to Cassandra, with no service in
    /// between; what MUSIC's published code sends beyond them is left out; and their keys
    /// are new in each round.
    #[arg(long, value_name = "SYSTEM", value_enum, hide_possible_values = true)]
    baseline: Option<System>,

    /// How many turns each of the two has, for each number of workers; a turn is a warm-up and a duration
    #[arg(long, value_name = "N", default_value = "5", requires = "baseline",
          value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,

    #[command(flatten)]
    cluster: ClusterArgs,
}

/// The other system, and how often.
#[derive(Debug, Clone)]
pub(super) struct Baseline {
    pub(super) system: System,
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
    pub(super) fn baseline(&self) -> Result<Option<Baseline>, Failure> {
        let Some(system) = self.baseline else {
            return match self.cluster.is_given() {
                false => Ok(None),
                true => Err(Failure::usage("--contact-points is for --baseline")),
            };
        };
        Ok(Some(Baseline {
            system,
            cluster: self.cluster.options()?,
            rounds: self.rounds,
        }))
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
