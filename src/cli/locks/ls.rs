//! `fermata locks ls`: the held keys.

use std::time::SystemTime;

use fermata_command::output::{Format, colour, print_json, print_text, say};
use fermata_command::{Failure, Remote};
use fermata_proto as proto;

use crate::cli::cells::{IDENTITY, age, durability, lease_left, parse_count, short, table_of};
use crate::cli::views;

const HELP: &str = "\
Exit status: 0; 64 malformed; 66 no such table; 69 no server; 74 it cannot be
printed; 75 a limit is reached, or the server is overloaded; 77 not allowed.

OWNER is a label chosen by the client. IDENTITY is the authenticated client;
the column is hidden if no client has one.

HOME is the replica that serves the key. A volatile lock is lost if that
replica crashes; a durable lock is not.

Examples:
  fermata locks ls
  fermata locks ls orders/ --contended
  fermata locks ls --output json | jq -r '.locks[].holder.owner'

--output json prints the fields of ListLocksResponse in the protobuf contract.";

/// List the keys that are held or waited for
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = HELP)]
pub struct Args {
    /// Only keys with this prefix
    #[arg(value_name = "PREFIX", default_value = "")]
    prefix: String,

    /// Only keys with waiters
    #[arg(long)]
    contended: bool,

    /// The maximum number of keys
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = parse_count)]
    limit: usize,

    #[command(flatten)]
    pub remote: Remote,
}

/// Runs the command.
pub async fn run(args: Args) -> Result<(), Failure> {
    let client = args.remote.client()?;
    let table = args.remote.table();
    // One more tells whether the list is cut.
    let asked = args.limit.saturating_add(1);
    let mut locks = client
        .list_locks(&table, &args.prefix, args.contended, asked)
        .await?;
    let left_out = locks.len() > args.limit;
    locks.truncate(args.limit);
    match args.remote.format() {
        Format::Json => print_json(&views::locks(&locks))?,
        Format::Text => print_text(&list(&locks, SystemTime::now(), colour()))?,
    }
    if left_out {
        say(&format!(
            "only the first {} keys are shown (--limit)",
            args.limit
        ));
    }
    Ok(())
}

fn list(locks: &[proto::LockSummary], now: SystemTime, colour: bool) -> String {
    let columns = [
        "KEY",
        "OWNER",
        IDENTITY,
        "AGE",
        "LEASE LEFT",
        "WAITERS",
        "DURABILITY",
        "HOME",
        "ENTRY",
    ];
    let rows = locks.iter().map(|lock| {
        let holder = lock.holder.clone().unwrap_or_default();
        vec![
            lock.key.clone(),
            holder.owner.clone(),
            holder.identity.clone(),
            age(holder.create_time, now),
            lease_left(holder.lease_left),
            lock.waiters.to_string(),
            durability(&holder),
            short(&holder.home),
            holder.name,
        ]
    });
    table_of(&columns, rows.collect()).render(colour)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;
    use crate::cli::cells::tests::holder;

    #[test]
    fn a_list_tells_who_holds_where_and_how_many_wait() {
        let summary = |key: &str, holder| proto::LockSummary {
            table: "default".to_owned(),
            key: key.to_owned(),
            holder,
            waiters: 2,
        };
        let volatile = proto::QueueEntry {
            durable: false,
            ..holder()
        };
        let locks = [
            summary("a", Some(holder())),
            summary("b", Some(volatile)),
            summary("c", None),
        ];
        let now = UNIX_EPOCH + Duration::from_secs(190);
        assert_eq!(
            list(&locks, now, false),
            "KEY  OWNER    AGE    LEASE LEFT  WAITERS  DURABILITY  HOME      ENTRY\n\
             a    billing  1m30s  27.2s       2        durable     00000001  default/a#1\n\
             b    billing  1m30s  27.2s       2        volatile    00000001  default/a#1\n\
             c    -        -      -           2        -           -         -\n"
        );
    }

    #[test]
    fn who_holds_a_key_is_shown_beside_the_label_where_anybody_has_an_identity() {
        let known = proto::QueueEntry {
            identity: "mallory".to_owned(),
            ..holder()
        };
        let locks = [known, holder()].map(|holder| proto::LockSummary {
            table: "default".to_owned(),
            key: "a".to_owned(),
            holder: Some(holder),
            waiters: 0,
        });
        let now = UNIX_EPOCH + Duration::from_secs(190);
        assert_eq!(
            list(&locks, now, false),
            "KEY  OWNER    IDENTITY  AGE    LEASE LEFT  WAITERS  DURABILITY  HOME      ENTRY\n\
             a    billing  mallory   1m30s  27.2s       0        durable     00000001  default/a#1\n\
             a    billing  -         1m30s  27.2s       0        durable     00000001  default/a#1\n"
        );
    }
}
