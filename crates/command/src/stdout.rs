//! Stdout, and whether there is one at all.

use std::io::{self, StdoutLock, Write};
use std::os::fd::{AsFd, BorrowedFd};

use crate::at_start::was_without_stdout;

/// Stdout, to print to.
///
/// # Errors
///
/// This process was started without one (`>&-`), so that whatever was printed would be lost without a word.
pub fn open() -> io::Result<Stdout> {
    match was_without_stdout() {
        true => Err(io::Error::other("stdout is closed")),
        false => Ok(Stdout(io::stdout().lock())),
    }
}

/// The same, locked. Its errors say that it is stdout which takes nothing, and not a disk of a server.
#[derive(Debug)]
pub struct Stdout(StdoutLock<'static>);

impl Write for Stdout {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes).map_err(named)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush().map_err(named)
    }
}

impl AsFd for Stdout {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Says of an error that it is of stdout.
pub fn named(error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("cannot write to stdout: {error}"))
}
