//! `fermata locks`: what is locked, by whom, and ending it.

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};

use serde_json::json;

use super::exit;
use super::failure::Failure;
use super::output::{Format, Table, colour, one_line, print_json, print_text};
use super::remote::{Remote, who};
use super::views;
use crate::config::Span;
use crate::proto;

/// Look at locks, and end them
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Clone, clap::Subcommand)]
enum Command {
    Ls(LsArgs),
    Show(ShowArgs),
    Release(ReleaseArgs),
}

const LS_HELP: &str = "\
Exit status: 0; 64 malformed; 66 no such table; 69 no server; 77 not allowed.

Examples:
  fermata locks ls
  fermata locks ls orders/ --contended
  fermata locks ls --output json | jq -r '.locks[].holder.owner'

With --output json the fields are those of ListLocksResponse in the protobuf
contract.";

/// List the keys that somebody holds or waits for
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = LS_HELP)]
struct LsArgs {
    /// Only keys that start with this
    #[arg(value_name = "PREFIX", default_value = "")]
    prefix: String,

    /// Only keys that somebody waits for
    #[arg(long)]
    contended: bool,

    /// So many keys at most
    #[arg(long, value_name = "N", default_value_t = 1000)]
    limit: usize,

    #[command(flatten)]
    remote: Remote,
}

const SHOW_HELP: &str = "\
Exit status: 0 (also where nobody holds the key); 64 malformed; 66 no such
table; 69 no server; 77 not allowed.

Examples:
  fermata locks show orders-42
  fermata locks show orders-42 --output json | jq .waiter_count

With --output json the fields are those of DescribeLockResponse in the
protobuf contract.";

/// Show the queue of one key: its holder, who waits, and the latest ends
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = SHOW_HELP)]
struct ShowArgs {
    /// The key
    #[arg(value_name = "KEY")]
    key: String,

    /// So many waiters at most
    #[arg(long, value_name = "N", default_value_t = 1000)]
    limit: usize,

    #[command(flatten)]
    remote: Remote,
}

