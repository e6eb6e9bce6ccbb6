//! Panics of the file library, turned into errors.
//!
//! redb checks what it reads with assertions, so a damaged page is a panic to it. A lock server must
//! outlive that: it answers "closed" and keeps trying.

use std::cell::Cell;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Once;

thread_local! {
    static ISOLATED: Cell<bool> = const { Cell::new(false) };
}

/// The panic hook in force must be asked by every thread, and is replaced once a process.
static HOOK: Once = Once::new();

/// Runs `work`; a panic in it becomes an error with its message, and prints nothing.
///
/// What `work` borrows may be left half changed by a panic: the callers drop the database and open
/// it again, and use nothing else that `work` could write to.
pub(super) fn isolated<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    HOOK.call_once(|| {
        let usual = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            // `try_with`: a thread that is going away has no flag any more.
            if !ISOLATED.try_with(Cell::get).unwrap_or(false) {
                usual(info);
            }
        }));
    });
    let before = ISOLATED.replace(true);
    let outcome = panic::catch_unwind(AssertUnwindSafe(work));
    ISOLATED.set(before);
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
