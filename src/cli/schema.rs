//! `fermata schema`: prints, makes and checks the tables in Cassandra.

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

/// The names of tables.
#[derive(Debug, Clone, clap::Args)]
struct Names {
    /// A table beside `default` and those of the settings; may be repeated
    #[arg(long = "table", id = "table", value_name = "NAME")]
    tables: Vec<String>,

    #[command(flatten)]
    file: SettingsFile,
}

const PRINT_HELP: &str = "\
Exit status: 0; 64 malformed; 74 it cannot be printed; 78 the settings are not
valid.

Examples:
  fermata schema print --replication datacenter1=3
  fermata schema print --keyspace locks --table orders | cqlsh db1";

/// Print the statements, without a cluster
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = PRINT_HELP)]
struct PrintArgs {
    /// Copies: DATACENTER=COPIES[,…], or simple=COPIES; without it no keyspace is made
    #[arg(long, value_name = "COPIES")]
    replication: Option<Replication>,

    #[command(flatten)]
    names: Names,

    /// Keyspace of the tables [default: fermata]
    #[arg(long, value_name = "NAME", help_heading = "Settings for Cassandra")]
    keyspace: Option<String>,
}

const APPLY_HELP: &str = "\
Existing tables stay, except for options that would be unsafe or slow. So this
can be repeated, also by two at once. Settings come from the same file and
environment variables as those of `fermata serve`.

Exit status: 0 every node knows all tables; 64 malformed, or --replication is
missing; 69 the cluster cannot be reached, or refused; 74 it is done, but
cannot be printed; 78 the settings are not valid, or the tables have
another version.

Examples:
  fermata schema apply --contact-points 127.0.0.1 --replication datacenter1=3
  fermata schema apply --contact-points db1,db2 --replication eu=3,us=3
  fermata schema apply --config /etc/fermata.toml";

/// Make the missing tables
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = APPLY_HELP)]
struct ApplyArgs {
    /// Copies: DATACENTER=COPIES[,…], or simple=COPIES; needed to make the keyspace
    #[arg(long, value_name = "COPIES")]
    replication: Option<Replication>,

    #[command(flatten)]
    names: Names,

    #[command(flatten)]
    cluster: ClusterFlags,
}

const CHECK_HELP: &str = "\
A finding is wrong (locks are unsafe, or do not work) or advice. Each has a
remedy.

Exit status: 0 nothing is wrong; 64 malformed; 69 the cluster does not answer;
74 it cannot be printed; 78 something is wrong, or the settings are not valid.

Examples:
  fermata schema check --contact-points 127.0.0.1
  fermata schema check --config /etc/fermata.toml";

/// Check the cluster, and print what to change
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = CHECK_HELP)]
struct CheckArgs {
    #[command(flatten)]
    names: Names,

    #[command(flatten)]
    cluster: ClusterFlags,
}

const RESTORED_HELP: &str = "\
Without this, fencing tokens could fall below tokens from after the backup.
With it they continue two hours above the clock, or above --above; until then
values have such timestamps. Tokens follow timestamps of the future, up to two
days: if others write such values, give the highest one with --above.

1. Stop all replicas, and wait for the longest TTL of your clients.
2. Restore all tables of the keyspace (locks, values, sessions) from one
   snapshot (nodetool refresh, or sstableloader).
3. Run this. It waits for the TTL (peers.ttl) of replicas without an orderly
   stop, and declares them down.
4. Start the replicas. Holders of locks hold them again for their TTL.

Exit status: 0; 64 malformed; 69 the cluster cannot be reached, refused, a
replica runs, or clocks differ; 74 it is done, and cannot be printed; 78 the
settings are not valid, or the tables are of another version.

Example:
  fermata schema restored --contact-points db1,db2";

/// Raise the fencing tokens after tables were restored
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = RESTORED_HELP)]
struct RestoredArgs {
    /// Issue only fencing tokens above this one
    #[arg(long, value_name = "TOKEN")]
    above: Option<u64>,

    #[command(flatten)]
    file: SettingsFile,

    #[command(flatten)]
    cluster: ClusterFlags,
}

/// The keyspace and its tables: those of the settings and of --table.
fn schema_of(
    config: &Config,
    named: &[String],
    replication: Option<Replication>,
) -> Result<Schema, Failure> {
    let mut tables = config.home_tables();
    let cell_tables = config.cell_tables();
    for name in named {
        let table = TableName::parse(name);
        let table = table.map_err(|error| Failure::usage(format!("--table: {error}")))?;
        if !tables.contains(&table) && !cell_tables.contains(&table) {
            tables.push(table);
        }
    }
    Ok(Schema {
        keyspace: config.store.cassandra.keyspace.0.clone(),
        replication,
        tables,
        cell_tables,
        row_tables: config.row_tables(),
    })
}

fn status_of(error: &CassandraError) -> u8 {
    match error {
        CassandraError::NoKeyspace { .. } => exit::USAGE,
        CassandraError::Unreachable(_) | CassandraError::Refused(_) => exit::UNAVAILABLE,
        CassandraError::Settings(_)
        | CassandraError::NoSchema { .. }
        | CassandraError::OtherSchema { .. }
        | CassandraError::OtherMajority { .. }
        | CassandraError::OtherProtocol { .. } => exit::CONFIG,
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

/// The exit status of a check.
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
