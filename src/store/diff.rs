//! The difference between two states of a key: the rows that a store has to write.

use std::sync::Arc;

use crate::key::{Entry, KeyState};
use crate::lock::Seq;

/// The entries that differ between two states. The rest of a state (its counters and its ends) is one
/// small row, written whole with every change.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Diff {
    /// Entries that are new.
    pub written: Vec<Arc<Entry>>,
    /// Entries that have ended.
    pub ended: Vec<Seq>,
}

impl Diff {
    /// Compares two states of one key. Costs one pass; entries that are the same allocation, as
    /// `decide` leaves them, are not looked into.
    pub fn between(old: &KeyState, new: &KeyState) -> Diff {
        let mut diff = Diff::default();
        let mut before = old.entries.iter().peekable();
        for entry in &new.entries {
            while let Some(gone) = before.next_if(|e| e.seq < entry.seq) {
                diff.ended.push(gone.seq);
            }
            match before.next_if(|e| e.seq == entry.seq) {
                Some(same) if Arc::ptr_eq(same, entry) || same == entry => {}
                _ => diff.written.push(Arc::clone(entry)),
            }
        }
        diff.ended.extend(before.map(|e| e.seq));
        diff
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::{Liveness, Mode, Tag};

    fn entry(seq: u64, created_at_ms: i64) -> Arc<Entry> {
        Arc::new(Entry {
            seq: Seq(seq),
            mode: Mode::Exclusive,
            tag: Tag::from_bits(seq.into()),
            liveness: Liveness::Own { ttl_ms: 1_000 },
            identity: "".into(),
            owner: "".into(),
            created_at_ms,
        })
    }

    fn state(entries: &[Arc<Entry>]) -> KeyState {
        KeyState {
            entries: entries.iter().cloned().collect(),
            ..KeyState::default()
        }
    }

    #[test]
    fn a_diff_names_what_is_new_changed_and_over_in_order() {
        let old = state(&[entry(1, 1), entry(2, 1), entry(4, 1), entry(6, 1)]);
        let new = state(&[entry(2, 1), entry(4, 2), entry(7, 1), entry(8, 1)]);
        let expected = Diff {
            written: vec![entry(4, 2), entry(7, 1), entry(8, 1)],
            ended: vec![Seq(1), Seq(6)],
        };
        assert_eq!(Diff::between(&old, &new), expected);
    }

    #[test]
    fn ended_entries_behind_all_that_stay_are_named_as_well() {
        let old = state(&[entry(1, 1), entry(2, 1), entry(3, 1)]);
        let diff = Diff::between(&old, &state(&[entry(1, 1)]));
        assert_eq!(diff.written, []);
        assert_eq!(diff.ended, [Seq(2), Seq(3)]);
    }

    #[test]
    fn equal_states_have_an_empty_diff_whatever_their_allocations() {
        let old = state(&[entry(1, 1)]);
        assert_eq!(Diff::between(&old, &old.clone()), Diff::default());
        assert_eq!(Diff::between(&old, &state(&[entry(1, 1)])), Diff::default());
    }
}
