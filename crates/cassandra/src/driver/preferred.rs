//! Which node a read or a write is sent to first.
//!
//! Of the nodes that have a partition each process prefers another one, always the same, as long as few requests are in
//! flight: they share wake-ups, packets and syncs of its log there, which cost more than the requests themselves. Where many
//! are in flight the next nodes get their part. One that does not answer is asked once a second until it does.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use scylla::cluster::{ClusterState, NodeRef};
use scylla::errors::RequestAttemptError;
use scylla::policies::load_balancing::{FallbackPlan, LoadBalancingPolicy, RoutingInfo};
use scylla::routing::Shard;
use tokio::time::Instant;
use uuid::Uuid;

/// So many requests are in flight before the next node has its part of them.
const AT_ONE_NODE: usize = 64;
/// A node that answered nothing for so long, though it was asked, is asked no more …
const SILENT_AFTER: Duration = Duration::from_millis(100);
/// … but once in so long.
const ASKED_EVERY: Duration = Duration::from_secs(1);
/// Of so many nodes at most it is noted that they were asked.
const NOTED_MAX: usize = 1_000;

/// The policy.
#[derive(Debug)]
pub(super) struct Preferred {
    /// All nodes, in another order for each request.
    any: Arc<dyn LoadBalancingPolicy>,
    datacenter: Option<String>,
    first: u64,
    in_flight: Arc<AtomicUsize>,
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

impl InFlight {
    pub(super) fn begin(count: &Arc<AtomicUsize>) -> InFlight {
        count.fetch_add(1, Ordering::Relaxed);
        InFlight(Arc::clone(count))
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Preferred {
    /// Of the nodes of a partition, ordered by their ids, the one at `first`, counted round and round, is preferred. Requests
    /// `in_flight` are counted by who makes them.
    pub(super) fn new(
        any: Arc<dyn LoadBalancingPolicy>,
        datacenter: Option<String>,
        first: u64,
        in_flight: Arc<AtomicUsize>,
    ) -> Preferred {
        Preferred {
            any,
            datacenter,
            first,
            in_flight,
            asked: Mutex::default(),
        }
    }

    fn asked(&self) -> MutexGuard<'_, HashMap<Uuid, AskedNode>> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that this node is asked, unless it is silent.
    fn may_ask(&self, node: Uuid, now: Instant) -> bool {
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

    fn answered(&self, node: Uuid) {
        self.asked().remove(&node);
    }

    /// Which of this many nodes is the first.
    fn position(&self, nodes: usize) -> usize {
        // The one that is about to be sent is among them.
        let others = self.in_flight.load(Ordering::Relaxed).saturating_sub(1);
        let nodes_u64 = nodes as u64;
        let first = usize::try_from(self.first % nodes_u64).unwrap_or_default();
        (first + others / AT_ONE_NODE) % nodes
    }
}

impl LoadBalancingPolicy for Preferred {
    fn pick<'a>(
        &'a self,
        request: &'a RoutingInfo<'_>,
        cluster: &'a ClusterState,
    ) -> Option<(NodeRef<'a>, Option<Shard>)> {
        let any = || self.any.pick(request, cluster);
        let (Some(token), Some(table)) = (request.token, request.table) else {
            return any();
        };
        let Some(keyspace) = cluster.get_keyspace(table.ks_name()) else {
            return any();
        };
        let datacenter = self.datacenter.as_deref();
        let replicas = cluster.replica_locator().replicas_for_token(
            token,
            &keyspace.strategy,
            datacenter,
            table,
        );
        let mut replicas: Vec<(NodeRef<'a>, Shard)> = replicas
            .into_iter()
            .filter(|(node, _)| node.is_connected())
            .collect();
        if replicas.is_empty() {
            return any();
        }
        replicas.sort_by_key(|(node, _)| node.host_id);
        let first = self.position(replicas.len());
        replicas.rotate_left(first);
        let now = Instant::now();
        let picked = replicas
            .iter()
            .find(|(node, _)| self.may_ask(node.host_id, now));
        // Where all are silent, as where the whole cluster is slow, the first one is as good as another.
        let (node, shard) = picked.or_else(|| replicas.first())?;
        Some((node, Some(*shard)))
    }

    fn fallback<'a>(
        &'a self,
        request: &'a RoutingInfo<'_>,
        cluster: &'a ClusterState,
    ) -> FallbackPlan<'a> {
        self.any.fallback(request, cluster)
    }

    fn on_request_success(&self, request: &RoutingInfo<'_>, latency: Duration, node: NodeRef<'_>) {
        self.answered(node.host_id);
        self.any.on_request_success(request, latency, node);
    }

    fn on_request_failure(
        &self,
        request: &RoutingInfo<'_>,
        latency: Duration,
        node: NodeRef<'_>,
        error: &RequestAttemptError,
    ) {
        if matches!(error, RequestAttemptError::DbError(..)) {
            self.answered(node.host_id);
        }
        self.any.on_request_failure(request, latency, node, error);
    }

    fn name(&self) -> String {
        "Preferred".to_owned()
    }
}

#[cfg(test)]
mod tests {
    use scylla::policies::load_balancing::DefaultPolicy;

    use super::*;

    fn preferred(first: u64, in_flight: usize) -> Preferred {
        let any = DefaultPolicy::builder().build();
        Preferred::new(any, None, first, Arc::new(AtomicUsize::new(in_flight)))
    }

    #[test]
    fn each_process_prefers_another_node_until_many_requests_are_in_flight() {
        let positions =
            |in_flight| [0, 1, 2, 3].map(|first| preferred(first, in_flight).position(3));
        assert_eq!(positions(0), [0, 1, 2, 0]);
        assert_eq!(positions(AT_ONE_NODE), [0, 1, 2, 0]);
        assert_eq!(positions(AT_ONE_NODE + 1), [1, 2, 0, 1]);
        assert_eq!(positions(2 * AT_ONE_NODE + 1), [2, 0, 1, 2]);
        assert_eq!(positions(3 * AT_ONE_NODE + 1), [0, 1, 2, 0]);
        assert_eq!(preferred(u64::MAX, 0).position(1), 0);
    }

    #[test]
    fn requests_are_in_flight_until_they_are_dropped() {
        let count = Arc::new(AtomicUsize::new(0));
        let both = [InFlight::begin(&count), InFlight::begin(&count)];
        assert_eq!(count.load(Ordering::Relaxed), 2);
        drop(both);
        assert_eq!(count.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_node_that_does_not_answer_is_asked_once_a_second_until_it_does() {
        let policy = preferred(0, 0);
        let node = Uuid::from_u128(1);
        let begun = Instant::now();
        let at = |ms| begun + Duration::from_millis(ms);
        let asked = |ms| policy.may_ask(node, at(ms));
        assert!(asked(0) && asked(50) && asked(99));
        assert!(!asked(100) && !asked(900));
        assert!(asked(1_099));
        assert!(!asked(1_100) && !asked(2_098));
        assert!(asked(2_099));
        // Another one is another matter.
        assert!(policy.may_ask(Uuid::from_u128(2), at(2_100)));
        policy.answered(node);
        assert!(asked(2_200) && asked(2_299));
        assert!(!asked(2_300));
    }
}
