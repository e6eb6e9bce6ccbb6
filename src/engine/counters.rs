//! The counters of the engine, for operators.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// What the engine counted since the process started, under all its ids.
#[derive(Debug, Default)]
pub(super) struct Counters {
    /// Compare-and-swaps that took effect.
    pub swaps: AtomicU64,
    /// Compare-and-swaps that met another state.
    pub conflicts: AtomicU64,
    /// Compare-and-swaps of unknown outcome.
    pub unknown: AtomicU64,
    /// Those that took effect with write-back and changed no home.
    pub background_commits: AtomicU64,
    /// Grants that survived a crash of this replica when they were made.
    pub durable_grants: AtomicU64,
    /// Grants that did not.
    pub volatile_grants: AtomicU64,
    /// Keys that were taken over.
    pub take_overs: AtomicU64,
    /// Keys that another one gave to this replica.
    pub received_keys: AtomicU64,
    /// Keys that were given to another one.
    pub hand_overs: AtomicU64,
    /// Idle keys that were forgotten to have room for others.
    pub forgotten_keys: AtomicU64,
    /// Keys to which nothing happened that were packed.
    pub packed_keys: AtomicU64,
    /// What one that took effect takes lately, in microseconds.
    pub commit_us: AtomicU64,
    /// Those that are on their way.
    pub open: AtomicU64,
}

impl Counters {
    pub fn add(counter: &AtomicU64, n: usize) {
        counter.fetch_add(n as u64, Ordering::Relaxed);
    }

    /// A compare-and-swap is on its way.
    pub fn open_commit(&self) -> OpenCommit<'_> {
        self.open.fetch_add(1, Ordering::Relaxed);
        OpenCommit(&self.open)
    }

    /// A compare-and-swap that took effect took so long; the last eight or so count.
    pub fn note_commit(&self, took: Duration) {
        let took = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let before = self.commit_us.load(Ordering::Relaxed);
        let lately = (before / 8 * 7).saturating_add(took / 8);
        self.commit_us.store(lately, Ordering::Relaxed);
    }
}

/// A compare-and-swap that is on its way until this is dropped.
pub(super) struct OpenCommit<'a>(&'a AtomicU64);

impl Drop for OpenCommit<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
