//! `fermata delete`: deletes the value of a key, under a lock of its own or under a lockRef.

use fermata_client::{CallNumbers, Mutation};
use fermata_command::{Failure, Remote};

use super::put::section;
use super::value;
use super::waiting::LockFlags;

const HELP: &str = "\
Without --lock-ref the command takes the lock on the key, deletes the value and
releases the lock. With --lock-ref it deletes as the holder of that lockRef and
leaves the lock alone.

--output json prints the \"name\" and \"fencing_token\" of the entry that deleted.

Exit status: 0 the key has no value, durably; 64 malformed; 66 no such table or
lockRef; 69 no server (the outcome is unknown); 70 the lock had ended, or was
lost (then the outcome is unknown); 74 the answer cannot be printed; 75 --try,
and others hold the lock; the lockRef does not hold its key yet; another
command uses it (repeat); a limit is reached; the server is overloaded; 77 not
allowed; 124 the wait timed out; 128+n ended by signal n (during the delete the
outcome is unknown).

Examples:
  fermata delete orders-42
  fermata lock orders-42 -- sh -c 'fermata delete --lock-ref'";

/// Delete the value of a key
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = HELP)]
pub struct Args {
    /// The key
    #[arg(
        value_name = "KEY",
        required_unless_present = "lock_ref",
        conflicts_with = "lock_ref"
    )]
    key: Option<String>,

    /// Delete as the holder: under this lockRef [default: FERMATA_LOCK_REF]
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
    let (lock_ref, fencing_token) = match args.lock_ref {
        Some(named) => {
            let (lock_ref, fencing_token) = value::granted(&client, named).await?;
            client
                .critical_write(&lock_ref, Mutation::Delete, &CallNumbers::default())
                .await?;
            (lock_ref, fencing_token)
        }
        None => {
            let key = args.key.unwrap_or_default();
            section(
                &client,
                (&args.remote, &args.taking),
                &key,
                Mutation::Delete,
            )
            .await?
        }
    };
    value::print_written(args.remote.format(), &lock_ref, fencing_token)?;
    Ok(0)
}
