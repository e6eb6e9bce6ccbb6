//! Stdout for a command that hears signals while it prints, and whether there is a stdout at all.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::AsFd as _;
use std::sync::atomic::{AtomicBool, Ordering};

use super::detached::detached;

/// Prints text, in a thread: nobody may ever take it. May be dropped.
pub async fn print(text: String) -> io::Result<()> {
    let print = move || {
        // Not by the standard library's lock of stdout, for which the end of the process would wait.
        let mut stdout = File::from(io::stdout().as_fd().try_clone_to_owned()?);
        stdout.write_all(text.as_bytes())
    };
    detached("stdout", print).await
}

static WAS_CLOSED: AtomicBool = AtomicBool::new(false);

/// Whether this process was started without a stdout (`>&-`).
pub fn was_closed() -> bool {
    WAS_CLOSED.load(Ordering::Relaxed)
}

extern "C" fn note_closed() {
    #[allow(unsafe_code)]
    // SAFETY: it takes two numbers, and changes nothing.
    let flags = unsafe { nix::libc::fcntl(nix::libc::STDOUT_FILENO, nix::libc::F_GETFD) };
    WAS_CLOSED.store(flags == -1, Ordering::Relaxed);
}

/// Called by the loader: before `main` the standard library opens /dev/null as what is closed, and then it cannot be told from a
/// stdout that is /dev/null.
#[allow(unsafe_code)]
// SAFETY: functions of C are what that section holds, and this one needs nothing of the standard library's runtime.
#[unsafe(link_section = ".init_array")]
#[used]
static NOTE_CLOSED: extern "C" fn() = note_closed;
