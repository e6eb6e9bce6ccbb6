//! Nodes that hang: one keeps its connections, so it is told only by the requests that it lets time out. Such a
//! node is avoided until it answers again, and it is asked so by a task of its own, never by a live request.
//!
//! Which requests those are, and how a node is probed, is not known here.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};
use uuid::Uuid;

/// A node that let this many requests in a row time out …
const TIMEOUTS_MAX: u32 = 2;
/// … is avoided for this long at least, be it only slow: what it was sent before has timed out by then …
const AVOIDED_MIN: Duration = Duration::from_secs(10);
/// … and from then on probed, with this pause between two probes, until it answers one.
const PROBE_PAUSE: Duration = Duration::from_secs(1);
/// How many nodes are noted at most; one above that is not avoided.
const SUSPECTS_MAX: usize = 1_000;

/// What came of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Probed {
    /// The node answered.
    Answered,
    /// It did not, or could not be asked.
    Silent,
    /// The cluster has no such node any more.
    Gone,
}

/// The nodes whose last request, or more, timed out. All probing ends with this.
#[derive(Debug, Default)]
pub(super) struct FailureDetector {
    nodes: Mutex<HashMap<Uuid, Suspect>>,
    /// When each node answered last.
    answers: Mutex<HashMap<Uuid, Instant>>,
}

#[derive(Debug, Default)]
struct Suspect {
    timeouts: u32,
    avoided: Option<Avoided>,
}

#[derive(Debug)]
struct Avoided {
    address: String,
    since: Instant,
    probing: JoinHandle<()>,
}

impl Drop for Avoided {
    fn drop(&mut self) {
        self.probing.abort();
    }
}

impl FailureDetector {
    fn lock(&self) -> MutexGuard<'_, HashMap<Uuid, Suspect>> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether others are to be asked before this node.
    pub(super) fn avoids(&self, node: Uuid) -> bool {
        let nodes = self.lock();
        nodes
            .get(&node)
            .is_some_and(|suspect| suspect.avoided.is_some())
    }

    /// The node at this address let a request time out. Once it is avoided, `probe` asks it for a renewal; that
    /// must end in bounded time.
    pub(super) fn timed_out<F>(
        self: &Arc<FailureDetector>,
        node: Uuid,
        address: String,
        probe: impl Fn() -> F + Send + Sync + 'static,
    ) where
        F: Future<Output = Probed> + Send + 'static,
    {
        let mut nodes = self.lock();
        if nodes.len() >= SUSPECTS_MAX && !nodes.contains_key(&node) {
            nodes.retain(|_, suspect| suspect.avoided.is_some());
            if nodes.len() >= SUSPECTS_MAX {
                return;
            }
        }
        let suspect = nodes.entry(node).or_default();
        suspect.timeouts = suspect.timeouts.saturating_add(1);
        // Where no other one answers either, an avoided node is asked all the same.
        if suspect.timeouts < TIMEOUTS_MAX || suspect.avoided.is_some() {
            return;
        }
        tracing::warn!(
            %node,
            address,
            "requests to a Cassandra node time out; using other nodes until it answers again"
        );
        suspect.avoided = Some(Avoided {
            address,
            since: Instant::now(),
            probing: tokio::spawn(until_answered(Arc::downgrade(self), node, probe)),
        });
    }

    /// Whether this node answered a request after this moment.
    pub(super) fn answered_since(&self, node: Uuid, since: Instant) -> bool {
        let answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        answers.get(&node).is_some_and(|at| *at > since)
    }

    fn note_answer(&self, node: Uuid) {
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        if answers.len() >= SUSPECTS_MAX && !answers.contains_key(&node) {
            answers.clear();
        }
        answers.insert(node, Instant::now());
    }

    /// The node answered a request, whatever it said.
    pub(super) fn answered(&self, node: Uuid) {
        self.note_answer(node);
        let suspect = self.lock().remove(&node);
        note_return(node, suspect.and_then(|suspect| suspect.avoided));
    }

    /// The node answered a probe. That it does so for a request as well is to be seen: if it does not, once is enough.
    fn answered_probe(&self, node: Uuid) {
        let mut nodes = self.lock();
        let Some(suspect) = nodes.get_mut(&node) else {
            return;
        };
        suspect.timeouts = TIMEOUTS_MAX - 1;
        let avoided = suspect.avoided.take();
        drop(nodes);
        note_return(node, avoided);
    }
}

fn note_return(node: Uuid, avoided: Option<Avoided>) {
    if let Some(avoided) = avoided {
        let (address, after) = (&avoided.address, avoided.since.elapsed());
        tracing::info!(%node, address, ?after, "a Cassandra node answers again; using it as before");
    }
}

