//! How the process ends.

use std::io::{self, Write as _};

use fermata_command::exit;
use fermata_command::output::say;

/// Where the program cannot even begin.
pub fn end_without_threads(error: &io::Error) -> ! {
    // Where nobody is left to read it, the exit status says so too.
    say(&format!("no threads can be made: {error}"));
    end(exit::OS.into())
}

/// Ends it now, with this status. What libraries in C do when a process ends by itself is left out: they free what threads of
/// theirs may still use, for which nobody waits, and a status of success would be a crash then.
pub fn end(status: i32) -> ! {
    // Nobody is left who could be told that it failed.
    let _ = io::stdout().flush();
    #[allow(unsafe_code)]
    // SAFETY: it takes a number, and comes back to nobody.
    unsafe {
        nix::libc::_exit(status)
    }
}
