//! The part of a home's state that its next commit writes to the row, and the reserve ahead of the row (H5).

use std::collections::VecDeque;
use std::sync::Arc;

use super::state::{Entry, KeyState, Reserved};
use crate::lock::{Fence, Seq};

/// When decisions are written to the row.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum CommitMode {
    /// Before their answers: nothing lies ahead of the row.
    #[default]
    WriteThrough,
    /// Later, within the reserve of the row.
    WriteBack(Reserve),
}

/// The allowed lead of a write-back home over its row.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Reserve {
    /// Seqs.
    pub seqs: u64,
    /// Timestamps, in microseconds from the clock, or from a fence ahead of it.
    pub fence_us: u64,
    /// As `fence_us`, for a fence that is `far_us` ahead of the clock, so that take-overs do not carry it ever further.
    pub fence_us_if_far: u64,
    /// A fence this far ahead of the clock counts as far, in microseconds.
    pub far_us: u64,
}

impl Default for Reserve {
    fn default() -> Self {
        Reserve {
            seqs: 4_096,
            fence_us: 600_000_000,
            fence_us_if_far: 1_000_000,
            far_us: 3_600_000_000,
        }
    }
}

impl Reserve {
    /// The end of the timestamps to reserve beyond `used`.
    pub fn fence_end(&self, used: u64, now_us: Option<u64>) -> u64 {
        let Some(now_us) = now_us else {
            return used;
        };
        let from = used.max(now_us);
        let more = match from - now_us >= self.far_us {
            true => self.fence_us_if_far,
            false => self.fence_us,
        };
        from.saturating_add(more).min(Fence::MAX)
    }
}

/// The entries that survive the home.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Survivors {
    /// All, and nothing was granted ahead of the row: write-through, and a hand-over.
    All,
    /// All, with a holder that was never answered HELD: the next home waits for it no longer than for any other.
    AllOfUnheard,
    /// The holder, and the entries that the row lists behind it.
    Holder,
    /// The listed entries behind this many first ones, which may be granted, and may end, ahead of the row.
    Behind(usize),
}

/// The parts of a commit.
#[derive(Clone, Copy, Debug)]
pub struct NextRow<'a> {
    /// The row to replace. A take-over or a hand-over has another home or term.
    pub row: &'a KeyState,
    /// The allowed lead of the home.
    pub mode: CommitMode,
    /// The entries that survive the home.
    pub survivors: Survivors,
    /// Volatile entries are listed as well, so that the row knows of the ends beyond them.
    pub lists_volatile: bool,
    /// Entries that may be added and deleted.
    pub changes_max: usize,
    /// Seqs that the row may come to know. Ended seqs unknown to it are written, too, if they stand between live ones.
    pub seqs_max: u64,
    /// The wall clock in microseconds since 1970, unless it is wrong.
    pub now_us: Option<u64>,
}

