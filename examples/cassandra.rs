//! Real Cassandra nodes on this machine, without containers: to try Fermata on, and to break.
//!
//! Needs Java 17 and, the first time, Maven. `cargo run --example cassandra -- up 3`

#[path = "../tests/support/cassandra/mod.rs"]
mod cassandra;

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, ExitCode, Stdio};
use std::thread;
use std::time::Duration;

use cassandra::{Cluster, ClusterError, CommitLog, NODES_MAX, Network, Purpose, Signal};
use clap::Parser;

/// The last thing said before it only waits.
const HELD: &str = "Ctrl-C ends them";

/// Real Cassandra nodes on 127.0.0.1, 127.0.0.2 and 127.0.0.3
#[derive(Parser)]
struct Words {
    #[command(subcommand)]
    command: Action,
}

#[derive(clap::Subcommand)]
enum Action {
    /// Start nodes without data, and keep them until Ctrl-C or `down`
    Up {
        /// How many: 1 or 3
        #[arg(default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=NODES_MAX as i64))]
        nodes: u8,
        /// Come back when they are up; `down` ends them
        #[arg(long)]
        detach: bool,
        /// Start and change tables in less time, and do everything else in more
        #[arg(long)]
        for_tests: bool,
        /// When what is acknowledged is synced to the disk
        #[arg(long, value_enum, default_value_t, conflicts_with = "for_tests")]
        commit_log: CommitLog,
        /// Each in the network namespace fermata-siteN, at 10.77.N.1, and in the data center siteN (bench/sites makes those)
        #[arg(long, conflicts_with = "for_tests")]
        sites: bool,
    },
    /// End them
    Down,
    /// What runs
    Status,
    /// End a node at once (SIGKILL)
    Kill { node: usize },
    /// Hang a node (SIGSTOP): its sockets stay open
    Pause { node: usize },
    /// Let a paused node go on (SIGCONT)
    Resume { node: usize },
    /// Start a killed node again, with its data
    Start { node: usize },
    /// Run nodetool on a node
    Nodetool {
        node: usize,
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        words: Vec<String>,
    },
}

fn main() -> ExitCode {
    match run(Words::parse().command) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run(action: Action) -> Result<ExitCode, ClusterError> {
    match action {
        Action::Up {
            nodes,
            detach,
            for_tests,
            commit_log,
            sites,
        } => {
            let network = match sites {
                true => Network::Sites,
                false => Network::Here,
            };
            let purpose = match for_tests {
                true => Purpose::Tests,
                false => Purpose::Work(commit_log),
            };
            match detach {
                true => return leave_behind(nodes, purpose, network),
                false => hold(nodes, purpose, network)?,
            }
        }
        Action::Down => {
            cassandra::down()?;
            println!("down");
        }
        Action::Status => {
            for node in cassandra::status()? {
                let state = match (node.pid, node.answers_clients) {
                    (None, _) => "down".to_owned(),
                    (Some(pid), true) => format!("up, pid {pid}"),
                    (Some(pid), false) => format!("accepts no clients, pid {pid}"),
                };
                println!("node {}  {}:9042  {state}", node.number, node.address);
            }
        }
        Action::Kill { node } => cassandra::signal(node, Signal::SIGKILL)?,
        Action::Pause { node } => cassandra::signal(node, Signal::SIGSTOP)?,
        Action::Resume { node } => cassandra::signal(node, Signal::SIGCONT)?,
        Action::Start { node } => cassandra::start_node(node)?,
        Action::Nodetool { node, words } => {
            let output = cassandra::nodetool(node, &words)?;
            print!("{}", String::from_utf8_lossy(&output.stdout));
            eprint!("{}", String::from_utf8_lossy(&output.stderr));
            if !output.status.success() {
                return Ok(ExitCode::FAILURE);
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Starts, or joins, and stays until the nodes are ended or this process is.
fn hold(nodes: u8, purpose: Purpose, network: Network) -> Result<(), ClusterError> {
    let _cluster = Cluster::up(nodes.into(), purpose, network, &say)?;
    say(HELD);
    while cassandra::status()?.iter().any(|node| node.pid.is_some()) {
        thread::sleep(Duration::from_millis(500));
    }
    Ok(())
}

/// Leaves a process behind that holds the cluster, and passes on what that says until it is up.
fn leave_behind(nodes: u8, purpose: Purpose, network: Network) -> Result<ExitCode, ClusterError> {
    let io = |source| ClusterError::Io {
        what: "the process that stays".to_owned(),
        source,
    };
    let mut holder = Command::new(std::env::current_exe().map_err(io)?);
    holder.args(["up", &nodes.to_string()]);
    holder.arg(match purpose {
        Purpose::Tests => "--for-tests",
        Purpose::Work(CommitLog::Group) => "--commit-log=group",
        Purpose::Work(CommitLog::Batch) => "--commit-log=batch",
        Purpose::Work(CommitLog::Periodic) => "--commit-log=periodic",
    });
    holder.args((network == Network::Sites).then_some("--sites"));
    holder
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    std::os::unix::process::CommandExt::process_group(&mut holder, 0);
    let mut holder = holder.spawn().map_err(io)?;
    let output = holder.stderr.take().map(BufReader::new);
    for line in output.into_iter().flat_map(BufReader::lines) {
        let line = line.map_err(io)?;
        if line == HELD {
            say("`cargo run --example cassandra -- down` ends them");
            return Ok(ExitCode::SUCCESS);
        }
        say(&line);
    }
    Ok(ExitCode::FAILURE)
}

/// Says it, if anybody listens still.
fn say(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}
