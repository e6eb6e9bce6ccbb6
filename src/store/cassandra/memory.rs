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
    /// Of how many swaps the outcome is not known.
    doubts: u64,
}

/// Heads, and swaps of which nobody knows what became.
#[derive(Debug, Default)]
pub(super) struct Memory {
    keys: Mutex<HashMap<KeyId, Known>>,
}

/// What is known of a key when a load begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Before {
    /// The highest head seen; `None` for a key not seen yet.
    pub(super) head: Option<u64>,
    doubts: u64,
}

impl Before {
    /// Whether an open proposal may still apply: only a SERIAL read is then sure to show it.
    pub(super) fn in_doubt(&self) -> bool {
        self.doubts > 0
    }
}

impl Memory {
    fn with<T>(&self, id: &KeyId, change: impl FnOnce(&mut Known) -> T) -> T {
        let mut keys = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = keys.get_mut(id) {
            return change(known);
        }
        if keys.len() >= KEYS_MAX {
            keys.retain(|_, known| known.doubts > 0);
        }
        change(keys.entry(id.clone()).or_default())
    }

    pub(super) fn before(&self, id: &KeyId) -> Before {
        let keys = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
        match keys.get(id) {
            Some(known) => Before {
                head: (known.head > 0).then_some(known.head),
                doubts: known.doubts,
            },
            None => Before {
                head: None,
                doubts: 0,
            },
        }
    }

    pub(super) fn saw_head(&self, id: &KeyId, head: u64) {
        self.with(id, |known| known.head = known.head.max(head));
    }

    /// A SERIAL read that began after `before` was taken has settled what was open then.
    pub(super) fn settled(&self, id: &KeyId, before: Before) {
        self.with(id, |known| {
            known.doubts = known.doubts.saturating_sub(before.doubts);
        });
    }

    pub(super) fn doubt(&self, id: &KeyId) {
        self.with(id, |known| known.doubts += 1);
    }

    /// A swap begins. If what comes of it is never said, because its future was dropped or got no answer, the
    /// key is in doubt.
    pub(super) fn open<'a>(&'a self, id: &'a KeyId) -> Open<'a> {
        Open {
            memory: self,
            id,
            known: false,
        }
    }
}

/// A swap that is under way.
pub(super) struct Open<'a> {
    memory: &'a Memory,
    id: &'a KeyId,
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
            self.memory.doubt(self.id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::{Key, TableName};

    #[test]
    fn a_dropped_swap_leaves_a_doubt_that_only_a_later_load_settles() {
        let id = KeyId {
            table: TableName::default_table(),
            key: Key::parse("k", 9).unwrap(),
        };
        let memory = Memory::default();
        memory.open(&id).close();
        assert!(!memory.before(&id).in_doubt());
        drop(memory.open(&id));
        let load = memory.before(&id);
        assert!(load.in_doubt());
        drop(memory.open(&id));
        memory.settled(&id, load);
        assert!(
            memory.before(&id).in_doubt(),
            "the second came after the load began"
        );
        memory.settled(&id, memory.before(&id));
        assert!(!memory.before(&id).in_doubt());
    }

    #[test]
    fn heads_only_rise() {
        let id = KeyId {
            table: TableName::default_table(),
            key: Key::parse("k", 9).unwrap(),
        };
        let memory = Memory::default();
        assert_eq!(memory.before(&id).head, None);
        memory.saw_head(&id, 7);
        memory.saw_head(&id, 3);
        assert_eq!(memory.before(&id).head, Some(7));
    }
}
