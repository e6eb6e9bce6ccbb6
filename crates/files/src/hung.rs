//! Reads that hang with their file system. One may be of a file system that was taken away, and never end: another one is begun
//! after a while, in a thread of its own.

use std::time::Duration;

/// Another one is begun after this, doubled for each that hangs, …
const BEGUN_ANEW_AFTER: Duration = Duration::from_secs(30);
/// … up to this, …
const BEGUN_ANEW_AFTER_MAX: Duration = Duration::from_secs(3600);
/// … and so many go on at most, each of them a thread.
pub const READS_MAX: usize = 32;

/// How long the newest of so many reads that go on is waited for before another one is begun; `None` where there are too many.
#[must_use]
pub fn begun_anew_after(reads: usize) -> Option<Duration> {
    let hung = reads.saturating_sub(1).min(16);
    let doubled = BEGUN_ANEW_AFTER.saturating_mul(1 << hung);
    (reads < READS_MAX).then_some(doubled.min(BEGUN_ANEW_AFTER_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn others_are_begun_after_longer_and_longer_until_there_are_too_many() {
        let after = |reads| begun_anew_after(reads).map(|after| after.as_secs());
        let first = [1, 2, 3, 7, 8].map(after);
        assert_eq!(first, [30, 60, 120, 1920, 3600].map(Some));
        assert_eq!(after(READS_MAX - 1), Some(3600));
        assert_eq!(after(READS_MAX), None);
    }
}
