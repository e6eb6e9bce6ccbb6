//! The pass that packs keys.

use std::time::Duration;

/// When keys to which nothing happens are packed.
#[derive(Debug, Clone, Copy)]
pub struct Packing {
    /// What was used since then is not packed.
    pub unused_for: Duration,
    /// How often a part of the keys is looked at.
    pub every: Duration,
    /// How many parts there are; 64 at most.
    pub parts: usize,
}

impl Default for Packing {
    /// All keys are looked at in six seconds and a half.
    fn default() -> Self {
        Packing {
            unused_for: Duration::from_secs(2),
            every: Duration::from_millis(100),
            parts: 64,
        }
    }
}
