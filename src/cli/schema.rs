//! `fermata schema`: the tables in Cassandra, printed, made, and looked at.

use fermata_command::output::{print_text, say};
use fermata_command::{Failure, exit};

use super::cluster::{self, ClusterFlags, SettingsFile};
use crate::config::Config;
use crate::lock::TableName;
use crate::store::cassandra::health::{self, Finding, Weight};
use crate::store::cassandra::schema::{self, Replication, Schema};
use crate::store::cassandra::{CassandraError, RestoredError, restored};

/// Make and check the tables in Cassandra
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: SchemaCommand,
}

#[derive(Debug, Clone, clap::Subcommand)]
enum SchemaCommand {
    Print(PrintArgs),
    Apply(ApplyArgs),
    Check(CheckArgs),
    Restored(RestoredArgs),
}

/// Where the names of tables come from.
#[derive(Debug, Clone, clap::Args)]
struct Names {
    /// A table whose keys can be locked, beside `default` and those of the settings; may be repeated
    #[arg(long = "table", id = "table", value_name = "NAME")]
    tables: Vec<String>,

    #[command(flatten)]
    file: SettingsFile,
}

const PRINT_HELP: &str = "\
Exit status: 0; 64 the command line makes no sense; 74 it cannot be printed; 78
the settings are not valid.

Examples:
  fermata schema print --replication datacenter1=3
  fermata schema print --keyspace locks --table orders | cqlsh db1";

/// Print the statements, without asking any cluster
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = PRINT_HELP)]
struct PrintArgs {
    /// How many copies: DATACENTER=COPIES[,…], or simple=COPIES; without it the keyspace is not made
    #[arg(long, value_name = "COPIES")]
    replication: Option<Replication>,

    #[command(flatten)]
    names: Names,

    /// Where the tables are [default: fermata]
    #[arg(long, value_name = "NAME", help_heading = "Settings for Cassandra")]
    keyspace: Option<String>,
}

const APPLY_HELP: &str = "\
What is there already stays as it is, but for options of tables that would be
unsafe or slow; so this can be repeated, and be done by two at once. The
settings are those of `fermata serve`, from the same file and environment
variables.

Exit status:
  0   all of it is there, and every node knows it
  64  the command line makes no sense, or does not fit the cluster
  69  the cluster cannot be reached, or refused
  74  it is done, and cannot be printed
  78  the settings are not valid, or the tables are of a later version

Examples:
  fermata schema apply --contact-points 127.0.0.1 --replication datacenter1=3
  fermata schema apply --contact-points db1,db2 --replication eu=3,us=3
  fermata schema apply --config /etc/fermata.toml";

/// Make what is missing
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = APPLY_HELP)]
struct ApplyArgs {
    /// How many copies: DATACENTER=COPIES[,…], or simple=COPIES; needed to make the keyspace
    #[arg(long, value_name = "COPIES")]
    replication: Option<Replication>,

    #[command(flatten)]
    names: Names,

    #[command(flatten)]
    cluster: ClusterFlags,
}

const CHECK_HELP: &str = "\
Each finding is wrong (locks would not be safe, or not work) or advice. Its
remedy follows.

Exit status:
  0   nothing is wrong, advice aside
  64  the command line makes no sense
  69  the cluster cannot be asked
  74  it cannot be printed
  78  something is wrong, be it with the settings

Examples:
  fermata schema check --contact-points 127.0.0.1
  fermata schema check --config /etc/fermata.toml";

/// Look at the cluster and say what to change
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = CHECK_HELP)]
struct CheckArgs {
    #[command(flatten)]
    names: Names,

    #[command(flatten)]
    cluster: ClusterFlags,
}

const RESTORED_HELP: &str = "\
Without this, fencing tokens could fall below some that were given out after
the backup. With it they go on two hours above the clock, or above the one that
--above names; for as long, values are written with such timestamps. Where
others write values with timestamps of the future, tokens follow those, up to
two days: name the highest one with --above.

1. Stop all replicas, and wait for the longest TTL of your clients.
2. Restore all tables of the keyspace, those of locks, values and sessions,
   from one snapshot (nodetool refresh, or sstableloader).
3. Run this. It waits for the TTL (peers.ttl) of replicas that did not stop in
   an orderly way, and declares them down.
4. Start the replicas. Who held a lock then holds it for its TTL.

Exit status:
  0   done
  64  the command line makes no sense
  69  the cluster cannot be reached, refused, a replica runs, or clocks differ
  74  it is done, and cannot be printed
  78  the settings are not valid, or the tables are of another version

Example:
  fermata schema restored --contact-points db1,db2";

