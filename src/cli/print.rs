//! Stdout for a command that hears signals while it prints.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::AsFd as _;

use fermata_command::stdout;

use super::detached::detached;

/// Prints text, in a thread: nobody may ever take it. May be dropped.
pub async fn print_detached(text: String) -> io::Result<()> {
    let print = move || {
        // Not by the standard library's lock of stdout, for which the end of the process would wait.
        let mut file = File::from(stdout::open()?.as_fd().try_clone_to_owned()?);
        file.write_all(text.as_bytes()).map_err(stdout::named)
    };
    detached("stdout", print).await
}
