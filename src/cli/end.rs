//! The end of the process.

use std::io::{self, Write as _};

use fermata_command::exit;
use fermata_command::output::say;

/// The end of a program that cannot begin.
pub fn end_without_threads(error: &io::Error) -> ! {
    say(&format!("cannot start threads: {error}"));
    end(exit::OS.into())
}

/// Ends the process now, without the exit handlers of C libraries: they free memory that their threads may use still, and a
/// success would become a crash.
pub fn end(status: i32) -> ! {
    let _ = io::stdout().flush();
    #[allow(unsafe_code)]
    // SAFETY: it takes a number, and comes back to nobody.
    unsafe {
        nix::libc::_exit(status)
    }
}
