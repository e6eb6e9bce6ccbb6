//! What this process remembers of keys, to load them cheaply and to know when to ask twice.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use crate::lock::KeyId;

/// How many keys are remembered; those in doubt on top.
const KEYS_MAX: usize = 100_000;

#[derive(Clone, Copy, Debug, Default)]
struct KnownKey {
    /// The highest head seen.
    head: u64,
    /// The highest version that a swap named of which nobody knows what became. While the key still has that
    /// version the swap may apply, however late; once it has a higher one, never.
    in_doubt_version: Option<u64>,
}

/// Heads, and swaps of unknown outcome.
#[derive(Debug, Default)]
pub struct InDoubtSwaps {
    keys: Mutex<KnownKeys>,
}

#[derive(Debug, Default)]
struct KnownKeys {
    known: HashMap<KeyId, KnownKey>,
    /// So many were left when the others were forgotten last.
    left: usize,
}

/// What is known of a key when a load begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Before {
    /// The highest head seen; `None` for a key not seen yet.
    pub(super) head: Option<u64>,
    /// An open proposal may still apply: only a SERIAL read is then sure to show it.
    pub(super) in_doubt: bool,
}

impl InDoubtSwaps {
    fn with<T>(&self, id: &KeyId, change: impl FnOnce(&mut KnownKey) -> T) -> T {
        let mut keys = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = keys.known.get_mut(id) {
            return change(known);
        }
        // Not at each new key, where all of these are in doubt.
        if keys.known.len() >= KEYS_MAX.max(keys.left * 2) {
            let in_doubt = |_: &KeyId, known: &mut KnownKey| known.in_doubt_version.is_some();
            keys.known.retain(in_doubt);
            keys.left = keys.known.len();
        }
        change(keys.known.entry(id.clone()).or_default())
    }

    pub(super) fn before(&self, id: &KeyId) -> Before {
        let keys = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
        let known = keys.known.get(id).copied().unwrap_or_default();
        Before {
            head: (known.head > 0).then_some(known.head),
            in_doubt: known.in_doubt_version.is_some(),
        }
    }

    /// The key has this version and head.
    pub(super) fn saw(&self, id: &KeyId, version: u64, head: u64) {
        self.with(id, |known| {
            known.head = known.head.max(head);
            known.in_doubt_version = known.in_doubt_version.filter(|named| *named >= version);
        });
    }

    /// What became of a swap that named this version is not known.
    pub(super) fn note_in_doubt(&self, id: &KeyId, version: u64) {
        self.with(id, |known| {
            known.in_doubt_version = known.in_doubt_version.max(Some(version))
        });
    }

    /// A swap that names this version begins. If what comes of it is never said, because its future was
    /// dropped or got no answer, the key is in doubt.
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
    /// What became of it is known.
    pub(super) fn close(mut self) {
        self.known = true;
    }
}

impl Drop for OpenSwap<'_> {
    fn drop(&mut self) {
        if !self.known {
            self.in_doubt.note_in_doubt(self.id, self.version);
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
        assert!(!in_doubt.before(&id).in_doubt);
        drop(in_doubt.open(&id, 3));
        assert!(in_doubt.before(&id).in_doubt);
        in_doubt.saw(&id, 3, 1);
        assert!(in_doubt.before(&id).in_doubt, "it may still apply");
        in_doubt.saw(&id, 4, 1);
        assert!(!in_doubt.before(&id).in_doubt);
    }

    #[test]
    fn heads_only_rise() {
        let (id, in_doubt) = (id(), InDoubtSwaps::default());
        assert_eq!(in_doubt.before(&id).head, None);
        in_doubt.saw(&id, 9, 7);
        in_doubt.saw(&id, 5, 3);
        assert_eq!(in_doubt.before(&id).head, Some(7));
    }
}
