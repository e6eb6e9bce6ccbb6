//! `fermata locks`: what is locked, by whom, and ending it.

mod ls;
mod release;
mod show;
mod top;

use std::time::{Duration, SystemTime};

use fermata_command::output::Table;
use fermata_command::{Failure, Span};
use fermata_proto as proto;

/// Look at locks, and end them
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: LocksCommand,
}

#[derive(Debug, Clone, clap::Subcommand)]
enum LocksCommand {
    Ls(ls::Args),
    Show(show::Args),
    Top(top::Args),
    Release(release::Args),
}

/// Runs the command.
pub async fn run(args: Args) -> Result<u8, Failure> {
    match args.command {
        LocksCommand::Ls(args) => ls::run(args).await?,
        LocksCommand::Show(args) => show::run(args).await?,
        LocksCommand::Top(args) => top::run(args).await?,
        LocksCommand::Release(args) => release::run(args).await?,
    }
    Ok(0)
}

/// How many are asked for at most: with none a list would read as if there were none.
pub fn parse_count(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Err("1 is the least".to_owned()),
        Ok(count) => Ok(count),
        Err(error) => Err(format!("{error}")),
    }
}

/// Enough of a UUID to tell it from a few others.
pub fn short(uuid: &str) -> String {
    uuid.split('-').next().unwrap_or_default().to_owned()
}

/// Who somebody is, as far as the server knows.
pub const IDENTITY: &str = "IDENTITY";

/// A table of these columns and rows; without the column [`IDENTITY`] where no row has one.
pub fn with_identities(columns: &[&str], mut rows: Vec<Vec<String>>) -> Table {
    let mut columns = columns.to_vec();
    let at = columns.iter().position(|column| *column == IDENTITY);
    let is_empty = |at: &usize| rows.iter().all(|row| row[*at].is_empty());
    if let Some(at) = at.filter(is_empty) {
        columns.remove(at);
        for row in &mut rows {
            row.remove(at);
        }
    }
    let mut table = Table::new(&columns);
    for row in rows {
        table.row(row);
    }
    table
}

/// How long ago this was, by the clocks of two machines.
pub fn age(create_time: Option<prost_types::Timestamp>, now: SystemTime) -> String {
    let created = create_time.and_then(|time| SystemTime::try_from(time).ok());
    let Some(created) = created else {
        return String::new();
    };
    let age = now.duration_since(created).unwrap_or(Duration::ZERO);
    Span::from_secs(age.as_secs()).to_string()
}

/// Whether an entry survives a crash of the replica that serves its key.
fn durability(entry: &proto::QueueEntry) -> String {
    match (entry.name.is_empty(), entry.durable) {
        (true, _) => String::new(),
        (false, true) => "durable".to_owned(),
        (false, false) => "volatile".to_owned(),
    }
}

pub fn lease_left(left: Option<prost_types::Duration>) -> String {
    let left = left.and_then(|left| Duration::try_from(left).ok());
    left.map_or_else(String::new, |left| format!("{:.1}s", left.as_secs_f64()))
}

#[cfg(test)]
mod tests {
    use super::*;

    pub fn holder() -> proto::QueueEntry {
        proto::QueueEntry {
            name: "default/a#1".to_owned(),
            state: proto::LockState::Held.into(),
            fencing_token: 7,
            owner: "billing".to_owned(),
            lease_left: Some(prost_types::Duration {
                seconds: 27,
                nanos: 210_000_000,
            }),
            create_time: Some(prost_types::Timestamp {
                seconds: 100,
                nanos: 0,
            }),
            home: "00000001-0000-4000-8000-000000000000".to_owned(),
            durable: true,
            ..proto::QueueEntry::default()
        }
    }
}
