//! A soak: replicas of the service on three real Cassandra nodes, clients that count under locks, and faults at random
//! for as long as is asked for. Ends with a report, as text and as a page with plots.
//!
//! Needs Java 17 and, the first time, Maven; as root it also cuts a node and the replicas off, in a network namespace
//! of its own. `cargo run --release --example soak -- --minutes 30`

#[allow(
    dead_code,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "shared with the tests, which use more of it, and fail by panicking"
)]
mod shared;

mod faults;
mod machine;
mod page;
mod plots;
mod report;
mod run;
mod timeline;
mod world;

use std::error::Error;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::Parser;
use shared::cassandra::{self, Cluster, CommitLog, Network, Purpose, Tools};
use shared::network;

use report::Report;

/// Whatever goes wrong beside the service.
pub type Failure = Box<dyn Error + Send + Sync>;

/// The node that is cut off.
const CUT_NODE: usize = 3;
/// How many nodes there are.
pub const NODES: usize = 3;
/// What was promised was not kept.
const BROKEN: u8 = 1;
/// It could not be tried.
const NOT_TRIED: u8 = 2;

const HELP: &str = "\
Exit status: 0 nothing was broken, 1 something was, 2 it could not be tried.

Examples:
  cargo run --release --example soak -- --minutes 30 --report target/soak
  cargo run --release --example soak -- --minutes 30 --commit write-through --report target/soak-write-through
  cargo run --release --example soak -- --minutes 5 --seed 7";

/// The replicas' setting `commit`
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub enum Commit {
    /// Before it is answered
    WriteThrough,
    /// Later
    WriteBack,
}

impl std::fmt::Display for Commit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Commit::WriteThrough => "write-through",
            Commit::WriteBack => "write-back",
        })
    }
}

/// Replicas on real Cassandra nodes, under random faults
#[derive(Parser)]
#[command(name = "soak", after_help = HELP)]
struct Words {
    /// For how long faults happen
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=10_080))]
    minutes: u32,
    /// What the faults are drawn from; by the clock if not given
    #[arg(long)]
    seed: Option<u64>,
    /// How many replicas of the service
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(2..=5))]
    replicas: u8,
    /// When the row of a key says what its home decided
    #[arg(long, value_enum, default_value_t = Commit::WriteBack)]
    commit: Commit,
    /// Where the report goes: NAME.txt and NAME.html
    #[arg(long, value_name = "NAME", default_value = "target/soak")]
    report: PathBuf,
    /// A folder that keeps the replicas' logs
    #[arg(long, value_name = "FOLDER")]
    logs: Option<PathBuf>,
}

fn main() -> ExitCode {
    // The replicas are this very program.
    if std::env::args_os()
        .nth(1)
        .is_some_and(|word| word == "serve")
    {
        let runtime = match tokio::runtime::Runtime::new() {
            Ok(runtime) => runtime,
            Err(error) => return failed(&error.into()),
        };
        let status = runtime.block_on(fermata::cli::run(std::env::args_os()));
        drop(runtime);
        fermata::cli::end::end(status.into());
    }
    let words = Words::parse();
    let report = match soak(&words) {
        Ok(report) => report,
        Err(error) => return failed(&error),
    };
    let text = report.text();
    // Whoever closed the pipe has seen enough.
    let _ = write!(std::io::stdout(), "{text}");
    let written = write_down(&words.report, &text, &report);
    match (written, report.violations.len(), report.ended_early) {
        (_, 1.., _) => BROKEN.into(),
        (Err(error), _, _) => failed(&error),
        (Ok(()), 0, Some(_)) => NOT_TRIED.into(),
        (Ok(()), 0, None) => ExitCode::SUCCESS,
    }
}

fn failed(error: &Failure) -> ExitCode {
    say(&format!("soak: {error}"));
    NOT_TRIED.into()
}

fn soak(words: &Words) -> Result<Report, Failure> {
    let seed = words.seed.unwrap_or_else(|| {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        now.map_or(0, |now| now.as_secs())
    });
    say(&format!("--seed {seed}"));
    // What is missing is fetched now: there may be no way out of the network below.
    Tools::find(&say)?;
    let address = format!("127.0.0.{CUT_NODE}");
    // Before the first thread: a network is of a thread and of those that it starts.
    let cut = network::enter(&address, cassandra::own_group(CUT_NODE));
    let cluster = match &cut {
        Ok(()) => Cluster::up_alone(NODES, Purpose::Work(CommitLog::Group), &say)?,
        Err(why) => {
            say(&format!("nothing will be cut off: {why}"));
            Cluster::up(NODES, Purpose::Work(CommitLog::Group), Network::Here, &say)?
        }
    };
    let asked = run::SoakOptions {
        span: Duration::from_secs(60) * words.minutes,
        seed,
        replicas: words.replicas.into(),
        commit: words.commit,
        logs: words.logs.clone(),
        may_cut: cut.is_ok(),
    };
    let runtime = tokio::runtime::Runtime::new()?;
    runtime.block_on(run::run(&asked, cluster))
}

/// As text and as a page.
fn write_down(name: &Path, text: &str, report: &Report) -> Result<(), Failure> {
    if let Some(directory) = name.parent() {
        std::fs::create_dir_all(directory)?;
    }
    for (extension, content) in [("txt", text.to_owned()), ("html", page::html(report)?)] {
        let path = name.with_extension(extension);
        std::fs::write(&path, content)
            .map_err(|error| format!("{} cannot be written: {error}", path.display()))?;
        say(&format!("written: {}", path.display()));
    }
    Ok(())
}

/// Says it, if anybody listens still.
pub fn say(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}
