//! The total of bytes that connections hold, and its limits.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::{Notify, Semaphore};

/// What connections may hold.
#[derive(Debug, Clone)]
pub struct AccountLimits {
    /// How many connections there may be.
    pub connections_max: usize,
    /// What one may hold, in bytes.
    pub connection_bytes_max: u64,
    /// What all may hold, in bytes.
    pub bytes_max: u64,
    /// How long a connection may have answers to send, and send none of them.
    pub answer_max: Duration,
    /// How many listings of one address may be in flight.
    pub listings_of_share: usize,
}

/// The limits, and the bytes that all connections hold.
pub(super) struct Total {
    pub limits: AccountLimits,
    bytes: AtomicU64,
    /// The bytes exceed their limit.
    pub exceeded: Notify,
}

impl Total {
    pub fn new(limits: AccountLimits) -> Total {
        Total {
            limits,
            bytes: AtomicU64::new(0),
            exceeded: Notify::new(),
        }
    }

    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    pub fn add(&self, bytes: u64) {
        let before = self.bytes.fetch_add(bytes, Ordering::Relaxed);
        if before.saturating_add(bytes) > self.limits.bytes_max {
            self.exceeded.notify_one();
        }
    }

    pub fn give_back(&self, bytes: u64) {
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Half of what one connection may hold, as permits of a semaphore.
    pub fn room_bytes(&self) -> usize {
        let half = self.limits.connection_bytes_max / 2;
        usize::try_from(half).map_or(Semaphore::MAX_PERMITS, |half| {
            half.min(Semaphore::MAX_PERMITS)
        })
    }
}
