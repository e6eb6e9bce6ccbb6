//! `fermata locks top`: the busiest keys and the replicas, live on a terminal, else as tables or JSON.
//!
//! What is told is worked out in `board`, laid out in `sheet`, drawn in `view`; `live` has the terminal.

mod board;
mod live;
mod sheet;
mod view;

use std::io::{self, IsTerminal};
use std::time::SystemTime;

use fermata_client::Client;
use fermata_command::output::{Format, moves_cursor, print_json_line, print_text};
use fermata_command::{Failure, Remote, Span, exit};
use tokio::time::{MissedTickBehavior, interval};

use board::{Board, Choice, KEYS_MAX, Snapshot};
use sheet::Sheet;

use crate::cli::views;

/// Looks ask every replica: more often than this tells nothing more.
const INTERVAL_MIN: Span = Span::from_millis(100);

const HELP: &str = "\
On a terminal the view is live until q. Without one, or with --count or
--output json, snapshots are printed. Keys with waiters come first, the longest
held on top, then the keys with the most grants in the last minute. `fermata
locks ls` lists held keys without waiters. All tables are shown unless --table
is given. Times are UTC.

OWNER is the label of the latest holder, which may have released the key.
IDENTITY is the authenticated client; the column is hidden if none has one.
HELD counts from the creation of the lockRef if another replica granted it.

Keys: q or Esc quits, p pauses, j and k, arrows and pages scroll, ? explains
the columns.

Exit status: 0; 64 malformed; 66 no such table; 69 no server, and 75 a limit is
reached, or the server is overloaded (the live view goes on trying); 74 it
cannot be printed; 77 not allowed; 128 plus the number of a signal that ended
it (130 for Ctrl-C).

Examples:
  fermata locks top
  fermata locks top orders/ --interval 5s
  fermata locks top --count 2 --interval 10s
  fermata locks top --output json | jq '.replicas[].busiest_keys[0].key'

--output json prints a line per snapshot, with the fields of
DescribeActivityResponse in the protobuf contract.";

/// Watch keys with waiters, the busiest keys, and the replicas
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = HELP)]
pub struct Args {
    /// Only keys with this prefix
    #[arg(value_name = "PREFIX", default_value = "")]
    prefix: String,

    /// The interval between snapshots
    #[arg(long, value_name = "SPAN", default_value = "1s", value_parser = parse_interval)]
    interval: Span,

    /// Print this many snapshots and exit; 0 means no limit [default: 1 without a live view]
    #[arg(long, value_name = "N")]
    count: Option<u64>,

    /// The maximum number of keys
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = parse_limit)]
    limit: usize,

    #[command(flatten)]
    pub remote: Remote,
}

fn parse_interval(text: &str) -> Result<Span, String> {
    let span: Span = text.parse().map_err(|error| format!("{error}"))?;
    match span >= INTERVAL_MIN {
        true => Ok(span),
        false => Err(format!("{span} is below {INTERVAL_MIN}")),
    }
}

fn parse_limit(text: &str) -> Result<usize, String> {
    let limit: usize = text.parse().map_err(|error| format!("{error}"))?;
    match (1..=KEYS_MAX).contains(&limit) {
        true => Ok(limit),
        false => Err(format!("{limit} is not within 1..{KEYS_MAX}")),
    }
}

impl Args {
    fn choice(&self) -> Choice {
        Choice {
            table: self.remote.table(),
            prefix: self.prefix.clone(),
            limit: self.limit,
        }
    }

    fn is_live(&self) -> bool {
        self.count.is_none()
            && self.remote.format() == Format::Text
            && io::stdout().is_terminal()
            && moves_cursor()
    }
}

/// Runs the command.
pub async fn run(args: Args) -> Result<(), Failure> {
    match args.is_live() {
        true => live::run(&args).await,
        false => print(&args).await,
    }
}

/// A table that was named wrong would be one without locks for ever.
async fn refuse_unknown_table(client: &Client, table: &str) -> Result<(), Failure> {
    if table.is_empty() {
        return Ok(());
    }
    let tables = client.list_tables().await?;
    match tables.iter().any(|known| known.name == table) {
        true => Ok(()),
        false => Err(Failure::new(
            exit::NO_INPUT,
            format!("there is no table {table:?} (UNKNOWN_TABLE)"),
        )),
    }
}

/// Prints one look after another.
async fn print(args: &Args) -> Result<(), Failure> {
    let client = args.remote.client()?;
    let choice = args.choice();
    refuse_unknown_table(&client, &choice.table).await?;
    let count = args.count.unwrap_or(1);
    let mut ticks = interval(args.interval.duration());
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut before: Option<Snapshot> = None;
    let mut done = 0;
    loop {
        ticks.tick().await;
        let snapshot = live::snapshot(&client, choice.keys_max()).await?;
        match args.remote.format() {
            Format::Json => {
                let mut replicas = snapshot.replicas.clone();
                choice.keep(&mut replicas);
                for replica in &mut replicas {
                    replica.busiest_keys.truncate(choice.limit);
                }
                print_json_line(&views::activity(&replicas))?;
            }
            Format::Text => {
                let board = Board::new(snapshot.clone(), before.as_ref(), &choice);
                let parted = if done > 0 { "\n" } else { "" };
                print_text(&format!("{parted}{}", text(&board, SystemTime::now())))?;
            }
        }
        before = Some(snapshot);
        done += 1;
        if done == count {
            return Ok(());
        }
    }
}

/// One look, for people without a terminal.
fn text(board: &Board, now: SystemTime) -> String {
    format!(
        "{}  {} of {} replicas  {}\n\n{}\n{}",
        view::time_of_day(now),
        board.answered(),
        board.replicas.len(),
        view::summary(board),
        Sheet::keys(board).text(),
        Sheet::replicas(board).text()
    )
}
