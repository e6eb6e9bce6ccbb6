//! The metrics of a store: its requests, their durations and their failures.
//!
//! On Cassandra a request is a statement, measured from its sending: the wait for a place among the statements in flight does not
//! count. On the embedded store it is a commit, which makes many changes durable at once.

use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

use super::StoreCounts;

/// The bounds of requests, in seconds.
const SECONDS: [f64; 12] = [
    0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0,
];

/// The subject of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataOf {
    /// Locks, values and sessions.
    Locks,
    /// The replicas themselves: heartbeats, and hand-over requests.
    Replicas,
}

/// The kind of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// A read of Cassandra.
    Read,
    /// A plain write to Cassandra.
    Write,
    /// A lightweight transaction of Cassandra.
    Transaction,
    /// A commit of the embedded store.
    Commit,
}

/// The failure of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// It certainly did not take effect.
    NotStarted,
    /// It may have taken effect, or may yet.
    Unknown,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct RequestLabels {
    data: &'static str,
    operation: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct FailureLabels {
    data: &'static str,
    operation: &'static str,
    outcome: &'static str,
}

/// See the module. Clones count together.
#[derive(Clone, Debug)]
pub struct StoreMetrics {
    requests: Family<RequestLabels, Counter>,
    failures: Family<FailureLabels, Counter>,
    durations: Family<RequestLabels, Histogram, fn() -> Histogram>,
}

impl Default for StoreMetrics {
    fn default() -> StoreMetrics {
        StoreMetrics {
            requests: Family::default(),
            failures: Family::default(),
            durations: Family::new_with_constructor(|| Histogram::new(SECONDS)),
        }
    }
}

fn labels(data: DataOf, operation: Operation) -> RequestLabels {
    RequestLabels {
        data: match data {
            DataOf::Locks => "locks",
            DataOf::Replicas => "replicas",
        },
        operation: match operation {
            Operation::Read => "read",
            Operation::Write => "write",
            Operation::Transaction => "transaction",
            Operation::Commit => "commit",
        },
    }
}

impl StoreMetrics {
    /// Counts a request as it is sent.
    pub fn sent(&self, data: DataOf, operation: Operation) {
        self.requests.get_or_create(&labels(data, operation)).inc();
    }

    /// Counts the end of a request that took this time.
    pub fn ended(
        &self,
        data: DataOf,
        operation: Operation,
        took: Duration,
        failure: Option<Failure>,
    ) {
        let labels = labels(data, operation);
        let Some(failure) = failure else {
            let durations = self.durations.get_or_create(&labels);
            return durations.observe(took.as_secs_f64());
        };
        let RequestLabels { data, operation } = labels;
        let failed = FailureLabels {
            data,
            operation,
            outcome: match failure {
                Failure::NotStarted => "not_started",
                Failure::Unknown => "unknown",
            },
        };
        self.failures.get_or_create(&failed).inc();
    }

    /// The statements that were sent, failed ones included.
    pub fn counts(&self) -> StoreCounts {
        let of = |operation| {
            let each = [DataOf::Locks, DataOf::Replicas].into_iter();
            each.filter_map(|data| Some(self.requests.get(&labels(data, operation))?.get()))
                .sum()
        };
        StoreCounts {
            reads: of(Operation::Read),
            writes: of(Operation::Write),
            transactions: of(Operation::Transaction),
        }
    }

    /// Adds all to a registry.
    pub fn register(&self, registry: &mut Registry) {
        registry.register(
            "store_requests",
            "Requests to the store, as they are sent: statements on Cassandra, commits on the embedded store; by operation, and by \
             whether they are about locks (with values and sessions) or about the replicas themselves (heartbeats)",
            self.requests.clone(),
        );
        registry.register(
            "store_request_failures",
            "Requests to the store that failed, by outcome: not started, or unknown",
            self.failures.clone(),
        );
        registry.register_with_unit(
            "store_request_duration",
            "Time of the requests to the store that succeeded",
            Unit::Seconds,
            self.durations.clone(),
        );
    }
}
