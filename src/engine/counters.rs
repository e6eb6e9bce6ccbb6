//! The counters of the engine, for operators.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The counters since the process started, under all its ids.
#[derive(Debug, Default)]
pub(super) struct Counters {
    /// Compare-and-swaps that took effect.
    pub swaps: AtomicU64,
    /// Compare-and-swaps that met another state.
    pub conflicts: AtomicU64,
    /// Compare-and-swaps of unknown outcome.
    pub unknown: AtomicU64,
    /// Compare-and-swaps with write-back that took effect and changed no home.
    pub background_commits: AtomicU64,
    /// Grants that were durable when they were made.
    pub durable_grants: AtomicU64,
    /// Grants that were volatile when they were made.
    pub volatile_grants: AtomicU64,
    /// Keys that were taken over.
    pub take_overs: AtomicU64,
    /// Keys that another replica gave to this one.
    pub received_keys: AtomicU64,
    /// Keys that were given to another replica.
    pub hand_overs: AtomicU64,
    /// Idle keys that were forgotten to make room.
    pub forgotten_keys: AtomicU64,
    /// Packings of unused keys.
    pub packed_keys: AtomicU64,
    /// The recent time of a successful compare-and-swap, in microseconds.
    pub commit_us: AtomicU64,
    /// Compare-and-swaps in flight.
    pub open: AtomicU64,
}

impl Counters {
    pub fn add(counter: &AtomicU64, n: usize) {
        counter.fetch_add(n as u64, Ordering::Relaxed);
    }

    /// Counts a compare-and-swap as in flight.
    pub fn open_commit(&self) -> OpenCommit<'_> {
        self.open.fetch_add(1, Ordering::Relaxed);
        OpenCommit(&self.open)
    }

    /// Notes the time of a successful compare-and-swap; about the last eight count.
    pub fn note_commit(&self, took: Duration) {
        let took = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let before = self.commit_us.load(Ordering::Relaxed);
        let lately = (before / 8 * 7).saturating_add(took / 8);
        self.commit_us.store(lately, Ordering::Relaxed);
    }
}

/// A compare-and-swap in flight, until this is dropped.
pub(super) struct OpenCommit<'a>(&'a AtomicU64);

impl Drop for OpenCommit<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
