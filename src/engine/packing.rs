//! The pass that packs keys.

use std::time::Duration;

/// The pace at which unused keys are packed.
#[derive(Debug, Clone, Copy)]
pub struct Packing {
    /// The shortest time without use before a key is packed.
    pub unused_for: Duration,
    /// The pause between looks at a part of the keys.
    pub every: Duration,
    /// The number of parts; 64 at most.
    pub parts: usize,
}

impl Default for Packing {
    /// A look at all keys takes six seconds and a half.
    fn default() -> Self {
        Packing {
            unused_for: Duration::from_secs(2),
            every: Duration::from_millis(100),
            parts: 64,
        }
    }
}
