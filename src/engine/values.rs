//! The remembered values of keys, which save reads (H9). One bound holds for all of them; the value unused for longest goes first. A
//! value is believed for a limited time, so that writes by others show.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};

use super::remembered::{CountedBytes, RememberedValue};
use super::slot::{KeyCell, Slot};

/// The approximate bytes of a value's key, which is not packed.
const BESIDE_BYTES: usize = 2_560;
/// Values that one event looks at to make room, at most.
const LOOKED_AT_MAX: usize = 64;
/// A shorter queue is not searched for gone keys.
const SWEPT_AT_MIN: usize = 1_024;

/// A key with a remembered value, in the queue of those to forget.
struct QueuedValue {
    cell: Weak<KeyCell>,
    /// The last use before it was queued.
    used: Duration,
}

/// The remembered values of a replica.
pub(super) struct Values {
    most: usize,
    bytes: Arc<AtomicUsize>,
    queue: Mutex<VecDeque<QueuedValue>>,
    /// The length of the queue at the next search for gone keys.
    swept_at: AtomicUsize,
}

impl Values {
    /// For `most` bytes.
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

    /// The bytes of all values.
    pub fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Forgets a value before a call if its last read, or the start of this home, is a minute ago or longer. A write by this
    /// home does not count as a read: a value that others wrote with a higher timestamp stays in force, and only a read shows it.
    pub fn expire(&self, slot: &mut Slot, now: Duration) {
        if slot.value.is_some() && slot.value_is_due(now) {
            slot.machine.forget_value();
            slot.value = None;
        }
    }

    /// Notes the remembered value of a key after an event.
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
        // Gone keys leave each time the queue has doubled.
        if queue.len() >= self.swept_at.load(Ordering::Relaxed) {
            queue.retain(|queued| queued.cell.strong_count() > 0);
            let next = queue.len().saturating_mul(2).max(SWEPT_AT_MIN);
            self.swept_at.store(next, Ordering::Relaxed);
        }
    }

    /// Makes room: forgets values without a use since the last look, and used ones, too, if the sum is more than an eighth too
    /// large. To be called with no slot locked.
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
            // A key in use keeps its value.
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
