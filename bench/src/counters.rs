//! The counters that the sections increment, and the check that no increment was lost.
//!
//! Each key holds a number. A section reads it under the lock and writes one more, so the number must grow by the
//! acknowledged increments. If it grew by fewer, two sections held the key at once or a write was lost.

use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use serde::Serialize;

/// The size of the counter, and so of the smallest value.
pub(super) const VALUE_BYTES_MIN: usize = size_of::<u64>();

/// The counters of one run.
#[derive(Debug)]
pub(super) struct Counters {
    keys: Vec<Mutex<Tally>>,
}

/// One counter.
#[derive(Debug, Default, Clone)]
struct Tally {
    /// The lowest fencing token, and the number that its holder read.
    first: Option<(u64, u64)>,
    /// Acknowledged increments.
    acknowledged: u64,
    /// Increments that were sent and not acknowledged: written or not.
    unknown: u64,
}

/// The counters after a run.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize)]
pub(super) struct CounterCheck {
    /// Counters that were incremented.
    pub(super) keys: u64,
    /// Counters that could not be read.
    pub(super) unread: u64,
    /// Acknowledged increments, the warm-up included.
    pub(super) acknowledged: u64,
    /// Increments of unknown outcome: their calls failed.
    pub(super) unknown: u64,
    /// The growth of the counters.
    pub(super) stored: u64,
    /// Acknowledged increments that are missing.
    pub(super) lost: u64,
    /// Increments that this run did not send.
    pub(super) surplus: u64,
}

impl CounterCheck {
    /// Whether every counter is as it must be.
    pub(super) fn is_exact(&self) -> bool {
        self.lost == 0 && self.surplus == 0 && self.unread == 0
    }
}

impl Counters {
    pub(super) fn new(keys: usize) -> Counters {
        Counters {
            keys: (0..keys).map(|_| Mutex::default()).collect(),
        }
    }

    fn tally(&self, key: usize) -> Option<MutexGuard<'_, Tally>> {
        let tally = self.keys.get(key)?;
        Some(tally.lock())
    }

    /// The holder with this fencing token read `value` and writes the next number, which is returned.
    pub(super) fn begin(&self, key: usize, fencing_token: u64, value: u64) -> u64 {
        if let Some(mut tally) = self.tally(key) {
            if tally.first.is_none_or(|(first, _)| fencing_token < first) {
                tally.first = Some((fencing_token, value));
            }
            tally.unknown += 1;
        }
        value.wrapping_add(1)
    }

    /// The increment that was begun is acknowledged.
    pub(super) fn acknowledged(&self, key: usize) {
        if let Some(mut tally) = self.tally(key) {
            tally.unknown = tally.unknown.saturating_sub(1);
            tally.acknowledged += 1;
        }
    }

    /// The keys whose counters were incremented.
    pub(super) fn touched(&self) -> Vec<usize> {
        (0..self.keys.len())
            .filter(|key| self.tally(*key).is_some_and(|t| t.first.is_some()))
            .collect()
    }

    /// Compares the counters with the stored values; `None` is a value that could not be read.
    pub(super) fn check(&self, stored: &[(usize, Option<u64>)]) -> CounterCheck {
        let mut check = CounterCheck::default();
        for (key, stored) in stored {
            let Some(tally) = self.tally(*key) else {
                continue;
            };
            let (_, base) = tally.first.unwrap_or_default();
            check.keys += 1;
            check.acknowledged += tally.acknowledged;
            check.unknown += tally.unknown;
            let Some(stored) = stored else {
                check.unread += 1;
                continue;
            };
            let least = base.wrapping_add(tally.acknowledged);
            let most = least.wrapping_add(tally.unknown);
            check.stored += stored.saturating_sub(base);
            check.lost += least.saturating_sub(*stored);
            check.surplus += stored.saturating_sub(most);
        }
        check
    }
}

/// A counter as a value of this many bytes.
pub(super) fn encode(counter: u64, value_bytes: usize) -> Bytes {
    let mut value = vec![0; value_bytes.max(VALUE_BYTES_MIN)];
    if let Some(number) = value.first_chunk_mut() {
        *number = counter.to_be_bytes();
    }
    value.into()
}

/// The counter in a value; 0 where there is none.
pub(super) fn decode(value: &[u8]) -> u64 {
    value.first_chunk().map_or(0, |n| u64::from_be_bytes(*n))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Three increments of a counter that stood at 10, the last one without an answer.
    fn three() -> Counters {
        let counters = Counters::new(2);
        counters.begin(0, 500, 11);
        counters.acknowledged(0);
        counters.begin(0, 400, 10);
        counters.acknowledged(0);
        counters.begin(0, 600, 12);
        counters
    }

    #[test]
    fn a_counter_is_exact_with_or_without_what_is_unknown() {
        let counters = three();
        assert_eq!(counters.touched(), [0]);
        for stored in [12, 13] {
            let check = counters.check(&[(0, Some(stored))]);
            assert!(check.is_exact(), "{check:?}");
            assert_eq!((check.acknowledged, check.unknown), (2, 1));
            assert_eq!(check.stored, stored - 10);
        }
    }

    #[test]
    fn lost_surplus_and_unread_counters_are_reported() {
        let counters = three();
        assert_eq!(counters.check(&[(0, Some(11))]).lost, 1);
        assert_eq!(counters.check(&[(0, Some(14))]).surplus, 1);
        assert_eq!(counters.check(&[(0, None)]).unread, 1);
        for stored in [Some(11), Some(14), None] {
            assert!(!counters.check(&[(0, stored)]).is_exact());
        }
    }

    #[test]
    fn a_counter_reads_back_from_a_value_of_any_size() {
        for bytes in [8, 64, 1000] {
            let value = encode(70_000, bytes);
            assert_eq!((value.len(), decode(&value)), (bytes, 70_000));
        }
        assert_eq!(decode(b""), 0);
        assert_eq!(decode(b"short"), 0);
    }
}
