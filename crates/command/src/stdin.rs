//! Stdin, and whether there is one at all.

use std::io::{self, StdinLock};

use crate::at_start::was_without_stdin;

/// Stdin, to read from.
///
/// # Errors
///
/// This process was started without one (`<&-`), so that it would seem to be empty.
pub fn open() -> io::Result<StdinLock<'static>> {
    match was_without_stdin() {
        true => Err(io::Error::other("stdin is closed")),
        false => Ok(io::stdin().lock()),
    }
}
