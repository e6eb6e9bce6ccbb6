//! How many statements were sent.

use std::sync::atomic::{AtomicU64, Ordering};

use super::Use;
/// Statements that were sent, also those that failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sent {
    /// Reads.
    pub reads: u64,
    /// Plain writes.
    pub writes: u64,
    /// Lightweight transactions.
    pub transactions: u64,
}

#[derive(Debug, Default)]
pub(super) struct Counted {
    reads: AtomicU64,
    writes: AtomicU64,
    transactions: AtomicU64,
}

impl Counted {
    pub fn one(&self, usage: Use) {
        let counter = match usage {
            Use::Read | Use::AnyRead | Use::SerialRead | Use::SettlingRead => &self.reads,
            Use::Write => &self.writes,
            Use::Cas | Use::CasEverywhere | Use::HedgedCas(_) => &self.transactions,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    pub fn so_far(&self) -> Sent {
        Sent {
            reads: self.reads.load(Ordering::Relaxed),
            writes: self.writes.load(Ordering::Relaxed),
            transactions: self.transactions.load(Ordering::Relaxed),
        }
    }
}
