//! `fermata schema`: the tables in Cassandra, printed, made, and looked at.

use std::path::PathBuf;

use super::failure::Failure;
use super::output::print_text;
use super::{cluster, exit};
use crate::lock::TableName;
use crate::store::cassandra::health::{self, Weight};
use crate::store::cassandra::schema::{self, Replication, Schema, SchemaError};
use crate::store::cassandra::{CassandraOptions, Keyspace};

/// Make and check the tables in Cassandra
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Clone, clap::Subcommand)]
enum Command {
    Print(PrintArgs),
    Apply(ApplyArgs),
    Check(CheckArgs),
}

#[derive(Debug, Clone, clap::Args)]
struct What {
    /// The keyspace
    #[arg(long, value_name = "NAME", default_value = "fermata")]
    keyspace: Keyspace,

    /// A table whose keys can be locked, beside `default`; may be repeated
    #[arg(long = "table", value_name = "NAME", value_parser = TableName::parse)]
    tables: Vec<TableName>,
}

#[derive(Debug, Clone, clap::Args)]
struct Cluster {
    /// Nodes to ask first, `HOST` or `HOST:PORT`, separated by commas
    #[arg(long, value_name = "HOSTS", value_delimiter = ',', required = true)]
    contact_points: Vec<String>,

    /// Who to be
    #[arg(long, value_name = "NAME")]
    user: Option<String>,

    /// A file with nothing but the password; `FERMATA_CASSANDRA_PASSWORD` is read where there is none
    #[arg(long, value_name = "FILE")]
    password_file: Option<PathBuf>,
}

/// Print the statements, without asking any cluster
#[derive(Debug, Clone, clap::Args)]
struct PrintArgs {
    #[command(flatten)]
    what: What,

    /// How many copies: DATACENTER=COPIES[,…], or simple=COPIES; without it the keyspace is not made
    #[arg(long, value_name = "COPIES")]
    replication: Option<Replication>,
}

const APPLY_HELP: &str = "\
What is there already stays as it is, so this can be repeated, and be done by two at once.

Exit status:
  0   all of it is there, and every node knows it
  64  the command line makes no sense
  69  the cluster cannot be reached, or refused

Examples:
  fermata schema apply --contact-points 127.0.0.1 --replication datacenter1=3
  fermata schema apply --contact-points db1,db2 --replication eu=3,us=3";

/// Make what is missing
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = APPLY_HELP)]
struct ApplyArgs {
    #[command(flatten)]
    what: What,

    #[command(flatten)]
    cluster: Cluster,

    /// How many copies: DATACENTER=COPIES[,…], or simple=COPIES; needed to make the keyspace
    #[arg(long, value_name = "COPIES")]
    replication: Option<Replication>,
}

/// Look at the cluster and say what to change
#[derive(Debug, Clone, clap::Args)]
#[command(
    after_help = "Exit status:\n  0   nothing is wrong (advice aside)\n  69  the cluster cannot be \
                  reached\n  78  something is wrong"
)]
struct CheckArgs {
    #[command(flatten)]
    what: What,

    #[command(flatten)]
    cluster: Cluster,
}

impl What {
    fn schema(self, replication: Option<Replication>) -> Schema {
        let mut tables = vec![TableName::default_table()];
        tables.extend(self.tables);
        tables.dedup();
        Schema {
            keyspace: self.keyspace,
            replication,
            tables,
        }
    }
}

impl Cluster {
    fn options(self, keyspace: &Keyspace) -> Result<CassandraOptions, Failure> {
        let file = self.password_file.as_deref();
        cluster::options(self.contact_points, keyspace, self.user, file)
    }
}

impl From<SchemaError> for Failure {
    fn from(error: SchemaError) -> Failure {
        let code = match error {
            SchemaError::Unreachable(_) | SchemaError::Refused(_) => exit::UNAVAILABLE,
            SchemaError::Settings(_) | SchemaError::Newer { .. } => exit::CONFIG,
        };
        Failure::new(code, error.to_string())
    }
}

/// Runs the command.
pub async fn run(args: Args) -> Result<u8, Failure> {
    match args.command {
        Command::Print(args) => {
            let statements = args.what.schema(args.replication).statements();
            let text: String = statements.iter().map(|one| format!("{one};\n\n")).collect();
            print_text(&text)?;
            Ok(0)
        }
        Command::Apply(args) => {
            let schema = args.what.schema(args.replication);
            let options = args.cluster.options(&schema.keyspace)?;
            schema::apply(&options, &schema, &|name| eprintln!("{name}")).await?;
            eprintln!("every node knows schema version {}", schema::VERSION);
            Ok(0)
        }
        Command::Check(args) => {
            let schema = args.what.schema(None);
            let options = args.cluster.options(&schema.keyspace)?;
            let findings = health::check(&options, &schema).await?;
            let text: String = findings.iter().map(|one| format!("{one}\n")).collect();
            match text.is_empty() {
                true => print_text("good\n")?,
                false => print_text(&text)?,
            }
            let is_wrong = findings.iter().any(|one| one.weight == Weight::Wrong);
            Ok(if is_wrong { exit::CONFIG } else { 0 })
        }
    }
}
