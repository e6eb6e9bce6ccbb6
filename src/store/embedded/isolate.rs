//! Panics of the file library, turned into errors.
//!
//! redb checks what it reads with assertions, so a damaged page is a panic to it. A lock server must
//! outlive that: it answers "closed" and keeps trying.

use std::panic::{self, AssertUnwindSafe};

/// Runs `work`; a panic in it becomes an error with its message.
///
/// What `work` borrows may be left half changed by a panic: the callers drop the database and open
/// it again, and use nothing else that `work` could write to.
pub(super) fn isolated<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    let outcome = panic::catch_unwind(AssertUnwindSafe(work));
    outcome.map_err(|panic| {
        let said = panic
            .downcast_ref::<String>()
            .map(String::as_str)
            .or_else(|| panic.downcast_ref::<&str>().copied())
            .unwrap_or("no message");
        // Its dump of two differing values would fill a log line; the first line says enough.
        let first_line = said.lines().next().unwrap_or_default();
        format!("the file library panicked: {first_line}")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_an_error_with_its_message() {
        let seven = 7;
        let error = isolated(|| assert!(seven == 8, "page {seven} is damaged"));
        assert_eq!(
            error,
            Err("the file library panicked: page 7 is damaged".to_owned())
        );
        assert_eq!(isolated(|| 1), Ok(1));
    }
}
