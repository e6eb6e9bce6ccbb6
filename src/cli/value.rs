//! What `get`, `put` and `delete` have in common: values, and the lockRef of another process.

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
use crate::lock::LockRef;

/// Reads a value from where it was said to be.
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
            "{whence} has more than {max} bytes (64 MiB), which no server takes as a value"
        ))),
        Err(error @ (ReadError::Io(_) | ReadError::NotRegular | ReadError::NotText)) => {
            let words = format!("cannot read the value from {whence}: {error}");
            Err(Failure::new(exit::IO, words))
        }
    }
}

/// Writes a value as it is; for a terminal with an end of line.
pub fn write(value: &[u8]) -> io::Result<()> {
    print_bytes(value)?;
    match io::stdout().is_terminal() && !value.ends_with(b"\n") {
        true => print_bytes(b"\n"),
        false => Ok(()),
    }
}

/// The lockRef to act under: the one of `--lock-ref=REF`; with a bare `--lock-ref` the first argument if
/// that is one, else the environment's. What is left of the arguments comes back.
pub fn lock_ref(
    given: Option<&str>,
    mut arguments: Vec<String>,
) -> Result<(String, Vec<String>), Failure> {
    if let Some(given) = given {
        return Ok((given.to_owned(), arguments));
    }
    let first_is_one = arguments
        .first()
        .is_some_and(|first| LockRef::parse(first, "").is_ok());
    if first_is_one {
        return Ok((arguments.remove(0), arguments));
    }
    match variable(LOCK_REF_VARIABLE) {
        Some(inherited) => Ok((inherited, arguments)),
        None => Err(Failure::usage(format!(
            "--lock-ref names no lockRef, and {LOCK_REF_VARIABLE} is not set (fermata lock sets it)"
        ))),
    }
}

/// The lockRef to act under, with its present grant, where nothing is said beside it.
pub async fn granted_alone(
    client: &Client,
    given: Option<&str>,
    argument: Option<String>,
) -> Result<(String, u64), Failure> {
    let (lock_ref, rest) = lock_ref(given, argument.into_iter().collect())?;
    if !rest.is_empty() {
        return Err(Failure::usage("a lockRef names its key; leave the key out"));
    }
    granted(client, &lock_ref).await
}

/// Says which entry something was written under, where that was asked for as JSON.
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

/// The lockRef with its present grant: it may have been taken over since it was handed on.
pub async fn granted(client: &Client, lock_ref: &str) -> Result<(String, u64), Failure> {
    let acquired = client.acquire_lock(lock_ref).await;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bare_flag_takes_the_first_argument_if_it_is_a_lock_ref() {
        let arguments = vec![
            "default/a#1.00000000000000000000000000@7".to_owned(),
            "v".to_owned(),
        ];
        let (lock_ref, rest) = lock_ref(None, arguments).unwrap();
        assert_eq!(lock_ref, "default/a#1.00000000000000000000000000@7");
        assert_eq!(rest, ["v"]);
    }

    #[test]
    fn a_named_lock_ref_leaves_the_arguments_alone() {
        let (named, rest) = lock_ref(Some("x"), vec!["v".to_owned()]).unwrap();
        assert_eq!((named.as_str(), rest.len()), ("x", 1));
    }
}
