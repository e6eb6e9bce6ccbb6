//! The work of a run: its keys, their counters, and the workers.

use super::counters::Counters;
use super::keys::{KeyChoice, Keys};
use super::measure::{FailedCall, Times};
use super::plan::Plan;

/// The things that all workers of a run share.
#[derive(Debug)]
pub(super) struct Workload {
    pub(super) plan: Plan,
    pub(super) keys: Keys,
    pub(super) counters: Counters,
}

impl Workload {
    /// The keys of each prefix are others.
    pub(super) fn new(plan: &Plan, keys: KeyChoice, prefix: &str, workers: usize) -> Workload {
        let keys = Keys::new(
            keys,
            prefix,
            workers,
            plan.load.key_count,
            plan.load.near_part,
        );
        Workload {
            counters: Counters::new(keys.count()),
            keys,
            plan: plan.clone(),
        }
    }
}

/// A client that does sections, one after the other.
pub(super) trait Worker: Send + 'static {
    /// One section. `turn` is the number of the worker, or of the arrival.
    fn section(&mut self, turn: usize) -> impl Future<Output = Result<(), FailedCall>> + Send;

    /// The times of the calls of the latest section, as far as it came.
    fn times(&self) -> &Times;

    /// Reads a counter after the run.
    fn read(&mut self, key: usize) -> impl Future<Output = Result<u64, FailedCall>> + Send;
}
