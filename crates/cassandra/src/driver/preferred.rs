//! Which node a read or a write is sent to first.
//!
//! Of the nodes that have a partition each process prefers another one, always the same, as long as few requests are in
//! flight: these share wake-ups, packets and syncs of its log there, which cost more than the requests themselves. Where
//! many are in flight they are spread over the next ones, too. A node that does not answer, or with an error, is preferred
//! once a second only, until it answers. That is about who is asked first: whom a request asks after that is a matter of each
//! of the libraries.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use uuid::Uuid;

use super::failure_detector::FailureDetector;

/// So many requests are in flight before they are spread over one node more.
const AT_ONE_NODE: usize = 64;
/// A node that answered nothing for so long, though it was asked, is preferred no more … More than the 100 ms after which
/// a node asks another one instead of one that hangs, less than the 200 ms after which another node is asked.
const SILENT_AFTER: Duration = Duration::from_millis(150);
/// … but once in so long.
const ASKED_EVERY: Duration = Duration::from_secs(1);
/// Of so many nodes at most it is noted that they were asked.
const NOTED_MAX: usize = 1_000;

/// Who is preferred now.
#[derive(Debug)]
pub(super) struct Preferred {
    first: u64,
    in_flight: Arc<AtomicUsize>,
    /// How many were sent, to take turns by.
    sent: AtomicU64,
    failure_detector: Arc<FailureDetector>,
    asked: Mutex<HashMap<Uuid, AskedNode>>,
}

/// When a node was asked for the first time, and for the last one, since it answered.
#[derive(Clone, Copy, Debug)]
struct AskedNode {
    since: Instant,
    last: Instant,
}

