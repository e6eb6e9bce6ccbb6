//! `fermata health`: asks whether the server serves.

use fermata_client::CallError;
use fermata_command::output::{Format, print_json, print_text};
use fermata_command::{Failure, Remote, exit};
use serde_json::json;

const HELP: &str = "\
Without SERVICE: whether the server has its store and may answer. With
`liveness`: whether the process answers at all, even without its store. The
command calls grpc.health.v1, which needs no login.

Exit status: 0 it serves; 64 malformed; 66 no such service; 69 it does not
serve, or there is no server; 74 it cannot be printed.

Examples:
  fermata health && echo up
  fermata health liveness --timeout 1s
  fermata health --endpoint unix:/run/fermata/socket";

/// Ask whether the server serves, as probes do
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = HELP)]
pub struct Args {
    /// A service of the contract, or `liveness`; without it the server as a whole
    #[arg(value_name = "SERVICE", default_value = "", hide_default_value = true)]
    service: String,

    #[command(flatten)]
    pub remote: Remote,
}

/// Runs the command.
pub async fn run(args: Args) -> Result<u8, Failure> {
    let client = args.remote.client()?;
    let serves = match client.is_serving(&args.service).await {
        Err(CallError::NotFound(_)) => return Err(unknown(&args.service)),
        serves => serves?,
    };
    match args.remote.format() {
        Format::Json => print_json(&json!({
            "status": if serves { "SERVING" } else { "NOT_SERVING" },
        }))?,
        Format::Text => print_text(if serves { "serving\n" } else { "not serving\n" })?,
    }
    Ok(if serves { 0 } else { exit::UNAVAILABLE })
}

fn unknown(service: &str) -> Failure {
    let words = format!(
        "the server has no service {service:?}: `liveness`, or the whole name of one, such as fermata.v1.LockService"
    );
    Failure::new(exit::NO_INPUT, words)
}
