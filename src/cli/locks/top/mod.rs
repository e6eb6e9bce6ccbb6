//! `fermata locks top`: the busiest keys and the replicas; redrawn on a terminal, printed elsewhere.
//!
//! `board` works the contents out, `sheet` makes their text.

mod board;
mod sheet;

use std::io::{self, IsTerminal};
use std::time::SystemTime;

use fermata_client::{CallError, Client, ClientOptions};
use fermata_command::output::{
    Format, colour, cut, moves_cursor, one_line, print_json_line, print_text,
};
use fermata_command::{Failure, Remote, Span, exit};
use terminal_size::{Height, Width, terminal_size};
use tokio::time::{MissedTickBehavior, interval};

use board::{Board, Choice, KEYS_MAX, Snapshot};

use crate::cli::views;

/// Each snapshot asks every replica: a shorter interval shows nothing more.
const INTERVAL_MIN: Span = Span::from_millis(100);

const HELP: &str = "\
On a terminal the view is redrawn until Ctrl-C, cut to the size of the
terminal. Without one, or with --count or --output json, snapshots are printed.
Keys with waiters come first, the longest held on top, then the keys with the
most grants in the last minute. `fermata locks ls` lists held keys without
waiters. All tables are shown unless --table is given. Times are UTC.

OWNER is the label of the latest holder, which may have released the key.
IDENTITY is the authenticated client; the column is hidden if none has one.
WAITERS are behind the holder. HELD is the time of the holder while others
wait; it counts from the creation of the lockRef if another replica granted it.
MEAN WAIT and LONGEST are from entry to grant. LWTS/S are lightweight
transactions; CONFLICTS are changes that met another's, since the start.

Exit status: 0; 64 malformed; 66 no such table; 69 no server, and 75 a limit is
reached, or the server is overloaded (the live view goes on trying); 74 it
cannot be printed; 77 not allowed; 128+n ended by signal n.

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
        false => Err(format!("{span} is below the minimum, {INTERVAL_MIN}")),
    }
}

fn parse_limit(text: &str) -> Result<usize, String> {
    let limit: usize = text.parse().map_err(|error| format!("{error}"))?;
    match (1..=KEYS_MAX).contains(&limit) {
        true => Ok(limit),
        false => Err(format!(
            "{limit} is out of range; allowed are 1 to {KEYS_MAX}"
        )),
    }
}

impl Args {
    fn is_live(&self) -> bool {
        self.count.is_none()
            && self.remote.format() == Format::Text
            && io::stdout().is_terminal()
            && moves_cursor()
    }
}

/// Runs the command.
pub async fn run(args: Args) -> Result<(), Failure> {
    let is_live = args.is_live();
    let client = match is_live {
        // The view itself shows failures.
        true => args.remote.quiet_client(ClientOptions::default())?,
        false => args.remote.client()?,
    };
    let choice = Choice {
        table: args.remote.table(),
        prefix: args.prefix,
        limit: args.limit,
    };
    refuse_unknown_table(&client, &choice.table).await?;
    let count = match is_live {
        true => 0,
        false => args.count.unwrap_or(1),
    };
    let mut ticks = interval(args.interval.duration());
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut before: Option<Snapshot> = None;
    let mut shown = String::new();
    let mut done = 0;
    loop {
        ticks.tick().await;
        let snapshot = match snapshot(&client, choice.keys_max()).await {
            Ok(snapshot) => snapshot,
            Err(error) if is_live => {
                let why = one_line(&error.to_string());
                draw(&format!("no answer, trying again: {why}\n{shown}"))?;
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        if args.remote.format() == Format::Json {
            let mut replicas = snapshot.replicas.clone();
            choice.keep(&mut replicas);
            for replica in &mut replicas {
                replica.busiest_keys.truncate(choice.limit);
            }
            print_json_line(&views::activity(&replicas))?;
        } else {
            let board = Board::new(snapshot.clone(), before.as_ref(), &choice);
            shown = sheet::text(&board, SystemTime::now(), colour());
            match (is_live, done) {
                (true, _) => draw(&shown)?,
                (false, 0) => print_text(&shown)?,
                (false, _) => print_text(&format!("\n{shown}"))?,
            }
        }
        before = Some(snapshot);
        done += 1;
        if done == count {
            return Ok(());
        }
    }
}

/// Fails for an unknown table: it would look like a table without locks.
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

async fn snapshot(client: &Client, keys_max: usize) -> Result<Snapshot, CallError> {
    let replicas = client.describe_activity(keys_max).await?;
    let at = client.clock().now();
    Ok(Snapshot { at, replicas })
}

/// Draws text over the one before, without a flicker: from the top, each line to its end, and nothing below.
fn draw(text: &str) -> io::Result<()> {
    let (Width(width), Height(height)) = terminal_size().unwrap_or((Width(80), Height(24)));
    let lines = text.lines().take(usize::from(height).saturating_sub(1));
    let lines = lines.map(|line| format!("{}\u{1b}[0m\u{1b}[K\n", cut(line, width.into())));
    print_text(&format!("\u{1b}[H{}\u{1b}[J", lines.collect::<String>()))
}
