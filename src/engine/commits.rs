//! The commit modes of tables, and the time for which a holder may stay volatile (H5).

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::key::machine::CommitRules;
use crate::key::{CommitMode, Reserve};
use crate::lock::TableName;

/// The shortest `keep_after`; four times the length of a commit if that is longer. Commits in flight prolong it, so that
/// slow sections cause no storm of commits.
const KEEP_AFTER: Duration = Duration::from_millis(100);
/// The longest `keep_after` by the length of commits alone, because that includes their wait behind others.
const KEEP_AFTER_COMMITS_MAX: Duration = Duration::from_secs(2);
/// Commits in flight that double it.
const COMMITS_AT_ONCE: u64 = 64;

/// The commit modes of tables, and the pace of commits.
pub(super) struct Commits {
    /// The tables with write-back (H5).
    write_back: BTreeSet<TableName>,
    pace: Arc<CommitPace>,
}

/// The length of commits, and their number in flight.
#[derive(Debug, Default)]
pub(super) struct CommitPace {
    /// The recent time of a successful compare-and-swap, in microseconds.
    commit_us: AtomicU64,
    open: AtomicU64,
}

/// A compare-and-swap in flight, until this is dropped.
pub(super) struct OpenCommit<'a>(&'a AtomicU64);

impl CommitPace {
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

    /// The number of compare-and-swaps in flight.
    pub fn open(&self) -> u64 {
        self.open.load(Ordering::Relaxed)
    }
}

impl Drop for OpenCommit<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Commits {
    pub fn new(write_back: BTreeSet<TableName>, pace: Arc<CommitPace>) -> Self {
        Commits { write_back, pace }
    }

    /// Whether homes of keys of this table decide in memory, ahead of the row.
    pub fn is_write_back(&self, table: &TableName) -> bool {
        self.write_back.contains(table)
    }

    /// The commit mode of this table.
    pub fn mode(&self, table: &TableName) -> CommitMode {
        match self.is_write_back(table) {
            true => CommitMode::WriteBack(Reserve::default()),
            false => CommitMode::WriteThrough,
        }
    }

    /// The length and the number of commits.
    pub fn pace(&self) -> &CommitPace {
        &self.pace
    }

    /// The current commit rules of this table.
    pub fn rules(&self, table: &TableName) -> CommitRules {
        let commit = Duration::from_micros(self.pace.commit_us.load(Ordering::Relaxed));
        CommitRules {
            mode: self.mode(table),
            keep_after: keep_after(commit, self.pace.open()),
        }
    }
}

/// The time from HELD to durable (H5), for the length of a commit and the commits in flight.
fn keep_after(commit: Duration, open: u64) -> Duration {
    let usual = commit.saturating_mul(4).min(KEEP_AFTER_COMMITS_MAX);
    let usual = usual.max(KEEP_AFTER);
    let more = u32::try_from(open / COMMITS_AT_ONCE).unwrap_or(u32::MAX);
    usual.saturating_mul(more.saturating_add(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_more_commits_are_on_their_way_the_longer_a_holder_stays_volatile() {
        let ms = Duration::from_millis;
        assert_eq!(keep_after(ms(5), 0), ms(100));
        assert_eq!(keep_after(ms(50), 63), ms(200));
        assert_eq!(keep_after(ms(50), 64), ms(400));
        assert_eq!(keep_after(ms(5), 6_400), ms(10_100));
        assert_eq!(keep_after(ms(19_000), 0), ms(2_000));
        let longest = keep_after(Duration::MAX, u64::MAX);
        assert!(longest >= Duration::from_secs(3_600), "{longest:?}");
    }
}
