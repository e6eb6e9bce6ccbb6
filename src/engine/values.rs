//! The remembered values of keys, which save reads (H9). One bound holds for all of them; the value unused for longest goes first. A
//! value is believed for a limited time, so that writes by others show.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};

use super::remembered::{CountedBytes, RememberedValue};
use super::slot::{KeyCell, Slot};

/// What one takes beside its bytes, about: its key is not packed.
const BESIDE_BYTES: usize = 2_560;
/// How many are looked at, at most, to make room after one event.
const LOOKED_AT_MAX: usize = 64;
/// In a queue of so many it is not looked for keys that are gone.
const SWEPT_AT_MIN: usize = 1_024;

/// A key with a remembered value, which is looked at when room is needed.
struct QueuedValue {
    cell: Weak<KeyCell>,
    /// When it had been used last as it was queued.
    used: Duration,
}

/// All values that a replica remembers.
pub(super) struct Values {
    most: usize,
    bytes: Arc<AtomicUsize>,
    queue: Mutex<VecDeque<QueuedValue>>,
    /// Once the queue is so long, it is looked for keys that are gone.
    swept_at: AtomicUsize,
}

impl Values {
    /// Of so many bytes at most.
    pub fn new(most: usize) -> Self {
        Values {
            most,
            bytes: Arc::default(),
            queue: Mutex::default(),
            swept_at: AtomicUsize::new(SWEPT_AT_MIN),
        }
    }

    fn queue(&self) -> MutexGuard<'_, VecDeque<QueuedValue>> {
        self.queue.lock()
    }

    /// How many bytes they take.
    pub fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// A call comes in: forgets a value that was read a minute ago or longer, or never since this replica is the home, so
    /// that the call reads it again. A write by this home does not count as a read: what others wrote with a timestamp
    /// above its fence stays in force over that write, and only a read shows it.
    pub fn expire(&self, slot: &mut Slot, now: Duration) {
        if slot.value.is_some() && slot.value_is_due(now) {
            slot.machine.forget_value();
            slot.value = None;
        }
    }

    /// Something happened to a key: takes note of what is remembered of it now.
    pub fn note(&self, cell: &Arc<KeyCell>, slot: &mut Slot) {
        let known = slot.machine.known_value();
        let Some(datum) = known else {
            slot.value = None;
            return;
        };
        let timestamp = datum.map(|datum| datum.timestamp);
        if slot
            .value
            .as_ref()
            .is_some_and(|value| value.timestamp == timestamp)
        {
            return;
        }
        let value = datum.and_then(|datum| datum.value.as_ref());
        let bytes = value.map_or(0, |value| value.len()) + BESIDE_BYTES;
        slot.value = Some(RememberedValue {
            timestamp,
            _bytes: CountedBytes::new(&self.bytes, bytes),
        });
        if !slot.is_queued {
            slot.is_queued = true;
            self.enqueue(QueuedValue {
                cell: Arc::downgrade(cell),
                used: slot.used,
            });
        }
    }

    fn enqueue(&self, queued: QueuedValue) {
        let mut queue = self.queue();
        queue.push_back(queued);
        // What is left of keys that are gone goes, where that is as much as what is there.
        if queue.len() >= self.swept_at.load(Ordering::Relaxed) {
            queue.retain(|queued| queued.cell.strong_count() > 0);
            let next = queue.len().saturating_mul(2).max(SWEPT_AT_MIN);
            self.swept_at.store(next, Ordering::Relaxed);
        }
    }

    /// Makes room: values that were not used since they were looked at last go; of those that were used, where the sum is more
    /// than an eighth too large. To be called with no slot locked.
    pub fn trim(&self) {
        let used_go_above_bytes = self.most.saturating_add(self.most / 8);
        for _ in 0..LOOKED_AT_MAX {
            let bytes = self.bytes();
            if bytes <= self.most {
                return;
            }
            let Some(queued) = self.queue().pop_front() else {
                return;
            };
            let Some(cell) = queued.cell.upgrade() else {
                continue;
            };
            // One that is in use stays.
            let Some(mut slot) = cell.try_slot() else {
                self.queue().push_back(queued);
                continue;
            };
            if slot.value.is_none() {
                slot.is_queued = false;
            } else if slot.used > queued.used && bytes <= used_go_above_bytes {
                let used = slot.used;
                drop(slot);
                self.queue().push_back(QueuedValue { used, ..queued });
            } else {
                slot.is_queued = false;
                slot.machine.forget_value();
                slot.value = None;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::{Key, KeyId, TableName};

    #[test]
    fn keys_that_are_gone_are_not_queued_for_good() {
        let values = Values::new(usize::MAX);
        let id = Arc::new(KeyId {
            table: TableName::default_table(),
            key: Key::parse("k", 9).unwrap(),
        });
        let cell = || Arc::new(KeyCell::new(Arc::clone(&id)));
        let enqueue = |cell: &Arc<KeyCell>| {
            values.enqueue(QueuedValue {
                cell: Arc::downgrade(cell),
                used: Duration::ZERO,
            });
        };
        let stays: Vec<Arc<KeyCell>> = (0..SWEPT_AT_MIN).map(|_| cell()).collect();
        stays.iter().for_each(enqueue);
        (0..100 * SWEPT_AT_MIN).for_each(|_| enqueue(&cell()));
        assert!(values.queue().len() <= 2 * SWEPT_AT_MIN);
        let is_there = |queued: &&QueuedValue| queued.cell.strong_count() > 0;
        assert_eq!(values.queue().iter().filter(is_there).count(), stays.len());
    }
}
