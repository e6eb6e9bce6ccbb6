//! `fermata locks show`: the queue of one key.

use std::time::SystemTime;

use fermata_client::public_part;
use fermata_command::output::{Format, Table, colour, one_line, padded, print_json, print_text};
use fermata_command::{Failure, Remote};
use fermata_proto as proto;

use crate::cli::cells::{IDENTITY, age, durability, lease_left, table_of};
use crate::cli::views;
use crate::lock::EntryName;

const HELP: &str = "\
Exit status: 0 (also where nobody holds the key); 64 malformed; 66 no such
table; 69 no server; 74 it cannot be printed; 75 a limit is reached, or the
server is overloaded; 77 not allowed.

OWNER is a label chosen by the client. IDENTITY is the authenticated client;
the column is hidden if no client has one.

A volatile entry is lost if the key's home crashes; a durable entry is not.
\"Its row only\" means that the home did not answer in time, is down, or has no
memory of the key: entries that are only in its memory are missing.

Examples:
  fermata locks show orders-42
  fermata locks show 'default/orders-42#17'
  fermata locks show orders-42 --output json | jq .waiter_count

TABLE/KEY#NUMBER names an entry. A lockRef works too; its secret part is not
printed. Use --key for a key of that form.

--output json prints the fields of DescribeLockResponse in the protobuf
contract.";

/// Show the queue of one key: its holder, who waits, and the latest ends
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = HELP)]
pub struct Args {
    /// The key, or an entry of its queue, as TABLE/KEY#NUMBER
    #[arg(value_name = "KEY | ENTRY", required_unless_present = "key")]
    subject: Option<String>,

    /// The key, even if it has the form of an entry
    #[arg(long, value_name = "KEY", conflicts_with = "subject")]
    key: Option<String>,

    /// The maximum number of waiters
    #[arg(long, value_name = "N", default_value_t = 1000)]
    limit: usize,

    #[command(flatten)]
    pub remote: Remote,
}

/// Runs the command.
pub async fn run(args: Args) -> Result<(), Failure> {
    let client = args.remote.client()?;
    let (table, key, entry) = match (args.subject, args.key) {
        (_, Some(key)) => (args.remote.table(), key, None),
        (Some(subject), None) => match public_part(&subject).parse::<EntryName>() {
            Ok(entry) => {
                refuse_another_table(&entry, args.remote.given_table())?;
                (
                    entry.table.to_string(),
                    entry.key.as_str().to_owned(),
                    Some(entry),
                )
            }
            Err(_) => (args.remote.table(), subject, None),
        },
        (None, None) => return Err(Failure::usage("name a key, or an entry")),
    };
    let lock = client.describe_lock(&table, &key, args.limit).await?;
    match args.remote.format() {
        Format::Json => print_json(&views::described(&lock))?,
        Format::Text => {
            let entry = entry.map(|entry| described_entry(&lock, &entry.to_string()));
            let text = describe(&lock, SystemTime::now(), colour());
            print_text(&format!("{}{text}", entry.unwrap_or_default()))?;
        }
    }
    Ok(())
}

/// Refuses a --table that differs from the table of the entry.
fn refuse_another_table(entry: &EntryName, given: Option<&str>) -> Result<(), Failure> {
    match given {
        Some(table) if table != entry.table.as_str() => Err(Failure::usage(format!(
            "{entry} is an entry of the table {}, not of --table {table}; if it is the name of a key, give it by --key",
            entry.table
        ))),
        _ => Ok(()),
    }
}

fn line(name: &str, value: &str) -> String {
    format!("{}{}\n", padded(&format!("{name}:"), 21), one_line(value))
}

/// The state of the requested entry.
fn described_entry(lock: &proto::DescribeLockResponse, name: &str) -> String {
    let is_in = |queue: &[proto::QueueEntry]| queue.iter().any(|entry| entry.name == name);
    let what = if is_in(&lock.holders) {
        "holds the key"
    } else if is_in(&lock.waiters) {
        "waits for the key"
    } else if lock.ended.iter().any(|ended| ended.name == name) {
        "has ended, see below"
    } else if u64::from(lock.waiter_count) > lock.waiters.len() as u64 {
        "is not among these; there are more (--limit)"
    } else {
        "is not in the queue, nor among the latest ends"
    };
    line("Entry", &format!("{name} {what}"))
}

/// The protocol, and what it does not promise.
fn protocol(lock: &proto::DescribeLockResponse) -> String {
    let name = &lock.protocol;
    match (lock.unfenced, lock.unordered) {
        (false, _) => name.clone(),
        (true, false) => format!("{name}: nothing fences off a holder whose TTL has passed"),
        (true, true) => format!(
            "{name}: nothing fences off a holder whose TTL has passed; waiters have no order"
        ),
    }
}

