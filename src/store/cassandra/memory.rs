//! What this process remembers of keys, to load them cheaply and to know when to ask twice.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use crate::lock::KeyId;

/// How many keys are remembered; those in doubt on top.
const KEYS_MAX: usize = 100_000;

#[derive(Clone, Copy, Debug, Default)]
struct Known {
    /// The highest head seen.
    head: u64,
    /// The highest version that a swap named of which nobody knows what became. While the key still has that
    /// version the swap may apply, however late; once it has a higher one, never.
    doubt: Option<u64>,
}

/// Heads, and swaps of unknown outcome.
#[derive(Debug, Default)]
pub(super) struct Memory {
    keys: Mutex<HashMap<KeyId, Known>>,
}

/// What is known of a key when a load begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Before {
    /// The highest head seen; `None` for a key not seen yet.
    pub(super) head: Option<u64>,
    /// An open proposal may still apply: only a SERIAL read is then sure to show it.
    pub(super) in_doubt: bool,
}

impl Memory {
    fn with<T>(&self, id: &KeyId, change: impl FnOnce(&mut Known) -> T) -> T {
        let mut keys = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = keys.get_mut(id) {
            return change(known);
        }
        if keys.len() >= KEYS_MAX {
            keys.retain(|_, known| known.doubt.is_some());
        }
        change(keys.entry(id.clone()).or_default())
    }

    pub(super) fn before(&self, id: &KeyId) -> Before {
        let keys = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
        let known = keys.get(id).copied().unwrap_or_default();
        Before {
            head: (known.head > 0).then_some(known.head),
            in_doubt: known.doubt.is_some(),
        }
    }

    /// The key has this version and head.
    pub(super) fn saw(&self, id: &KeyId, version: u64, head: u64) {
        self.with(id, |known| {
            known.head = known.head.max(head);
            known.doubt = known.doubt.filter(|doubt| *doubt >= version);
        });
    }

    /// What became of a swap that named this version is not known.
    pub(super) fn doubt(&self, id: &KeyId, version: u64) {
        self.with(id, |known| known.doubt = known.doubt.max(Some(version)));
    }

    /// A swap that names this version begins. If what comes of it is never said, because its future was
    /// dropped or got no answer, the key is in doubt.
    pub(super) fn open<'a>(&'a self, id: &'a KeyId, version: u64) -> Open<'a> {
        Open {
            memory: self,
            id,
            version,
            known: false,
        }
    }
}

/// A swap that is under way.
pub(super) struct Open<'a> {
    memory: &'a Memory,
    id: &'a KeyId,
    version: u64,
    known: bool,
}

impl Open<'_> {
    /// What became of it is known.
    pub(super) fn close(mut self) {
        self.known = true;
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        if !self.known {
            self.memory.doubt(self.id, self.version);
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
    fn a_dropped_swap_leaves_a_doubt_until_its_version_is_past() {
        let (id, memory) = (id(), Memory::default());
        memory.open(&id, 3).close();
        assert!(!memory.before(&id).in_doubt);
        drop(memory.open(&id, 3));
        assert!(memory.before(&id).in_doubt);
        memory.saw(&id, 3, 1);
        assert!(memory.before(&id).in_doubt, "it may still apply");
        memory.saw(&id, 4, 1);
        assert!(!memory.before(&id).in_doubt);
    }

    #[test]
    fn heads_only_rise() {
        let (id, memory) = (id(), Memory::default());
        assert_eq!(memory.before(&id).head, None);
        memory.saw(&id, 9, 7);
        memory.saw(&id, 5, 3);
        assert_eq!(memory.before(&id).head, Some(7));
    }
}