const RELEASE_HELP: &str = "\
The former holder's calls fail from then on and are told the reason; `fermata
lock` stops its command. Until it has heard of it the former holder may still
act on other systems: there only fencing tokens help.

Exit status: 0 (also if it was over before); 64 malformed; 66 no such lockRef,
or nobody holds the key; 69 no server; 77 not allowed.

Examples:
  fermata locks release --key orders-42 --reason 'stuck since noon'
  fermata locks release 'default/orders-42#17.k3vt9p2q' --reason 'gave up'";

/// End a lock, or a place in a queue, by force
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = RELEASE_HELP)]
struct ReleaseArgs {
    /// The lockRef to end, as `locks show` prints it
    #[arg(value_name = "LOCK_REF", required_unless_present = "key")]
    lock_ref: Option<String>,

    /// End whatever holds this key instead
    #[arg(long, value_name = "KEY", conflicts_with = "lock_ref")]
    key: Option<String>,

    /// Why; kept, and told to the former holder
    #[arg(long, value_name = "TEXT")]
    reason: String,

    /// Who; kept, and told to the former holder (default: user@host)
    #[arg(long, value_name = "TEXT")]
    by: Option<String>,

    #[command(flatten)]
    remote: Remote,
}

/// Runs the command.
pub async fn run(args: Args, before: &Remote) -> Result<u8, Failure> {
    match args.command {
        Command::Ls(mut args) => {
            args.remote = args.remote.or(before);
            ls(args).await?;
        }
        Command::Show(mut args) => {
            args.remote = args.remote.or(before);
            show(args).await?;
        }
        Command::Release(mut args) => {
            args.remote = args.remote.or(before);
            release(args).await?;
        }
    }
    Ok(0)
}

async fn ls(args: LsArgs) -> Result<(), Failure> {
    let client = args.remote.client()?;
    let table = args.remote.table();
    let locks = client
        .list_locks(&table, &args.prefix, args.contended, args.limit)
        .await?;
    match args.remote.format() {
        Format::Json => print_json(&views::locks(&locks))?,
        Format::Text => print_text(&list(&locks, SystemTime::now(), colour()))?,
    }
    Ok(())
}

fn list(locks: &[proto::LockSummary], now: SystemTime, colour: bool) -> String {
    let mut table = Table::new(&["KEY", "OWNER", "AGE", "LEASE LEFT", "WAITERS", "LOCK_REF"]);
    for lock in locks {
        let holder = lock.holder.clone().unwrap_or_default();
        table.row(vec![
            lock.key.clone(),
            holder.owner.clone(),
            age(&holder, now),
            lease_left(&holder),
            lock.waiters.to_string(),
            holder.lock_ref,
        ]);
    }
    table.render(colour)
}

async fn show(args: ShowArgs) -> Result<(), Failure> {
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
    // For one who holds it that was done before it was let in, though the mark stays until its release.
    if lock.unsynced && lock.holders.is_empty() {
        text.push_str(
            "the last holder went without a clean release: the value is rewritten before the next one is let in\n",
        );
    }
    if lock.holders.is_empty() && lock.waiters.is_empty() {
        text.push_str("nobody holds it\n");
    } else {
        text.push('\n');
        text.push_str(&places(lock, now).render(colour));
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

fn places(lock: &proto::DescribeLockResponse, now: SystemTime) -> Table {
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
    for place in lock.holders.iter().chain(&lock.waiters) {
        let state = match proto::LockState::try_from(place.state) {
            Ok(proto::LockState::Held) => "held",
            Ok(proto::LockState::Waiting) => "waiting",
            Ok(
                proto::LockState::Unspecified | proto::LockState::Lost | proto::LockState::Released,
            )
            | Err(_) => "",
        };
        let token = match place.fencing_token {
            0 => String::new(),
            token => token.to_string(),
        };
        table.row(vec![
            state.to_owned(),
            place.lock_ref.clone(),
            place.owner.clone(),
            age(place, now),
            lease_left(place),
            token,
            short(&place.home),
        ]);
    }
    table
}

/// The replicas that serve the places, and where each takes calls: nothing of one that is gone.
fn homes(lock: &proto::DescribeLockResponse, replicas: &[proto::ReplicaInfo]) -> Table {
    let places = lock.holders.iter().chain(&lock.waiters);
    let homes: BTreeSet<&str> = places.map(|place| place.home.as_str()).collect();
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

/// Enough of a UUID to tell it from a few others.
fn short(uuid: &str) -> String {
    uuid.split('-').next().unwrap_or_default().to_owned()
}

/// How long ago a place was created, by the clocks of two machines.
fn age(place: &proto::Place, now: SystemTime) -> String {
    let created = place
        .create_time
        .and_then(|time| SystemTime::try_from(time).ok());
    let Some(created) = created else {
        return String::new();
    };
    let age = now.duration_since(created).unwrap_or(Duration::ZERO);
    Span::from_secs(age.as_secs()).to_string()
}

fn lease_left(place: &proto::Place) -> String {
    let left = place
        .lease_left
        .and_then(|left| Duration::try_from(left).ok());
    left.map_or_else(String::new, |left| format!("{:.1}s", left.as_secs_f64()))
}

async fn release(args: ReleaseArgs) -> Result<(), Failure> {
    let client = args.remote.client()?;
    let lock_ref = match (args.lock_ref, args.key) {
        (Some(lock_ref), _) => lock_ref,
        (None, Some(key)) => {
            let table = args.remote.table();
            let lock = client.describe_lock(&table, &key, 1).await?;
            let Some(holder) = lock.holders.into_iter().next() else {
                return Err(Failure::new(exit::NO_INPUT, format!("nobody holds {key}")));
            };
            holder.lock_ref
        }
        (None, None) => return Err(Failure::usage("name a lockRef, or a key with --key")),
    };
    let by = args.by.unwrap_or_else(who);
    let released = client.force_release(&lock_ref, &args.reason, &by).await?;
    match args.remote.format() {
        Format::Json => print_json(&json!({
            "lock_ref": lock_ref,
            "already_released": released.already_released,
            "was_holder": released.was_holder,
        }))?,
        Format::Text => {
            let what = match (released.already_released, released.was_holder) {
                (true, _) => "was over before",
                (false, true) => "released; it held the key",
                (false, false) => "released; it waited for the key",
            };
            print_text(&format!("{} {what}\n", one_line(&lock_ref)))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;

    fn holder() -> proto::Place {
        proto::Place {
            lock_ref: "default/a#1.00000000".to_owned(),
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
            ..proto::Place::default()
        }
    }

    #[test]
    fn a_list_tells_who_holds_and_how_many_wait() {
        let locks = [proto::LockSummary {
            table: "default".to_owned(),
            key: "a".to_owned(),
            holder: Some(holder()),
            waiters: 2,
        }];
        let now = UNIX_EPOCH + Duration::from_secs(190);
        assert_eq!(
            list(&locks, now, false),
            "KEY  OWNER    AGE    LEASE LEFT  WAITERS  LOCK_REF\n\
             a    billing  1m30s  27.2s       2        default/a#1.00000000\n"
        );
    }

    #[test]
    fn the_home_of_each_place_is_told_with_its_address_if_that_is_known() {
        let home = |number: u8| format!("0000000{number}-0000-4000-8000-000000000000");
        let place = |number| proto::Place {
            home: home(number),
            ..holder()
        };
        let lock = proto::DescribeLockResponse {
            table: "default".to_owned(),
            key: "a".to_owned(),
            last_fencing_token: 7,
            // Until the release, though the value was rewritten before this holder was let in.
            unsynced: true,
            holders: vec![place(1)],
            waiters: vec![place(2)],
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
        let told = describe(&lock, &[], UNIX_EPOCH, false);
        assert!(told.contains("rewritten before the next one"), "{told}");
    }

    #[test]
    fn a_key_that_nobody_holds_says_so_and_why_it_ended() {
        let lock = proto::DescribeLockResponse {
            table: "default".to_owned(),
            key: "a".to_owned(),
            last_fencing_token: 7,
            ended: vec![proto::EndedPlace {
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
