//! `fermata locks show`: the queue of one key.

use std::collections::BTreeSet;
use std::time::SystemTime;

use fermata_command::output::{Format, Table, colour, one_line, print_json, print_text};
use fermata_command::{Failure, Remote};
use fermata_proto as proto;

use super::{age, lease_left, short};
use crate::cli::views;

const HELP: &str = "\
Exit status: 0 (also where nobody holds the key); 64 malformed; 66 no such
table; 69 no server; 77 not allowed.

Examples:
  fermata locks show orders-42
  fermata locks show orders-42 --output json | jq .waiter_count

With --output json the fields are those of DescribeLockResponse in the
protobuf contract.";

/// Show the queue of one key: its holder, who waits, and the latest ends
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = HELP)]
pub struct Args {
    /// The key
    #[arg(value_name = "KEY")]
    key: String,

    /// So many waiters at most
    #[arg(long, value_name = "N", default_value_t = 1000)]
    limit: usize,

    #[command(flatten)]
    pub remote: Remote,
}

/// Runs the command.
pub async fn run(args: Args) -> Result<(), Failure> {
    let client = args.remote.client()?;
    let table = args.remote.table();
    let lock = client.describe_lock(&table, &args.key, args.limit).await?;
    match args.remote.format() {
        Format::Json => print_json(&views::described(&lock))?,
        Format::Text => {
            let replicas = match lock.holders.is_empty() {
                true => Vec::new(),
                false => client.list_replicas().await?,
            };
            print_text(&describe(&lock, &replicas, SystemTime::now(), colour()))?;
        }
    }
    Ok(())
}

fn describe(
    lock: &proto::DescribeLockResponse,
    replicas: &[proto::ReplicaInfo],
    now: SystemTime,
    colour: bool,
) -> String {
    let mut text = format!(
        "{} (table {})\n",
        one_line(&lock.key),
        one_line(&lock.table)
    );
    match lock.last_fencing_token {
        0 => text.push_str("never locked\n"),
        token => text.push_str(&format!("last fencing token {token}\n")),
    }
    // For one who holds it that was done before it was granted the lock, though the mark stays until its release.
    if lock.unsynced && lock.holders.is_empty() {
        text.push_str(
            "the last holder went without a clean release: the value is rewritten before the next one is granted the lock\n",
        );
    }
    if lock.holders.is_empty() && lock.waiters.is_empty() {
        text.push_str("nobody holds it\n");
    } else {
        text.push('\n');
        text.push_str(&entries(lock, now).render(colour));
        let hidden = u64::from(lock.waiter_count).saturating_sub(lock.waiters.len() as u64);
        if hidden > 0 {
            text.push_str(&format!("and {hidden} more\n"));
        }
        text.push('\n');
        text.push_str(&homes(lock, replicas).render(colour));
    }
    if !lock.ended.is_empty() {
        let mut ends = Table::new(&["ENDED", "REASON", "BY", "DETAIL"]);
        for ended in &lock.ended {
            let reason = proto::EndReason::try_from(ended.reason)
                .unwrap_or(proto::EndReason::Unspecified)
                .as_str_name();
            let reason = reason.strip_prefix("END_REASON_").unwrap_or(reason);
            ends.row(vec![
                ended.lock_ref.clone(),
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
        "LOCK_REF",
        "OWNER",
        "AGE",
        "LEASE LEFT",
        "FENCING TOKEN",
        "HOME",
    ];
    let mut table = Table::new(&columns);
    for entry in lock.holders.iter().chain(&lock.waiters) {
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
        table.row(vec![
            state.to_owned(),
            entry.lock_ref.clone(),
            entry.owner.clone(),
            age(entry, now),
            lease_left(entry),
            token,
            short(&entry.home),
        ]);
    }
    table
}

/// The replicas that serve the entries, and where each takes calls: nothing of one that is gone.
fn homes(lock: &proto::DescribeLockResponse, replicas: &[proto::ReplicaInfo]) -> Table {
    let entries = lock.holders.iter().chain(&lock.waiters);
    let homes: BTreeSet<&str> = entries.map(|entry| entry.home.as_str()).collect();
    let mut table = Table::new(&["HOME", "REPLICA", "ADDRESS"]);
    for home in homes {
        let known = replicas.iter().find(|one| one.replica == home);
        let address = known.map(|one| one.address.clone());
        table.row(vec![
            short(home),
            home.to_owned(),
            address.unwrap_or_default(),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::super::tests::holder;
    use super::*;

    #[test]
    fn the_home_of_each_entry_is_told_with_its_address_if_that_is_known() {
        let home = |number: u8| format!("0000000{number}-0000-4000-8000-000000000000");
        let entry = |number| proto::QueueEntry {
            home: home(number),
            ..holder()
        };
        let lock = proto::DescribeLockResponse {
            table: "default".to_owned(),
            key: "a".to_owned(),
            last_fencing_token: 7,
            // Until the release, though the value was rewritten before this holder was granted the lock.
            unsynced: true,
            holders: vec![entry(1)],
            waiters: vec![entry(2)],
            waiter_count: 1,
            ..proto::DescribeLockResponse::default()
        };
        let replicas = [proto::ReplicaInfo {
            replica: home(1),
            address: "10.0.0.1:7450".to_owned(),
            ..proto::ReplicaInfo::default()
        }];
        let now = UNIX_EPOCH + Duration::from_secs(101);
        assert_eq!(
            describe(&lock, &replicas, now, false),
            "a (table default)\n\
             last fencing token 7\n\
             \n\
             STATE  LOCK_REF              OWNER    AGE  LEASE LEFT  FENCING TOKEN  HOME\n\
             held   default/a#1.00000000  billing  1s   27.2s       7              00000001\n\
             held   default/a#1.00000000  billing  1s   27.2s       7              00000002\n\
             \n\
             HOME      REPLICA                               ADDRESS\n\
             00000001  00000001-0000-4000-8000-000000000000  10.0.0.1:7450\n\
             00000002  00000002-0000-4000-8000-000000000000  -\n"
        );
    }

    #[test]
    fn a_value_that_is_yet_to_be_rewritten_is_told() {
        let lock = proto::DescribeLockResponse {
            unsynced: true,
            ..proto::DescribeLockResponse::default()
        };
        let answered = describe(&lock, &[], UNIX_EPOCH, false);
        assert!(
            answered.contains("rewritten before the next one"),
            "{answered}"
        );
    }

    #[test]
    fn a_key_that_nobody_holds_says_so_and_why_it_ended() {
        let lock = proto::DescribeLockResponse {
            table: "default".to_owned(),
            key: "a".to_owned(),
            last_fencing_token: 7,
            ended: vec![proto::EndedEntry {
                lock_ref: "default/a#1.00000000".to_owned(),
                seq: 1,
                reason: proto::EndReason::Forced.into(),
                ended_by: "ops".to_owned(),
                detail: "host on fire".to_owned(),
            }],
            ..proto::DescribeLockResponse::default()
        };
        assert_eq!(
            describe(&lock, &[], UNIX_EPOCH, false),
            "a (table default)\n\
             last fencing token 7\n\
             nobody holds it\n\
             \n\
             ENDED                 REASON  BY   DETAIL\n\
             default/a#1.00000000  forced  ops  host on fire\n"
        );
    }
}
