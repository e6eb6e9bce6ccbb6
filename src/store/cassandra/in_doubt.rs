//! Swaps of unknown outcome, by key. Such a key is read at SERIAL until a later version is seen.

use std::collections::HashMap;

use parking_lot::Mutex;

use crate::lock::KeyId;

/// The highest version of each key that a swap of unknown outcome named. While the key still has that version the swap may
/// apply, however late; once it has a higher one, never.
#[derive(Debug, Default)]
pub struct InDoubtSwaps(Mutex<HashMap<KeyId, u64>>);

impl InDoubtSwaps {
    /// Whether an open proposal may still apply: only a SERIAL read is then sure to show it.
    pub(super) fn contains(&self, id: &KeyId) -> bool {
        self.0.lock().contains_key(id)
    }

    /// The key has this version.
    pub(super) fn saw(&self, id: &KeyId, version: u64) {
        let mut named = self.0.lock();
        if named.get(id).is_some_and(|named| *named < version) {
            named.remove(id);
        }
    }

    /// The outcome of a swap that named this version is not known.
    pub(super) fn note(&self, id: &KeyId, version: u64) {
        let mut named = self.0.lock();
        let highest = named.entry(id.clone()).or_default();
        *highest = version.max(*highest);
    }

    /// A swap that names this version begins. If its outcome is never known, because its future was dropped or got no answer,
    /// the key is in doubt.
    pub(super) fn open<'a>(&'a self, id: &'a KeyId, version: u64) -> OpenSwap<'a> {
        OpenSwap {
            in_doubt: self,
            id,
            version,
            known: false,
        }
    }
}

/// A swap that is in flight.
pub(super) struct OpenSwap<'a> {
    in_doubt: &'a InDoubtSwaps,
    id: &'a KeyId,
    version: u64,
    known: bool,
}

impl OpenSwap<'_> {
    /// Its outcome is known.
    pub(super) fn close(mut self) {
        self.known = true;
    }
}

impl Drop for OpenSwap<'_> {
    fn drop(&mut self) {
        if !self.known {
            self.in_doubt.note(self.id, self.version);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::{Key, TableName};

    fn id() -> KeyId {
        KeyId {
            table: TableName::default_table(),
            key: Key::parse("k", 9).unwrap(),
        }
    }

    #[test]
    fn a_dropped_swap_stays_in_doubt_until_its_version_is_past() {
        let (id, in_doubt) = (id(), InDoubtSwaps::default());
        in_doubt.open(&id, 3).close();
        assert!(!in_doubt.contains(&id));
        drop(in_doubt.open(&id, 3));
        assert!(in_doubt.contains(&id));
        in_doubt.saw(&id, 3);
        assert!(in_doubt.contains(&id), "it may still apply");
        in_doubt.saw(&id, 4);
        assert!(!in_doubt.contains(&id));
    }
}
