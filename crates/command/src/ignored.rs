//! The signals that were ignored when this process started (`nohup`, `trap '' INT`). They stay ignored, here and in child
//! processes.

use std::mem::MaybeUninit;
use std::ptr;

use nix::libc::{self, SIG_IGN};

/// Whether this process ignores a signal. Call it before a handler is installed.
pub fn is_ignored(number: i32) -> bool {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    #[allow(unsafe_code)]
    // SAFETY: without a new action the call only fills in the present one; zeros are a valid action.
    unsafe {
        libc::sigaction(number, ptr::null(), action.as_mut_ptr()) == 0
            && action.assume_init().sa_sigaction == SIG_IGN
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ignored_signal_is_told_from_the_others() {
        // The standard library has SIGPIPE ignored.
        assert!(is_ignored(libc::SIGPIPE));
        assert!(!is_ignored(libc::SIGUSR1) && !is_ignored(0) && !is_ignored(i32::MAX));
    }
}