/// Let fencing tokens go on above all that were given out, after tables were restored
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = RESTORED_HELP)]
struct RestoredArgs {
    /// Give out fencing tokens above this one only
    #[arg(long, value_name = "TOKEN")]
    above: Option<u64>,

    #[command(flatten)]
    file: SettingsFile,

    #[command(flatten)]
    cluster: ClusterFlags,
}

/// The keyspace and its tables: those of the settings, and those named beside.
fn schema_of(
    config: &Config,
    named: &[String],
    replication: Option<Replication>,
) -> Result<Schema, Failure> {
    let mut tables = config.table_names();
    for name in named {
        let table = TableName::parse(name);
        let table = table.map_err(|error| Failure::usage(format!("--table: {error}")))?;
        if !tables.contains(&table) {
            tables.push(table);
        }
    }
    Ok(Schema {
        keyspace: config.store.cassandra.keyspace.0.clone(),
        replication,
        tables,
    })
}

fn status_of(error: &CassandraError) -> u8 {
    match error {
        CassandraError::NoKeyspace { .. } => exit::USAGE,
        CassandraError::Unreachable(_) | CassandraError::Refused(_) => exit::UNAVAILABLE,
        CassandraError::Settings(_)
        | CassandraError::NoSchema { .. }
        | CassandraError::OtherSchema { .. }
        | CassandraError::OtherMajority { .. } => exit::CONFIG,
    }
}

impl From<CassandraError> for Failure {
    fn from(error: CassandraError) -> Failure {
        Failure::new(status_of(&error), error.to_string())
    }
}

impl From<RestoredError> for Failure {
    fn from(error: RestoredError) -> Failure {
        let code = match &error {
            RestoredError::Open(error) => status_of(error),
            RestoredError::Store(_)
            | RestoredError::Running(_)
            | RestoredError::ClocksDiffer { .. } => exit::UNAVAILABLE,
            RestoredError::TooHigh { .. } => exit::USAGE,
        };
        Failure::new(code, error.to_string())
    }
}

/// Runs the command.
pub async fn run(args: Args) -> Result<u8, Failure> {
    match args.command {
        SchemaCommand::Print(args) => {
            let cluster = ClusterFlags::of_keyspace(args.keyspace);
            let config = cluster.load_names(args.names.file)?;
            let schema = schema_of(&config, &args.names.tables, args.replication)?;
            let statements = schema.statements();
            let text: String = statements.iter().map(|one| format!("{one};\n\n")).collect();
            print_text(&text)?;
            Ok(0)
        }
        SchemaCommand::Apply(args) => {
            let config = args.cluster.load(args.names.file)?;
            let schema = schema_of(&config, &args.names.tables, args.replication)?;
            let options = cluster::options(&config.store.cassandra)?;
            schema::apply(&options, &schema, &|name| say(name)).await?;
            say(&format!(
                "every node knows schema version {}",
                schema::VERSION
            ));
            Ok(0)
        }
        SchemaCommand::Restored(args) => {
            let config = args.cluster.load(args.file)?;
            let options = cluster::options(&config.store.cassandra)?;
            let floor = restored(options, args.above).await?;
            let what = format!("fencing tokens go on from {floor}");
            let printed = print_text(&format!("{what}\n"));
            printed.map_err(|error| Failure::unprinted(&what, error))?;
            Ok(0)
        }
        SchemaCommand::Check(args) => {
            let config = args.cluster.load(args.names.file)?;
            let schema = schema_of(&config, &args.names.tables, None)?;
            let options = cluster::options(&config.store.cassandra)?;
            let apply = cluster::apply_command(&config.store.cassandra, &schema.tables);
            let findings = health::check(&options, &schema, &apply).await?;
            let text: String = findings.iter().map(|one| format!("{one}\n")).collect();
            match text.is_empty() {
                true => print_text("good\n")?,
                false => print_text(&text)?,
            }
            Ok(status(&findings))
        }
    }
}

/// What a check ends with.
fn status(findings: &[Finding]) -> u8 {
    let has = |weight| findings.iter().any(|one| one.weight == weight);
    if has(Weight::Wrong) { exit::CONFIG } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_check_ends_with_the_worst_that_it_found() {
        let found = |weights: &[Weight]| {
            let one = |weight: &Weight| Finding {
                weight: *weight,
                what: String::new(),
                remedy: String::new(),
            };
            status(&weights.iter().map(one).collect::<Vec<_>>())
        };
        assert_eq!(found(&[]), 0);
        assert_eq!(found(&[Weight::Advice]), 0);
        assert_eq!(found(&[Weight::Advice, Weight::Wrong]), 78);
    }
}
