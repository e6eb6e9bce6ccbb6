//! Detects nodes that hang. A hanging node may keep its connections, so only timeouts of requests show that it hangs. It is then
//! asked last for a while.

use std::collections::HashMap;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;
use uuid::Uuid;

/// A node is avoided after this many time-outs in a row: one alone may be a pause of a busy machine.
const TIMEOUTS_MAX: u32 = 2;
/// How long a node is avoided after each further time-out. Longer than a request takes, so that requests that were sent
/// before have ended when the node is asked again.
const AVOIDED_FOR: Duration = Duration::from_secs(10);

/// What requests to each node came to lately. It has as many nodes as the cluster.
#[derive(Debug, Default)]
pub(super) struct FailureDetector(Mutex<HashMap<Uuid, NodeHealth>>);

#[derive(Debug, Default)]
struct NodeHealth {
    answered: Option<Instant>,
    /// Since the last answer.
    timeouts: u32,
    avoided_until: Option<Instant>,
}

impl FailureDetector {
    /// Whether others are to be asked before this node.
    pub(super) fn avoids(&self, node: Uuid) -> bool {
        let nodes = self.0.lock();
        let until = nodes.get(&node).and_then(|health| health.avoided_until);
        until.is_some_and(|until| until > Instant::now())
    }

    /// Whether this node answered a request after this moment.
    pub(super) fn answered_since(&self, node: Uuid, since: Instant) -> bool {
        let nodes = self.0.lock();
        let answered = nodes.get(&node).and_then(|health| health.answered);
        answered.is_some_and(|at| at > since)
    }

    /// The node let a request time out.
    pub(super) fn timed_out(&self, node: Uuid, address: impl std::fmt::Display) {
        let mut nodes = self.0.lock();
        let health = nodes.entry(node).or_default();
        health.timeouts = health.timeouts.saturating_add(1);
        if health.timeouts < TIMEOUTS_MAX {
            return;
        }
        if health.avoided_until.is_none() {
            tracing::warn!(
                %node,
                %address,
                "requests to a Cassandra node time out; using other nodes first until it answers again"
            );
        }
        health.avoided_until = Some(Instant::now() + AVOIDED_FOR);
    }

    /// The node answered a request, whatever the answer.
    pub(super) fn answered(&self, node: Uuid) {
        let mut nodes = self.0.lock();
        let health = nodes.entry(node).or_default();
        if health.avoided_until.take().is_some() {
            tracing::info!(%node, "a Cassandra node answers again; using it as before");
        }
        health.timeouts = 0;
        health.answered = Some(Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODE: Uuid = Uuid::from_u128(1);
    const OTHER: Uuid = Uuid::from_u128(2);

    #[tokio::test(start_paused = true)]
    async fn a_node_is_avoided_after_two_time_outs_without_an_answer_between() {
        let detector = FailureDetector::default();
        detector.timed_out(NODE, "here");
        detector.answered(NODE);
        detector.timed_out(NODE, "here");
        detector.answered(OTHER);
        assert!(!detector.avoids(NODE));
        detector.timed_out(NODE, "here");
        assert!(detector.avoids(NODE) && !detector.avoids(OTHER));
        detector.answered(NODE);
        assert!(!detector.avoids(NODE));
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_is_asked_again_after_a_while_and_avoided_after_one_more_time_out() {
        let detector = FailureDetector::default();
        detector.timed_out(NODE, "here");
        detector.timed_out(NODE, "here");
        tokio::time::advance(AVOIDED_FOR).await;
        assert!(!detector.avoids(NODE));
        detector.timed_out(NODE, "here");
        assert!(detector.avoids(NODE));
    }
}
