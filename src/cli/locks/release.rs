//! `fermata locks release`: ends a lock by force.

use fermata_client::public_part;
use fermata_command::output::{Format, one_line, print_json, print_text};
use fermata_command::remote::{Remote, who};
use fermata_command::{Failure, exit};
use serde_json::json;

const HELP: &str = "\
Later calls of the former holder fail with the reason; `fermata lock` stops its
command. Until it learns of the release, the former holder may still act on
other systems, where only fencing tokens help.

Exit status: 0 (also if it had ended before); 64 malformed; 66 no such entry,
or nobody holds the key; 69 no server; 74 it is done, and cannot be printed; 75
a limit is reached, or the server is overloaded; 77 not allowed.

Examples:
  fermata locks release --key orders-42 --reason 'stuck since noon'
  fermata locks release 'default/orders-42#17' --reason 'gave up'";

/// End a lock, or an entry in a queue, by force
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = HELP)]
pub struct Args {
    /// The entry to end, as `locks show` prints it, or its lockRef
    #[arg(value_name = "ENTRY", required_unless_present = "key")]
    entry: Option<String>,

    /// End the holder of this key instead
    #[arg(long, value_name = "KEY", conflicts_with = "entry")]
    key: Option<String>,

    /// The reason; kept, and sent to the former holder
    #[arg(long, value_name = "TEXT")]
    reason: String,

    /// The operator; kept, and sent to the former holder (default: user@host)
    #[arg(long, value_name = "TEXT")]
    by: Option<String>,

    #[command(flatten)]
    pub remote: Remote,
}

/// Runs the command.
pub async fn run(args: Args) -> Result<(), Failure> {
    let client = args.remote.client()?;
    let name = match (args.entry, args.key) {
        (Some(entry), _) => public_part(&entry).to_owned(),
        (None, Some(key)) => {
            let table = args.remote.table();
            let lock = client.describe_lock(&table, &key, 1).await?;
            let Some(holder) = lock.holders.into_iter().next() else {
                return Err(Failure::new(exit::NO_INPUT, format!("nobody holds {key}")));
            };
            holder.name
        }
        (None, None) => return Err(Failure::usage("name an entry, or a key with --key")),
    };
    let by = args.by.unwrap_or_else(who);
    let released = client.force_release(&name, &args.reason, &by).await?;
    let what = match (released.already_released, released.was_holder) {
        (true, _) => "had ended before",
        (false, true) => "released; it held the key",
        (false, false) => "released; it waited for the key",
    };
    let what = format!("{} {what}", one_line(&name));
    let printed = match args.remote.format() {
        Format::Json => print_json(&json!({
            "name": name,
            "already_released": released.already_released,
            "was_holder": released.was_holder,
        })),
        Format::Text => print_text(&format!("{what}\n")),
    };
    printed.map_err(|error| Failure::unprinted(&what, error))
}
