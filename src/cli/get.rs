//! `fermata get`: reads the value of a key.

use fermata_client::{CallNumbers, public_part};
use fermata_command::output::{Format, print_json};
use fermata_command::{Failure, Remote, exit};
use serde_json::json;

use super::{value, views};

const HELP: &str = "\
Without --lock-ref the value may be stale: a holder may be about to overwrite
it. With --lock-ref it is the latest value, read as the holder.

The value is printed unchanged; a terminal gets a newline after it. With
--output json: {\"exists\", \"value\" (null if it is not UTF-8),
\"value_base64\"}, and \"table\" and \"key\", or \"name\" and
\"fencing_token\".

Exit status: 0; 1 the key has no value; 64 malformed; 66 no such table or
lockRef; 69 no server; 70 the lock is lost; 74 it cannot be printed; 75 the
lockRef does not hold its key yet, or another command uses it just now
(repeat), or a limit is reached, or the server is overloaded; 77 not allowed.

Examples:
  fermata get orders-42
  fermata lock orders-42 -- sh -c 'fermata get --lock-ref'
  fermata get --lock-ref=REF";

/// Read the value of a key
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

    /// Read as the holder: under this lockRef [default: FERMATA_LOCK_REF]
    #[arg(long, value_name = "LOCK_REF", num_args = 0..=1, require_equals = true)]
    lock_ref: Option<Option<String>>,

    #[command(flatten)]
    pub remote: Remote,
}

/// Runs the command.
pub async fn run(args: Args) -> Result<u8, Failure> {
    let client = args.remote.client()?;
    let (read, mut document) = match args.lock_ref {
        None => {
            let (table, key) = (args.remote.table(), args.key.unwrap_or_default());
            let read = client.get(&table, &key).await?;
            let table = if table.is_empty() {
                "default".to_owned()
            } else {
                table
            };
            (read, json!({ "table": table, "key": key }))
        }
        Some(named) => {
            let (lock_ref, fencing_token) = value::granted(&client, named).await?;
            let read = client
                .critical_get(&lock_ref, &CallNumbers::default())
                .await?;
            let document =
                json!({ "name": public_part(&lock_ref), "fencing_token": fencing_token });
            (read, document)
        }
    };
    match args.remote.format() {
        Format::Json => {
            if let (Some(all), serde_json::Value::Object(more)) =
                (document.as_object_mut(), views::value(read.as_ref()))
            {
                all.extend(more);
            }
            print_json(&document)?;
        }
        Format::Text => {
            if let Some(value) = &read {
                value::write(value)?;
            }
        }
    }
    Ok(if read.is_some() { 0 } else { exit::NEGATIVE })
}
