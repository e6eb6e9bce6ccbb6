//! `fermata put`: writes the value of a key.

use std::path::PathBuf;

use fermata_client::{CallNumbers, Client, Mutation};
use fermata_command::{Failure, Remote};

use super::leaving::unreleased;
use super::signals::Signals;
use super::value;
use super::waiting::LockFlags;

const HELP: &str = "\
Without --lock-ref the command takes the lock on the key, writes, and releases
the lock, even if the write fails. With --lock-ref it writes as the holder of
that lockRef and leaves the lock alone.

--output json prints the \"name\" and \"fencing_token\" of the entry that wrote.

Exit status: 0 the value is durable; 64 malformed; 66 no such table or
lockRef; 69 no server (the outcome is unknown); 70 the lock had ended, or was
lost (then the outcome is unknown); 74 the value cannot be read, or the answer
not be printed; 75 --try, and others hold the lock; the lockRef does not hold
its key yet; another command uses it (repeat); a limit is reached; the server
is overloaded; 77 not allowed; 124 the wait timed out; 128+n ended by signal n
(during the write the outcome is unknown).

Examples:
  fermata put orders-42 charged
  date | fermata put orders-42 -
  fermata put orders-42 --file order.json --wait 10s
  fermata lock orders-42 -- sh -c 'fermata put --lock-ref charged'
  fermata put --lock-ref=REF done";

/// Write the value of a key
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = HELP, override_usage = "\
    fermata put [OPTIONS] KEY <VALUE | - | --file FILE>\n       \
    fermata put [OPTIONS] --lock-ref[=LOCK_REF] <VALUE | - | --file FILE>")]
pub struct Args {
    /// The key (not with --lock-ref), and the value; - reads it from stdin
    #[arg(value_name = "KEY VALUE", num_args = 0..=2)]
    arguments: Vec<String>,

    /// Read the value from this file
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,

    /// Write as the holder: under this lockRef [default: FERMATA_LOCK_REF]
    #[arg(long, value_name = "LOCK_REF", num_args = 0..=1, require_equals = true)]
    lock_ref: Option<Option<String>>,

    #[command(flatten)]
    taking: LockFlags,

    #[command(flatten)]
    pub remote: Remote,
}

/// Runs the command.
pub async fn run(args: Args) -> Result<u8, Failure> {
    let client = args.remote.client()?;
    let (lock_ref, fencing_token) = match (args.lock_ref, args.arguments.as_slice()) {
        (Some(named), given @ ([] | [_])) => {
            let value = value::read(given.first().map(String::as_str), args.file.as_ref())?;
            let (lock_ref, fencing_token) = value::granted(&client, named).await?;
            client
                .critical_write(&lock_ref, Mutation::Put(value), &CallNumbers::default())
                .await?;
            (lock_ref, fencing_token)
        }
        (Some(_), _) => {
            let words = "a lockRef names its key; give the value alone (--lock-ref=LOCK_REF VALUE)";
            return Err(Failure::usage(words));
        }
        (None, [key, given @ ..]) => {
            // Before anything is locked: stdin may take its time.
            let value = value::read(given.first().map(String::as_str), args.file.as_ref())?;
            let taking = (&args.remote, &args.taking);
            section(&client, taking, key, Mutation::Put(value)).await?
        }
        (None, []) => return Err(Failure::usage("give a key and a value")),
    };
    value::print_written(args.remote.format(), &lock_ref, fencing_token)?;
    Ok(0)
}

/// Writes under a lock of its own. Returns its lockRef and fencing token.
pub(super) async fn section(
    client: &Client,
    (remote, taking): (&Remote, &LockFlags),
    key: &str,
    mutation: Mutation,
) -> Result<(String, u64), Failure> {
    let mut signals = Signals::new()?;
    let guard = taking
        .lock(client, &remote.table(), key, &mut signals)
        .await?;
    let written = (guard.lock_ref(), guard.fencing_token());
    let ends = unreleased(&guard);
    match signals.finish_soon(guard.release_with(mutation)).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => return Err(error.into()),
        Err(signal) => {
            let what = format!(
                "{signal} came before an answer: it is unknown whether {key} was changed; its lock ends {ends}"
            );
            return Err(Failure::signal(signal, what));
        }
    }
    Ok(written)
}
