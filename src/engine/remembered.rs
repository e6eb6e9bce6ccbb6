//! The remembered value of one key, counted for as long as it is there.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A value that a machine remembers.
#[derive(Debug)]
pub(super) struct RememberedValue {
    /// Which one it is; `None` of a key without one.
    pub timestamp: Option<u64>,
    pub _bytes: CountedBytes,
}

/// So many bytes of a sum, until this is dropped.
#[derive(Debug)]
pub(super) struct CountedBytes {
    sum: Arc<AtomicUsize>,
    bytes: usize,
}

impl CountedBytes {
    /// Adds them.
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
