//! Numbers for the critical calls of a lockRef.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use tonic::Status;
use tonic_types::StatusExt as _;

use super::fault::ServerError;

/// The numbers for the attempts of one call; a power of two.
const ATTEMPTS: u64 = 1_024;

/// Numbers for the critical calls of a lockRef. Keep this value while the lockRef is used, and share it among all users of the
/// lockRef in this process. The numbers only grow. A call gets 1,024 times the time of day in microseconds, or more if the last
/// number is as high. The 1,023 numbers after it are for the attempts of the call. So the numbers also grow from one process with
/// the lockRef to the next one, as far as the clocks of their machines agree.
#[derive(Debug, Default)]
pub struct CallNumbers {
    last: AtomicU64,
}

impl CallNumbers {
    /// The next number, above all earlier ones: for a call, or for the repeat of a call that was not done. An abandoned attempt
    /// cannot take effect after it.
    #[must_use]
    pub fn next(&self) -> u64 {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = since.map_or(0, |since| u64::try_from(since.as_micros()).unwrap_or(0));
        self.next_at(now)
    }

    /// Notes the refusal of a call for its number: the next numbers are above the last accepted one.
    pub(crate) fn note_refusal(&self, refused: &NotAbove) {
        self.last.fetch_max(refused.last, Ordering::Relaxed);
    }

    fn next_at(&self, now: u64) -> u64 {
        let next = |last: u64| {
            let of_call = (last / ATTEMPTS + 1).max(now);
            of_call.saturating_mul(ATTEMPTS)
        };
        let before = self
            .last
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |last| {
                Some(next(last))
            });
        next(before.unwrap_or_else(|last| last))
    }
}

/// The number for a repeat of a write that may have been done: above the attempt before, and below each call that began later. A
/// later write of another process is not overwritten: the repeat is refused. The last number is given again, and then refused.
pub(crate) fn repeated(before: u64) -> u64 {
    before.saturating_add(1).min(before | (ATTEMPTS - 1))
}

/// The refusal of a call for its number.
pub(crate) struct NotAbove {
    given: u64,
    last: u64,
}

impl NotAbove {
    pub(crate) fn of(status: &Status) -> Option<NotAbove> {
        let info = status.get_details_error_info()?;
        let number = |name| info.metadata.get(name)?.parse().ok();
        let is_it = info.reason == ServerError::CALL_NO_NOT_ABOVE;
        Some(NotAbove {
            given: number("given").filter(|_| is_it)?,
            last: number("last")?,
        })
    }

    /// Whether the same call came before, repeated by a proxy: it may have been done. (If another call came in between, this
    /// cannot be known: a proxy must not repeat calls.)
    pub(crate) fn came_before(&self) -> bool {
        self.given == self.last
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_grow_whatever_the_time_of_day_does_and_from_process_to_process() {
        let numbers = CallNumbers::default();
        let of = |now| numbers.next_at(now) / ATTEMPTS;
        assert_eq!([of(100), of(100), of(50), of(103)], [100, 101, 102, 103]);
        let (one, other) = (CallNumbers::default(), CallNumbers::default());
        let first = one.next();
        assert!(first / ATTEMPTS > 1_700_000_000_000_000);
        assert!(other.next() >= first);
        numbers.last.store(u64::MAX, Ordering::Relaxed);
        assert_eq!(numbers.next(), u64::MAX);
    }

    #[test]
    fn repeats_are_above_their_call_and_below_each_later_one() {
        let numbers = CallNumbers::default();
        let (mut attempt, later) = (numbers.next_at(7), numbers.next_at(0));
        for _ in 1..ATTEMPTS {
            let before = attempt;
            attempt = repeated(before);
            assert!(before < attempt && attempt < later);
        }
        assert_eq!(repeated(attempt), attempt);
        assert_eq!(repeated(u64::MAX), u64::MAX);
    }
}