async fn until_answered<F>(detector: Weak<FailureDetector>, node: Uuid, probe: impl Fn() -> F)
where
    F: Future<Output = Probed>,
{
    sleep(AVOIDED_MIN).await;
    let probed = loop {
        match probe().await {
            Probed::Silent => sleep(PROBE_PAUSE).await,
            probed => break probed,
        }
    };
    let Some(detector) = detector.upgrade() else {
        return;
    };
    match probed {
        Probed::Answered => detector.answered_probe(node),
        Probed::Silent | Probed::Gone => drop(detector.lock().remove(&node)),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    const NODE: Uuid = Uuid::from_u128(1);
    const OTHER: Uuid = Uuid::from_u128(2);

    /// A node whose probes all come to the same until that is changed.
    struct Probes {
        comes_to: Mutex<Probed>,
        count: AtomicUsize,
    }

    impl Probes {
        fn silent() -> Arc<Probes> {
            Arc::new(Probes {
                comes_to: Mutex::new(Probed::Silent),
                count: AtomicUsize::new(0),
            })
        }

        fn come_to(&self, probed: Probed) {
            *self.comes_to.lock().unwrap() = probed;
        }

        fn count(&self) -> usize {
            self.count.load(Ordering::Relaxed)
        }

        fn times_out(self: &Arc<Probes>, detector: &Arc<FailureDetector>) {
            let probes = Arc::clone(self);
            detector.timed_out(NODE, "here".to_owned(), move || {
                probes.count.fetch_add(1, Ordering::Relaxed);
                std::future::ready(*probes.comes_to.lock().unwrap())
            });
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_is_avoided_after_two_time_outs_without_an_answer_between() {
        let (detector, probes) = (Arc::new(FailureDetector::default()), Probes::silent());
        probes.times_out(&detector);
        detector.answered(NODE);
        probes.times_out(&detector);
        detector.answered(OTHER);
        assert!(!detector.avoids(NODE));
        probes.times_out(&detector);
        assert!(detector.avoids(NODE) && !detector.avoids(OTHER));
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_is_avoided_for_however_long_it_is_silent_and_asked_soon_after() {
        let (detector, probes) = (Arc::new(FailureDetector::default()), Probes::silent());
        probes.times_out(&detector);
        probes.times_out(&detector);
        sleep(Duration::from_secs(3_600)).await;
        assert!(detector.avoids(NODE));
        probes.come_to(Probed::Answered);
        sleep(2 * PROBE_PAUSE).await;
        assert!(!detector.avoids(NODE));
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_that_answers_probes_only_is_avoided_again_after_one_time_out() {
        let (detector, probes) = (Arc::new(FailureDetector::default()), Probes::silent());
        probes.come_to(Probed::Answered);
        probes.times_out(&detector);
        probes.times_out(&detector);
        sleep(2 * AVOIDED_MIN).await;
        assert!(!detector.avoids(NODE));
        probes.times_out(&detector);
        assert!(detector.avoids(NODE));
        sleep(2 * AVOIDED_MIN).await;
        // With an answer to a request it counts anew.
        detector.answered(NODE);
        probes.times_out(&detector);
        assert!(!detector.avoids(NODE));
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_that_is_only_slow_is_not_asked_again_at_once() {
        let (detector, probes) = (Arc::new(FailureDetector::default()), Probes::silent());
        probes.come_to(Probed::Answered);
        probes.times_out(&detector);
        probes.times_out(&detector);
        sleep(AVOIDED_MIN - Duration::from_millis(10)).await;
        assert!(detector.avoids(NODE));
        sleep(Duration::from_millis(20)).await;
        assert!(!detector.avoids(NODE));
    }

    #[tokio::test(start_paused = true)]
    async fn one_probe_a_second_is_sent_however_many_requests_time_out() {
        let (detector, probes) = (Arc::new(FailureDetector::default()), Probes::silent());
        for _ in 0..100 {
            probes.times_out(&detector);
        }
        sleep(AVOIDED_MIN + Duration::from_millis(10_500)).await;
        assert_eq!(probes.count(), 11);
    }

    #[tokio::test(start_paused = true)]
    async fn probing_ends_with_an_answer_to_a_live_request() {
        let (detector, probes) = (Arc::new(FailureDetector::default()), Probes::silent());
        probes.times_out(&detector);
        probes.times_out(&detector);
        detector.answered(NODE);
        assert!(!detector.avoids(NODE));
        sleep(2 * AVOIDED_MIN).await;
        assert_eq!((probes.count(), Arc::strong_count(&probes)), (0, 1));
    }

    #[tokio::test(start_paused = true)]
    async fn probing_ends_where_the_node_left_the_cluster() {
        let (detector, probes) = (Arc::new(FailureDetector::default()), Probes::silent());
        probes.come_to(Probed::Gone);
        probes.times_out(&detector);
        probes.times_out(&detector);
        sleep(2 * AVOIDED_MIN).await;
        assert_eq!((probes.count(), Arc::strong_count(&probes)), (1, 1));
        assert!(detector.lock().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn probing_ends_with_its_owner() {
        let (detector, probes) = (Arc::new(FailureDetector::default()), Probes::silent());
        probes.times_out(&detector);
        probes.times_out(&detector);
        sleep(2 * AVOIDED_MIN).await;
        drop(detector);
        let sent = probes.count();
        sleep(2 * AVOIDED_MIN).await;
        assert_eq!((probes.count(), Arc::strong_count(&probes)), (sent, 1));
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_noted_is_bounded() {
        let detector = Arc::new(FailureDetector::default());
        // Those that timed out once give way; those that are avoided do not.
        for time_outs in [1, 2] {
            for number in 0..2 * SUSPECTS_MAX as u128 {
                for _ in 0..time_outs {
                    let silent = || std::future::ready(Probed::Silent);
                    detector.timed_out(Uuid::from_u128(number), String::new(), silent);
                }
            }
            assert!(detector.lock().len() <= SUSPECTS_MAX);
        }
    }
}
