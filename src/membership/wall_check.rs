//! Compares the wall clock of this machine with the store's (I2).

use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};

/// The largest allowed difference, in microseconds.
const APART_US_MAX: u64 = 60_000_000;

/// The last read of the store's clock. The wall clock may be set at any time after it; CLOCK_BOOTTIME shows that.
#[derive(Debug, Default)]
pub(super) struct WallCheck(Mutex<ClockRead>);

#[derive(Clone, Copy, Debug, Default)]
struct ClockRead {
    is_off: bool,
    /// Both clocks of this machine at the last agreement.
    agreed: Option<(u64, Duration)>,
}

impl WallCheck {
    fn seen(&self) -> MutexGuard<'_, ClockRead> {
        self.0.lock()
    }

    /// Compares the store's clock with two reads of the wall clock around it: the difference in microseconds, whether it is too
    /// large now, and whether it was before.
    pub fn compare(&self, store_us: u64, (before, after): (u64, u64), boot: Duration) -> Compared {
        let apart_us = before
            .saturating_sub(store_us)
            .max(store_us.saturating_sub(after));
        let mut seen = self.seen();
        let was_off = seen.is_off;
        seen.is_off = apart_us > APART_US_MAX;
        if !seen.is_off {
            seen.agreed = Some((after, boot));
        }
        Compared {
            apart_us,
            is_off: seen.is_off,
            was_off,
        }
    }

    /// Whether the wall clock was off at the last read, or was set since.
    pub fn is_off(&self, wall_us: u64, boot: Duration) -> bool {
        let seen = *self.seen();
        let was_set = seen.agreed.is_some_and(|(agreed_us, agreed_boot)| {
            let passed = boot.saturating_sub(agreed_boot).as_micros();
            let expected = agreed_us.saturating_add(u64::try_from(passed).unwrap_or(u64::MAX));
            expected.abs_diff(wall_us) > APART_US_MAX
        });
        seen.is_off || was_set
    }
}

/// The result of comparing the clocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Compared {
    pub apart_us: u64,
    pub is_off: bool,
    pub was_off: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: u64 = 60_000_000;
    const BOOT: Duration = Duration::from_secs(5);

    #[test]
    fn a_clock_may_differ_by_a_minute_and_no_more() {
        let check = WallCheck::default();
        assert!(!check.is_off(0, BOOT), "nobody knows better");
        let now = 10 * MINUTE;
        for (store_us, is_off) in [
            (now + MINUTE, false),
            (now + MINUTE + 1, true),
            (now - MINUTE, false),
            (now - MINUTE - 1, true),
            (now, false),
        ] {
            let compared = check.compare(store_us, (now, now), BOOT);
            assert_eq!(compared.is_off, is_off, "{store_us}");
            assert_eq!(check.is_off(now, BOOT), is_off, "{store_us}");
        }
    }

    #[test]
    fn the_time_that_an_answer_takes_is_no_difference() {
        let check = WallCheck::default();
        let now = 10 * MINUTE;
        let compared = check.compare(now + 2 * MINUTE, (now, now + 3 * MINUTE), BOOT);
        assert_eq!((compared.is_off, compared.apart_us), (false, 0));
    }

    #[test]
    fn a_clock_that_is_set_between_two_reads_is_off_until_the_next_one() {
        let check = WallCheck::default();
        let now = 10 * MINUTE;
        check.compare(now, (now, now), BOOT);
        let later = BOOT + Duration::from_secs(30);
        assert!(!check.is_off(now + MINUTE / 2 + MINUTE, later));
        assert!(check.is_off(now - MINUTE, later));
        assert!(check.is_off(now + 2 * MINUTE, later));
        check.compare(
            now + 2 * MINUTE,
            (now + 2 * MINUTE, now + 2 * MINUTE),
            later,
        );
        assert!(!check.is_off(now + 2 * MINUTE, later));
    }
}
