//! The choice of the first node for a read or a write.
//!
//! While few requests are in flight, each process sends them to one preferred node of the partition, and other processes prefer
//! other nodes. The requests then share wake-ups, packets and syncs of the node's log, which cost more than the requests
//! themselves. Many requests are spread over the next nodes as well. Each library chooses the node after the first one.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use uuid::Uuid;

use super::failure_detector::FailureDetector;

/// How many requests are in flight before they are spread over one node more: with so many, each sync of a log serves several.
const AT_ONE_NODE: usize = 64;

/// The preferred node of a process.
#[derive(Debug)]
pub(super) struct Preferred {
    first: u64,
    in_flight: AtomicUsize,
    /// How many were sent, to take turns by.
    sent: AtomicU64,
    failure_detector: Arc<FailureDetector>,
}

/// A request in flight, until this is dropped.
pub(super) struct InFlight<'a>(&'a AtomicUsize);

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Preferred {
    /// Of the nodes of a partition, ordered by their ids, the one at `first`, counted round and round, is preferred.
    pub(super) fn new(first: u64, failure_detector: Arc<FailureDetector>) -> Preferred {
        Preferred {
            first,
            in_flight: AtomicUsize::new(0),
            sent: AtomicU64::new(0),
            failure_detector,
        }
    }

    /// A request begins.
    pub(super) fn begin(&self) -> InFlight<'_> {
        self.in_flight.fetch_add(1, Ordering::Relaxed);
        InFlight(&self.in_flight)
    }

    /// Which of this many nodes has its turn.
    fn position(&self, nodes: usize) -> usize {
        // The one that is about to be sent is among them.
        let others = self.in_flight.load(Ordering::Relaxed).saturating_sub(1);
        let spread = (1 + others / AT_ONE_NODE).min(nodes) as u64;
        let turn = match spread {
            1 => 0,
            _ => self.sent.fetch_add(1, Ordering::Relaxed) % spread,
        };
        let position = (self.first % nodes as u64 + turn) % nodes as u64;
        usize::try_from(position).unwrap_or_default()
    }

    /// Which of the nodes of a partition, ordered by their ids and connected or not, is asked first: a connected one, and one
    /// that is avoided only where all are.
    pub(super) fn choose(&self, nodes: &[(Uuid, bool)]) -> Option<usize> {
        if nodes.is_empty() {
            return None;
        }
        let position = self.position(nodes.len());
        let order = (0..nodes.len()).map(|offset| (position + offset) % nodes.len());
        let connected = order.filter(|at| nodes[*at].1);
        connected.min_by_key(|at| self.failure_detector.avoids(nodes[*at].0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn preferred(first: u64, in_flight: usize) -> Preferred {
        let preferred = Preferred::new(first, Arc::default());
        preferred.in_flight.store(in_flight, Ordering::Relaxed);
        preferred
    }

    const THREE: [(Uuid, bool); 3] = [
        (Uuid::from_u128(1), true),
        (Uuid::from_u128(2), true),
        (Uuid::from_u128(3), true),
    ];

    #[test]
    fn each_process_prefers_another_node_until_many_requests_are_in_flight() {
        for in_flight in [0, 1, AT_ONE_NODE] {
            let first = |first| preferred(first, in_flight).choose(&THREE).unwrap();
            assert_eq!([0, 1, 2, 3].map(first), [0, 1, 2, 0]);
        }
        let of_nine = |in_flight| {
            let policy = preferred(1, in_flight);
            let mut of_each = [0; 3];
            for _ in 0..9 {
                of_each[policy.choose(&THREE).unwrap()] += 1;
            }
            of_each
        };
        assert_eq!(of_nine(AT_ONE_NODE), [0, 9, 0]);
        assert_eq!(of_nine(AT_ONE_NODE + 1), [0, 5, 4]);
        assert_eq!(of_nine(2 * AT_ONE_NODE + 1), [3, 3, 3]);
        assert_eq!(of_nine(1_000), [3, 3, 3]);
        assert_eq!(preferred(u64::MAX, 9).choose(&THREE[..1]), Some(0));
        assert_eq!(preferred(0, 9).choose(&[]), None);
    }

    #[test]
    fn a_node_that_is_not_connected_is_passed_over_and_moves_nobody_else() {
        let mut nodes = THREE;
        nodes[0].1 = false;
        let first = |first| preferred(first, 0).choose(&nodes);
        assert_eq!([0, 1, 2].map(first), [Some(1), Some(1), Some(2)]);
        let none = nodes.map(|(node, _)| (node, false));
        assert_eq!(preferred(0, 0).choose(&none), None);
    }

    #[test]
    fn a_node_that_hangs_is_preferred_only_where_all_do() {
        let policy = preferred(0, 0);
        let hangs = |node: (Uuid, bool)| {
            for _ in 0..2 {
                policy.failure_detector.timed_out(node.0, "here");
            }
        };
        hangs(THREE[0]);
        assert_eq!(policy.choose(&THREE), Some(1));
        THREE.into_iter().for_each(hangs);
        assert_eq!(policy.choose(&THREE), Some(0));
    }

    #[test]
    fn requests_are_in_flight_until_they_are_dropped() {
        let preferred = preferred(0, 0);
        let both = [preferred.begin(), preferred.begin()];
        assert_eq!(preferred.in_flight.load(Ordering::Relaxed), 2);
        drop(both);
        assert_eq!(preferred.in_flight.load(Ordering::Relaxed), 0);
    }
}