fn describe(lock: &proto::DescribeLockResponse, now: SystemTime, colour: bool) -> String {
    let mut text = String::new();
    let mut line = |name: &str, value: &str| text.push_str(&line(name, value));
    line("Key", &lock.key);
    line("Table", &lock.table);
    // A server of before does not name it.
    if matches!(&*lock.protocol, "" | "home") {
        line("Home", &home(lock.home.as_ref()));
        line("Source", source(lock));
    } else {
        line("Protocol", &protocol(lock));
    }
    match lock.last_fencing_token {
        0 if lock.unfenced => line("Last fencing token", "none: the protocol has none"),
        0 => line("Last fencing token", "none: never locked"),
        token => line("Last fencing token", &token.to_string()),
    }
    // The value was rewritten before the grant of a holder, though the mark stays until its release.
    if lock.unsynced && lock.holders.is_empty() {
        line(
            "Unsynced",
            "the last holder ended without a clean release: the value is rewritten before the next grant",
        );
    }
    if lock.holders.is_empty() && lock.waiters.is_empty() {
        line("Queue", "empty: nobody holds it");
    } else {
        text.push('\n');
        text.push_str(&entries(lock, now).render(colour));
        let hidden = u64::from(lock.waiter_count).saturating_sub(lock.waiters.len() as u64);
        if hidden > 0 {
            text.push_str(&format!("and {hidden} more\n"));
        }
    }
    if !lock.ended.is_empty() {
        let mut ends = Table::new(&["ENDED", "REASON", "BY", "DETAIL"]);
        for ended in &lock.ended {
            let reason = proto::EndReason::try_from(ended.reason)
                .unwrap_or(proto::EndReason::Unspecified)
                .as_str_name();
            let reason = reason.strip_prefix("END_REASON_").unwrap_or(reason);
            ends.row(vec![
                ended.name.clone(),
                reason.to_lowercase(),
                ended.ended_by.clone(),
                ended.detail.clone(),
            ]);
        }
        text.push('\n');
        text.push_str(&ends.render(colour));
    }
    text
}

fn entries(lock: &proto::DescribeLockResponse, now: SystemTime) -> Table {
    let columns = [
        "STATE",
        "ENTRY",
        "OWNER",
        IDENTITY,
        "AGE",
        "LEASE LEFT",
        "FENCING TOKEN",
        "DURABILITY",
    ];
    let rows = lock.holders.iter().chain(&lock.waiters).map(|entry| {
        let state = match proto::LockState::try_from(entry.state) {
            Ok(proto::LockState::Held) => "held",
            Ok(proto::LockState::Waiting) => "waiting",
            Ok(
                proto::LockState::Unspecified | proto::LockState::Lost | proto::LockState::Released,
            )
            | Err(_) => "",
        };
        let token = match entry.fencing_token {
            0 => String::new(),
            token => token.to_string(),
        };
        vec![
            state.to_owned(),
            entry.name.clone(),
            entry.owner.clone(),
            entry.identity.clone(),
            age(entry.create_time, now),
            lease_left(entry.lease_left),
            token,
            durability(entry),
        ]
    });
    table_of(&columns, rows.collect())
}

/// The home of the key, with its address if it is known to live.
fn home(home: Option<&proto::KeyHome>) -> String {
    match home {
        None => "none yet".to_owned(),
        Some(home) if home.address.is_empty() => {
            format!("{}, not known as live, term {}", home.replica, home.term)
        }
        Some(home) => format!("{}, {}, term {}", home.replica, home.address, home.term),
    }
}

fn source(lock: &proto::DescribeLockResponse) -> &'static str {
    match (&lock.home, lock.from_row) {
        (None, _) => "its row",
        (Some(_), false) => "the memory of its home",
        (Some(_), true) => "its row only, without the memory of its home",
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;
    use crate::cli::cells::tests::holder;

    fn key_home(address: &str) -> Option<proto::KeyHome> {
        Some(proto::KeyHome {
            replica: holder().home,
            address: address.to_owned(),
            term: 3,
        })
    }

    #[test]
    fn a_key_is_shown_with_its_home_and_what_survives_that() {
        let lock = proto::DescribeLockResponse {
            table: "default".to_owned(),
            key: "a".to_owned(),
            last_fencing_token: 7,
            // Until the release, though the value was rewritten before this holder was granted the lock.
            unsynced: true,
            holders: vec![holder()],
            waiters: vec![proto::QueueEntry {
                state: proto::LockState::Waiting.into(),
                fencing_token: 0,
                durable: false,
                ..holder()
            }],
            waiter_count: 3,
            home: key_home("10.0.0.1:7450"),
            protocol: "home".to_owned(),
            ..proto::DescribeLockResponse::default()
        };
        let now = UNIX_EPOCH + Duration::from_secs(101);
        assert_eq!(
            describe(&lock, now, false),
            "Key:                 a\n\
             Table:               default\n\
             Home:                00000001-0000-4000-8000-000000000000, 10.0.0.1:7450, term 3\n\
             Source:              the memory of its home\n\
             Last fencing token:  7\n\
             \n\
             STATE    ENTRY        OWNER    AGE  LEASE LEFT  FENCING TOKEN  DURABILITY\n\
             held     default/a#1  billing  1s   27.2s       7              durable\n\
             waiting  default/a#1  billing  1s   27.2s       -              volatile\n\
             and 2 more\n"
        );
    }

    #[test]
    fn an_identity_a_row_alone_and_a_pending_rewrite_are_shown() {
        let from_row = proto::DescribeLockResponse {
            from_row: true,
            unsynced: true,
            protocol: "home".to_owned(),
            home: key_home(""),
            waiters: vec![proto::QueueEntry {
                identity: "mallory".to_owned(),
                ..holder()
            }],
            ..proto::DescribeLockResponse::default()
        };
        let shown = describe(&from_row, UNIX_EPOCH, false);
        for said in [
            "its row only",
            "not known as live, term 3",
            "rewritten before the next grant",
            "mallory",
        ] {
            assert!(shown.contains(said), "{said}: {shown}");
        }
    }

    #[test]
    fn what_a_protocol_does_not_promise_is_shown() {
        let lock = proto::DescribeLockResponse {
            protocol: "column-prefix".to_owned(),
            unfenced: true,
            unordered: true,
            ..proto::DescribeLockResponse::default()
        };
        let shown = describe(&lock, UNIX_EPOCH, false);
        for said in [
            "column-prefix: nothing fences",
            "no order",
            "the protocol has none",
        ] {
            assert!(shown.contains(said), "{said}: {shown}");
        }
        assert!(!shown.contains("Home"), "{shown}");
    }
}
