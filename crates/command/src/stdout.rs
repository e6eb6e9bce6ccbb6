//! Stdout, and whether there is one at all.

use std::io::{self, StdoutLock};
use std::sync::atomic::{AtomicBool, Ordering};

static WAS_CLOSED: AtomicBool = AtomicBool::new(false);

/// Stdout, to print to.
///
/// # Errors
///
/// This process was started without one (`>&-`), so that whatever was printed would be lost without a word.
pub fn open() -> io::Result<StdoutLock<'static>> {
    match WAS_CLOSED.load(Ordering::Relaxed) {
        true => Err(io::Error::other("stdout is closed")),
        false => Ok(io::stdout().lock()),
    }
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
