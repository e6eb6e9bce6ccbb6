//! The remembered value of one key, counted while it is remembered.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The remembered value of a machine.
#[derive(Debug)]
pub(super) struct RememberedValue {
    /// Its timestamp; `None` for a key without a value.
    pub timestamp: Option<u64>,
    pub _bytes: CountedBytes,
}

/// Bytes in a sum, until this is dropped.
#[derive(Debug)]
pub(super) struct CountedBytes {
    sum: Arc<AtomicUsize>,
    bytes: usize,
}

impl CountedBytes {
    /// Adds `bytes`.
    pub fn new(sum: &Arc<AtomicUsize>, bytes: usize) -> Self {
        sum.fetch_add(bytes, Ordering::Relaxed);
        CountedBytes {
            sum: Arc::clone(sum),
            bytes,
        }
    }
}

impl Drop for CountedBytes {
    fn drop(&mut self) {
        self.sum.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}
