//! The commit modes of tables, and the time for which a holder may stay volatile (H5).

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::counters::Counters;
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
    /// The length of commits, and their number in flight.
    counters: Arc<Counters>,
}

impl Commits {
    pub fn new(write_back: BTreeSet<TableName>, counters: Arc<Counters>) -> Self {
        Commits {
            write_back,
            counters,
        }
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

    /// The current commit rules of this table.
    pub fn rules(&self, table: &TableName) -> CommitRules {
        let commit = Duration::from_micros(self.counters.commit_us.load(Ordering::Relaxed));
        CommitRules {
            mode: self.mode(table),
            keep_after: keep_after(commit, self.counters.open.load(Ordering::Relaxed)),
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
