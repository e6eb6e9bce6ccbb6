//! Numbers for the critical calls of a lockRef.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use tonic::Status;
use tonic_types::StatusExt as _;

use super::fault::ServerError;

/// How many numbers are for the attempts of one call; a power of two.
const ATTEMPTS: u64 = 1_024;

/// Numbers for the critical calls of a lockRef, kept for as long as that is used, and shared by all that use it here. They only
/// grow: the time of day in microseconds where that is higher than the last one, times 1,024, of which that many belong to the
/// attempts of one call. So those of several processes that use one lockRef, one after the other, grow as well, as far as the
/// clocks of their machines agree.
#[derive(Debug, Default)]
pub struct CallNumbers {
    last: AtomicU64,
}

impl CallNumbers {
    /// The next one, for a call, or for a repeat of one of which it is known that nothing was done: above all that were given
    /// before. An attempt that was given up cannot land after it.
    #[must_use]
    pub fn next(&self) -> u64 {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = since.map_or(0, |since| u64::try_from(since.as_micros()).unwrap_or(0));
        self.next_at(now)
    }

    /// Where a call was refused for its number, the next ones are above the one that was accepted last.
    pub(super) fn note_refusal(&self, status: &Status) {
        if let Some(refused) = NotAbove::of(status) {
            self.last.fetch_max(refused.last, Ordering::Relaxed);
        }
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

/// For a repeat of a write that may have been done: above the attempt before, and below each call that began later. What another
/// process wrote after it is not written over; the repeat is refused. The last one is given again, and then refused.
pub(super) fn repeated(before: u64) -> u64 {
    before.saturating_add(1).min(before | (ATTEMPTS - 1))
}

/// What a server says that refused a call for its number.
pub(super) struct NotAbove {
    given: u64,
    last: u64,
}

impl NotAbove {
    pub(super) fn of(status: &Status) -> Option<NotAbove> {
        let info = status.get_details_error_info()?;
        let number = |name| info.metadata.get(name)?.parse().ok();
        let is_it = info.reason == ServerError::CALL_NO_NOT_ABOVE;
        Some(NotAbove {
            given: number("given").filter(|_| is_it)?,
            last: number("last")?,
        })
    }

    /// The same call came before, as by a proxy that repeats it: that one may have been done. (Where another call came after that
    /// one, nobody can know: proxies are not to repeat calls by themselves.)
    pub(super) fn came_before(&self) -> bool {
        self.given == self.last
    }
}

/// So often a call is made again that was refused for its number.
const OVERTAKEN_MAX: u32 = 3;

/// How often one call was refused for its number.
#[derive(Debug, Default)]
pub(super) struct Overtaken(u32);

impl Overtaken {
    /// Whether it is to be made again, above the number that was accepted last. What it did before must be known: nothing.
    pub(super) fn again(&mut self, status: &Status) -> bool {
        let is_overtaken = NotAbove::of(status).is_some();
        self.0 += u32::from(is_overtaken);
        is_overtaken && self.0 <= OVERTAKEN_MAX
    }
}

/// Makes a call, and again where it was refused for its number, while it may be: there is time left, and no attempt before may have
/// been done.
pub(super) async fn until_not_overtaken<T, F>(
    may_repeat: impl Fn() -> bool,
    call: impl Fn() -> F,
) -> Result<T, Status>
where
    F: Future<Output = Result<T, Status>>,
{
    let mut overtaken = Overtaken::default();
    loop {
        match call().await {
            Err(status) if may_repeat() && overtaken.again(&status) => {}
            came => return came,
        }
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
