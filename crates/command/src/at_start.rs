//! How this process was started, as far as the standard library changes it before `main`: it opens /dev/null as what is closed, which
//! cannot be told from a file that is /dev/null any more, and has SIGPIPE ignored.

use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::libc::{self, F_GETFD, SIG_IGN, SIGPIPE, STDIN_FILENO, STDOUT_FILENO};

static WITHOUT_STDIN: AtomicBool = AtomicBool::new(false);
static WITHOUT_STDOUT: AtomicBool = AtomicBool::new(false);
static IGNORING_SIGPIPE: AtomicBool = AtomicBool::new(false);

/// Whether it was started without stdin (`<&-`).
pub(crate) fn was_without_stdin() -> bool {
    WITHOUT_STDIN.load(Ordering::Relaxed)
}

/// Whether it was started without stdout (`>&-`).
pub(crate) fn was_without_stdout() -> bool {
    WITHOUT_STDOUT.load(Ordering::Relaxed)
}

/// Whether it was started to ignore SIGPIPE (`trap '' PIPE`, and services of systemd).
pub fn was_ignoring_sigpipe() -> bool {
    IGNORING_SIGPIPE.load(Ordering::Relaxed)
}

extern "C" fn note() {
    #[allow(unsafe_code)]
    // SAFETY: it takes two numbers, and changes nothing.
    let is_closed = |file| unsafe { libc::fcntl(file, F_GETFD) } == -1;
    WITHOUT_STDIN.store(is_closed(STDIN_FILENO), Ordering::Relaxed);
    WITHOUT_STDOUT.store(is_closed(STDOUT_FILENO), Ordering::Relaxed);
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    #[allow(unsafe_code)]
    // SAFETY: without a new action it only fills in the old one, for which there is room; all zeros are one as well.
    let is_ignored = unsafe {
        libc::sigaction(SIGPIPE, ptr::null(), action.as_mut_ptr()) == 0
            && action.assume_init().sa_sigaction == SIG_IGN
    };
    IGNORING_SIGPIPE.store(is_ignored, Ordering::Relaxed);
}

/// Called by the loader.
#[allow(unsafe_code)]
// SAFETY: functions of C are what that section holds, and this one needs nothing of the standard library's runtime.
#[unsafe(link_section = ".init_array")]
#[used]
static NOTE: extern "C" fn() = note;