impl NextRow<'_> {
    /// The next row of a home in this state: a prefix of its queue, in the order of seqs (I1). The rest stays for the next
    /// commit; ended entries that could not be deleted yet are still listed.
    pub fn of(&self, state: &KeyState) -> KeyState {
        let is_same_term = self.row.home == state.home;
        let (entries, next) = self.listed(state);
        let reserved_before = match is_same_term {
            true => self.row.reserved,
            false => Reserved {
                seq_end: Seq::FIRST,
                fence_end: 0,
                volatile_end: Seq(0),
            },
        };
        let holder = state.holder().map(|holder| holder.seq);
        let is_holder_first = holder.is_some() && entries.front().map(|first| first.seq) == holder;
        let mut row = KeyState {
            version: self.row.version.saturating_add(1),
            next,
            grant: match is_holder_first {
                true => state.grant,
                false => Fence::NONE,
            },
            kept: None,
            entries,
            ended: state.ended.clone(),
            reserved: Reserved {
                seq_end: next,
                fence_end: state.width_end().max(reserved_before.fence_end),
                volatile_end: Seq(0),
            },
            ..*state
        };
        let listed = std::mem::take(&mut row.ended.entries);
        let is_known = |seq: Seq| seq < row.next && row.position(seq).is_none();
        row.ended.entries = listed.into_iter().filter(|e| is_known(e.seq)).collect();
        row.ended.complete_from = row.ended.complete_from.min(row.next);
        if let CommitMode::WriteBack(reserve) = self.mode {
            let seq_end = Seq(state
                .next
                .0
                .saturating_add(reserve.seqs)
                .min(Seq::LAST.0 + 1));
            row.reserved.seq_end = seq_end.max(reserved_before.seq_end);
            let fence_end = reserve.fence_end(state.width_end(), self.now_us);
            row.reserved.fence_end = row.reserved.fence_end.max(fence_end);
        }
        match self.survivors {
            Survivors::All | Survivors::AllOfUnheard if self.mode == CommitMode::WriteThrough => {
                row.kept = holder.filter(|_| is_holder_first);
            }
            Survivors::All if is_holder_first => row.kept = holder,
            Survivors::Holder if is_holder_first => {
                row.kept = holder;
                row.reserved.volatile_end = holder.map_or(Seq(0), |seq| Seq(seq.0 + 1));
            }
            // Ended entries are listed before the holder, and it may have written.
            Survivors::All | Survivors::AllOfUnheard | Survivors::Holder => {
                let beyond = holder.map_or(Seq(0), |seq| Seq(seq.0 + 1));
                row.reserved.volatile_end = beyond.max(reserved_before.volatile_end);
            }
            Survivors::Behind(first) => {
                let end = state.entries.get(first).map(|entry| entry.seq);
                let end = end.unwrap_or(row.reserved.seq_end);
                row.reserved.volatile_end = end.max(reserved_before.volatile_end);
            }
        }
        row
    }

    /// The entries of the next row, and the first seq unknown to it.
    fn listed(&self, state: &KeyState) -> (VecDeque<Arc<Entry>>, Seq) {
        // If all entries may be granted ahead of the row, it need not list them.
        let adds = match self.survivors {
            Survivors::All | Survivors::AllOfUnheard | Survivors::Holder => true,
            Survivors::Behind(first) => self.lists_volatile || first < state.entries.len(),
        };
        let mut listed = VecDeque::with_capacity(state.entries.len());
        let mut changes = 0;
        // Nothing is written below the head.
        let head = state.entries.front().map_or(state.next, |first| first.seq);
        let seqs_end = Seq(self.row.next.max(head).0.saturating_add(self.seqs_max));
        let mut next = None;
        let mut before = self.row.entries.iter().peekable();
        for entry in &state.entries {
            while let Some(ended) = before.next_if(|e| e.seq < entry.seq) {
                self.delete(ended, &mut changes, &mut listed);
            }
            if before.next_if(|e| e.seq == entry.seq).is_some() {
                listed.push_back(Arc::clone(entry));
            } else if adds && next.is_none() && changes < self.changes_max && entry.seq < seqs_end {
                changes += 1;
                listed.push_back(Arc::clone(entry));
            } else {
                next.get_or_insert(entry.seq);
            }
        }
        for ended in before {
            self.delete(ended, &mut changes, &mut listed);
        }
        // The row lists all live entries that it knows: those that are not listed now come after all others.
        (listed, next.unwrap_or(state.next).min(seqs_end))
    }

    fn delete(&self, ended: &Arc<Entry>, changes: &mut usize, listed: &mut VecDeque<Arc<Entry>>) {
        if *changes < self.changes_max {
            *changes += 1;
        } else {
            listed.push_back(Arc::clone(ended));
        }
    }
}

/// Entries that a commit of the whole state would add and delete.
pub fn changes(state: &KeyState, row: &KeyState) -> usize {
    let both = state
        .entries
        .iter()
        .filter(|e| row.position(e.seq).is_some());
    let both = both.count();
    state.entries.len() + row.entries.len() - 2 * both
}

#[cfg(test)]
pub(super) mod tests;
