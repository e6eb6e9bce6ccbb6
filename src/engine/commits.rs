//! How the keys of a table are committed, and how long a holder may stay volatile (H5).

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::counters::Counters;
use crate::key::machine::CommitRules;
use crate::key::{CommitMode, Reserve};
use crate::lock::TableName;

/// After this a holder becomes durable, or after four times of what a commit takes, whichever is longer; and after so much
/// more as more commits are on their way, so that slow sections make no storm of them.
const KEEP_AFTER: Duration = Duration::from_millis(100);
/// The most that a slow commit makes of it: its time counts what it waited behind others.
const KEEP_AFTER_COMMITS_MAX: Duration = Duration::from_secs(2);
/// So many on their way make it twice as long.
const COMMITS_AT_ONCE: u64 = 64;

/// How keys are committed.
pub(super) struct Commits {
    /// The tables whose keys are answered from memory, and committed later (H5).
    write_back: BTreeSet<TableName>,
    /// What commits take, and how many are on their way.
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

    /// How the keys of this table are committed now.
    pub fn rules(&self, table: &TableName) -> CommitRules {
        let commit = Duration::from_micros(self.counters.commit_us.load(Ordering::Relaxed));
        CommitRules {
            mode: self.mode(table),
            keep_after: keep_after(commit, self.counters.open.load(Ordering::Relaxed)),
        }
    }
}

/// How long after it was told a holder becomes durable (H5), where a commit takes so long and so many are on their way.
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