/// A request in flight, until this is dropped.
pub(super) struct InFlight(Arc<AtomicUsize>);

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Preferred {
    /// Of the nodes of a partition, ordered by their ids, the one at `first`, counted round and round, is preferred.
    pub(super) fn new(first: u64, failure_detector: Arc<FailureDetector>) -> Preferred {
        Preferred {
            first,
            in_flight: Arc::default(),
            sent: AtomicU64::new(0),
            failure_detector,
            asked: Mutex::default(),
        }
    }

    /// A request begins.
    pub(super) fn begin(&self) -> InFlight {
        self.in_flight.fetch_add(1, Ordering::Relaxed);
        InFlight(Arc::clone(&self.in_flight))
    }

    fn asked(&self) -> MutexGuard<'_, HashMap<Uuid, AskedNode>> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a node may be preferred, which it is then.
    fn may_prefer(&self, node: Uuid, now: Instant) -> bool {
        if self.failure_detector.avoids(node) {
            return false;
        }
        let mut nodes = self.asked();
        if nodes.len() >= NOTED_MAX && !nodes.contains_key(&node) {
            nodes.clear();
        }
        let asked = nodes.entry(node).or_insert(AskedNode {
            since: now,
            last: now,
        });
        let is_silent = now.duration_since(asked.since) >= SILENT_AFTER;
        if is_silent && now.duration_since(asked.last) < ASKED_EVERY {
            return false;
        }
        asked.last = now;
        true
    }

    /// A node answered.
    pub(super) fn answered(&self, node: Uuid) {
        self.asked().remove(&node);
    }

    /// It refused, or its connection broke: as if it had been silent for long enough.
    pub(super) fn failed(&self, node: Uuid, now: Instant) {
        let since = now.checked_sub(SILENT_AFTER).unwrap_or(now);
        if let Some(asked) = self.asked().get_mut(&node) {
            asked.since = asked.since.min(since);
        }
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

    /// Which of the nodes of a partition, ordered by their ids, is asked first; those that are not connected never are.
    pub(super) fn choose(&self, nodes: &[(Uuid, bool)], now: Instant) -> Option<usize> {
        if nodes.is_empty() {
            return None;
        }
        let position = self.position(nodes.len());
        let order = (0..nodes.len()).map(|offset| (position + offset) % nodes.len());
        let connected: Vec<usize> = order.filter(|at| nodes[*at].1).collect();
        let preferred = connected
            .iter()
            .find(|at| self.may_prefer(nodes[**at].0, now));
        if let Some(preferred) = preferred {
            return Some(*preferred);
        }
        // All are slow, or hang: the one that answered last.
        let asked = self.asked();
        let since = |at: &usize| asked.get(&nodes[*at].0).map_or(now, |asked| asked.since);
        let avoids = |at: &usize| self.failure_detector.avoids(nodes[*at].0);
        connected
            .into_iter()
            .rev()
            .max_by_key(|at| (!avoids(at), since(at)))
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

    fn node(number: u128) -> Uuid {
        Uuid::from_u128(number)
    }

    const THREE: [(Uuid, bool); 3] = [
        (Uuid::from_u128(1), true),
        (Uuid::from_u128(2), true),
        (Uuid::from_u128(3), true),
    ];

    #[test]
    fn each_process_prefers_another_node_until_many_requests_are_in_flight() {
        let now = Instant::now();
        for in_flight in [0, 1, AT_ONE_NODE] {
            let first = |first| preferred(first, in_flight).choose(&THREE, now).unwrap();
            assert_eq!([0, 1, 2, 3].map(first), [0, 1, 2, 0]);
        }
        let of_nine = |in_flight| {
            let policy = preferred(1, in_flight);
            let mut of_each = [0; 3];
            for _ in 0..9 {
                of_each[policy.choose(&THREE, now).unwrap()] += 1;
            }
            of_each
        };
        assert_eq!(of_nine(AT_ONE_NODE), [0, 9, 0]);
        assert_eq!(of_nine(AT_ONE_NODE + 1), [0, 5, 4]);
        assert_eq!(of_nine(2 * AT_ONE_NODE + 1), [3, 3, 3]);
        assert_eq!(of_nine(1_000), [3, 3, 3]);
        assert_eq!(preferred(u64::MAX, 9).choose(&THREE[..1], now), Some(0));
        assert_eq!(preferred(0, 9).choose(&[], now), None);
    }

    #[test]
    fn a_node_that_is_not_connected_is_passed_over_and_moves_nobody_else() {
        let now = Instant::now();
        let mut nodes = THREE;
        nodes[0].1 = false;
        let first = |first| preferred(first, 0).choose(&nodes, now);
        assert_eq!([0, 1, 2].map(first), [Some(1), Some(1), Some(2)]);
        let none = nodes.map(|(node, _)| (node, false));
        assert_eq!(preferred(0, 0).choose(&none, now), None);
    }

    #[test]
    fn requests_are_in_flight_until_they_are_dropped() {
        let preferred = preferred(0, 0);
        let both = [preferred.begin(), preferred.begin()];
        assert_eq!(preferred.in_flight.load(Ordering::Relaxed), 2);
        drop(both);
        assert_eq!(preferred.in_flight.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_node_that_does_not_answer_is_preferred_once_a_second_until_it_does() {
        let policy = preferred(0, 0);
        let begun = Instant::now();
        let asked = |ms| {
            let now = begun + Duration::from_millis(ms);
            let chosen = policy.choose(&THREE, now).unwrap();
            // The others answer.
            policy.answered(node(2));
            chosen
        };
        assert_eq!([0, 50, 149].map(asked), [0, 0, 0]);
        assert_eq!([150, 900, 1_148].map(asked), [1, 1, 1]);
        assert_eq!([1_149, 1_150, 2_148].map(asked), [0, 1, 1]);
        assert_eq!(asked(2_149), 0);
        policy.answered(node(1));
        assert_eq!([2_200, 2_349, 2_350].map(asked), [0, 0, 1]);
    }

    #[test]
    fn a_node_that_answers_with_an_error_is_preferred_once_a_second_until_it_answers() {
        let policy = preferred(0, 0);
        let begun = Instant::now();
        let at = |ms| begun + Duration::from_millis(ms);
        assert_eq!(policy.choose(&THREE, at(0)), Some(0));
        policy.failed(node(1), at(1));
        assert_eq!(policy.choose(&THREE, at(2)), Some(1));
        assert_eq!(policy.choose(&THREE, at(1_000)), Some(0));
        policy.answered(node(1));
        assert_eq!(policy.choose(&THREE, at(1_001)), Some(0));
    }

    #[test]
    fn where_all_are_silent_the_one_that_answered_last_is_asked() {
        let policy = preferred(0, 0);
        let begun = Instant::now();
        let at = |ms| begun + Duration::from_millis(ms);
        assert_eq!(policy.choose(&THREE, at(0)), Some(0));
        assert_eq!(policy.choose(&THREE, at(150)), Some(1));
        assert_eq!(policy.choose(&THREE, at(300)), Some(2));
        assert_eq!(policy.choose(&THREE, at(450)), Some(2));
        assert_eq!(policy.choose(&THREE, at(451)), Some(2));
    }
}
