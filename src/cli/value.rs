//! Shared by `get`, `put` and `delete`: values, and the lockRef of another process.

use std::io::{self, IsTerminal};
use std::path::PathBuf;

use bytes::Bytes;
use fermata_client::{Client, LockStatus, LostReason, WaitError, public_part};
use fermata_command::output::{Format, print_bytes, print_json};
use fermata_command::remote::{LOCK_REF_VARIABLE, variable};
use fermata_command::{Failure, exit};
use fermata_files::{ReadError, read_to_end};
use serde_json::json;

use crate::limits::VALUE_BYTES_MAX;

/// Reads a value from an argument, a file or stdin.
pub fn read(given: Option<&str>, file: Option<&PathBuf>) -> Result<Bytes, Failure> {
    match (given, file) {
        (Some("-"), None) => {
            let from_stdin = read_to_end(io::stdin().lock(), VALUE_BYTES_MAX as u64);
            value(from_stdin, "stdin")
        }
        (Some(text), None) => Ok(Bytes::copy_from_slice(text.as_bytes())),
        (None, Some(file)) => {
            let from_file = fermata_files::read(file, VALUE_BYTES_MAX as u64);
            value(from_file, &file.display().to_string())
        }
        (Some(_), Some(_)) => Err(Failure::usage("give the value or --file, not both")),
        (None, None) => Err(Failure::usage("give the value, - for stdin, or --file")),
    }
}

fn value(read: Result<Vec<u8>, ReadError>, whence: &str) -> Result<Bytes, Failure> {
    match read {
        Ok(value) => Ok(value.into()),
        Err(ReadError::TooLarge { max }) => Err(Failure::usage(format!(
            "{whence} has more than {max} bytes (64 MiB), the limit of a value on any server"
        ))),
        Err(error @ (ReadError::Io(_) | ReadError::NotRegular | ReadError::NotText)) => {
            let words = format!("cannot read the value from {whence}: {error}");
            Err(Failure::new(exit::IO, words))
        }
    }
}

/// Prints a value unchanged; on a terminal with an end of line.
pub fn write(value: &[u8]) -> io::Result<()> {
    print_bytes(value)?;
    match io::stdout().is_terminal() && !value.ends_with(b"\n") {
        true => print_bytes(b"\n"),
        false => Ok(()),
    }
}

/// The lockRef of `--lock-ref=REF`; a bare `--lock-ref` is that of the environment.
fn lock_ref(given: Option<String>) -> Result<String, Failure> {
    given.or_else(|| variable(LOCK_REF_VARIABLE)).ok_or_else(|| {
        Failure::usage(format!(
            "--lock-ref names no lockRef, and {LOCK_REF_VARIABLE} is not set (fermata lock sets it)"
        ))
    })
}

/// Prints the entry that wrote, for `--output json`.
pub fn print_written(format: Format, lock_ref: &str, fencing_token: u64) -> Result<(), Failure> {
    match format {
        Format::Json => print_json(&json!({
            "name": public_part(lock_ref),
            "fencing_token": fencing_token,
        }))
        .map_err(|error| Failure::unprinted("it is written", error)),
        Format::Text => Ok(()),
    }
}

/// The lockRef of `--lock-ref` with its present grant, which may differ from the grant that was handed on.
pub async fn granted(client: &Client, given: Option<String>) -> Result<(String, u64), Failure> {
    let lock_ref = lock_ref(given)?;
    let acquired = client.acquire_lock(&lock_ref).await;
    let acquired = acquired.map_err(|error| match error {
        WaitError::Lost(lost) if lost.reason == LostReason::NeverIssued => {
            Failure::new(exit::NO_INPUT, lost.to_string())
        }
        error => error.into(),
    })?;
    match acquired.status {
        LockStatus::Held { fencing_token } => Ok((acquired.lock_ref, fencing_token)),
        LockStatus::Waiting { position } => Err(Failure::new(
            exit::TEMPORARY,
            format!("this lockRef does not hold its key yet ({position} ahead)"),
        )),
    }
}
