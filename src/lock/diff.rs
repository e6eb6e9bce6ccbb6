//! What changed between two states of a key: the rows that a store has to write.

use std::sync::Arc;

use super::state::{Entry, Seq, State};

/// The places that differ between two states. The rest of a state (its counters and its ends) is one
/// small row, written whole with every change.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Diff {
    /// Places that are new, or have a new home.
    pub written: Vec<Arc<Entry>>,
    /// Places that are over.
    pub over: Vec<Seq>,
}

impl Diff {
    /// Compares two states of one key. Costs one pass; places that are the same allocation, as
    /// `decide` leaves them, are not looked into.
    pub fn between(old: &State, new: &State) -> Diff {
        let mut diff = Diff::default();
        let mut before = old.entries.iter().peekable();
        for entry in &new.entries {
            while let Some(gone) = before.next_if(|e| e.seq < entry.seq) {
                diff.over.push(gone.seq);
            }
            match before.next_if(|e| e.seq == entry.seq) {
                Some(same) if Arc::ptr_eq(same, entry) || same == entry => {}
                _ => diff.written.push(Arc::clone(entry)),
            }
        }
        diff.over.extend(before.map(|e| e.seq));
        diff
    }
}
