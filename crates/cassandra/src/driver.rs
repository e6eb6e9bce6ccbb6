//! The driver: connects, prepares, executes and pages. It knows neither the statements nor the meaning of their rows.

mod backend;
#[cfg(feature = "cassandra-cpp")]
// The error of the wrapped library is large, and is turned into ours where it is seen.
#[allow(clippy::result_large_err)]
mod cpp;
mod failure_detector;
mod hedged;
mod preferred;
mod reach;
mod scylla;
mod usage;
mod window;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use uuid::Uuid;

use self::backend::{
    AGREEMENT_MAX, Backend, Coordinator, PageMark, Prepared, SECOND_NODE_AFTER, Silence, Unanswered,
};
use self::failure_detector::FailureDetector;
use self::hedged::hedged;
use self::preferred::Preferred;
use self::reach::Greeted;
use self::scylla::Scylla;
pub use self::usage::{Observer, StatementKind, Use};
pub use self::window::Order;
use self::window::Window;
use crate::fault::{ConnectFault, Fault};
use crate::options::{CassandraOptions, DriverKind, Majority};
use crate::value::{Row, Value};

/// A prepared statement.
#[derive(Clone, Debug)]
pub struct Statement {
    prepared: Arc<dyn Prepared>,
    usage: Use,
}

impl Statement {
    /// The same, in the order that this use has.
    pub fn used_as(self, usage: Use) -> Statement {
        match (self.usage, usage) {
            (Use::HedgedCas(_), Use::HedgedCas(_)) => Statement { usage, ..self },
            _ => self,
        }
    }
}

/// Some tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenRange {
    /// Above this one.
    pub above: i64,
    /// Up to this one, itself included.
    pub up_to: i64,
}

/// Those that these tokens of nodes cut all into.
fn ranges_between(nodes: impl Iterator<Item = i64>) -> Vec<TokenRange> {
    let mut ends: Vec<i64> = nodes.chain([i64::MIN, i64::MAX]).collect();
    ends.sort_unstable();
    ends.dedup();
    let between = ends.windows(2).map(|two| TokenRange {
        above: two[0],
        up_to: two[1],
    });
    between.collect()
}

/// Where a listing goes on.
#[derive(Clone, Debug)]
pub struct NextPage(PageMark);

/// A statement that was sent. A drop before its end means that its caller gave up.
struct SentStatement<'a> {
    observer: &'a dyn Observer,
    kind: StatementKind,
    sent: Instant,
    is_ended: bool,
}

impl SentStatement<'_> {
    fn ended(&mut self, fault: Option<&Fault>) {
        self.is_ended = true;
        self.observer.ended(self.kind, self.sent.elapsed(), fault);
    }
}

impl Drop for SentStatement<'_> {
    fn drop(&mut self) {
        if !self.is_ended {
            self.ended(Some(&Fault::Unknown("its caller gave up".to_owned())));
        }
    }
}

/// A connected cluster.
#[derive(Debug)]
pub struct Driver {
    backend: Arc<dyn Backend>,
    majority: Majority,
    request_timeout: Duration,
    observer: Arc<dyn Observer>,
    failure_detector: Arc<FailureDetector>,
    /// Room for transactions in flight. Hedged ones come in floods, and so do the reads that settle them. The others wait behind
    /// neither.
    hedged_transactions: Window,
    settling_reads: Window,
    transactions: Window,
}

impl Driver {
    /// Connects to all nodes, and waits for those that hang: who changes the schema must do so by the same node as
    /// everybody else.
    pub async fn connect(options: &CassandraOptions) -> Result<Driver, ConnectFault> {
        Driver::connect_by(options, &options.contact_points, Arc::default()).await
    }

    /// Connects without nodes that do not answer, until they do.
    pub async fn connect_soon(options: &CassandraOptions) -> Result<Driver, ConnectFault> {
        let (contact_points, greeted) = Greeted::greet(&options.contact_points).await;
        Driver::connect_by(options, &contact_points, greeted).await
    }

    async fn connect_by(
        options: &CassandraOptions,
        contact_points: &[String],
        greeted: Arc<Greeted>,
    ) -> Result<Driver, ConnectFault> {
        let failure_detector = Arc::<FailureDetector>::default();
        let preferred = Preferred::new(options.preferred_node, Arc::clone(&failure_detector));
        let preferred = Arc::new(preferred);
        let backend: Arc<dyn Backend> = match options.driver {
            DriverKind::Scylla => {
                Arc::new(Scylla::connect(options, contact_points, greeted, preferred).await?)
            }
            #[cfg(feature = "cassandra-cpp")]
            DriverKind::CassandraCpp => {
                Arc::new(cpp::Cpp::connect(options, contact_points, &greeted, preferred).await?)
            }
            #[cfg(not(feature = "cassandra-cpp"))]
            DriverKind::CassandraCpp => {
                return Err(ConnectFault::Settings(
                    "this program was built without the driver cassandra-cpp".to_owned(),
                ));
            }
        };
        let window = || Window::new(options.transactions_max.get(), options.request_timeout);
        let driver = Driver {
            backend,
            majority: options.majority,
            request_timeout: options.request_timeout,
            observer: Arc::new(()),
            failure_detector,
            hedged_transactions: window(),
            settling_reads: window(),
            transactions: window(),
        };
        has_datacenter(options, &driver.datacenters())?;
        Ok(driver)
    }

    /// The ranges of tokens that have the same nodes each.
    pub fn ranges(&self) -> Vec<TokenRange> {
        ranges_between(self.backend.ring().into_iter())
    }

    /// Its statements are observed by this from now on.
    #[must_use]
    pub fn observed_by(self, observer: Arc<dyn Observer>) -> Driver {
        Driver { observer, ..self }
    }

    /// Executes a statement of this use, and tells the observer.
    async fn observed<T>(
        &self,
        usage: Use,
        executed: impl Future<Output = Result<T, Fault>>,
    ) -> Result<T, Fault> {
        let mut sent = SentStatement {
            observer: &*self.observer,
            kind: usage.kind(),
            sent: Instant::now(),
            is_ended: false,
        };
        sent.observer.sent(sent.kind);
        let answer = executed.await;
        sent.ended(answer.as_ref().err());
        answer
    }

    /// Whether there is a connection to any node.
    pub fn is_connected(&self) -> bool {
        self.backend.nodes().iter().any(|node| node.is_connected)
    }

    /// The datacenters of the cluster, and how many nodes each has.
    pub fn datacenters(&self) -> BTreeMap<String, usize> {
        let mut datacenters = BTreeMap::new();
        let nodes = self.backend.nodes().into_iter();
        for name in nodes.filter_map(|node| node.datacenter) {
            *datacenters.entry(name).or_default() += 1;
        }
        datacenters
    }

    /// Prepares a statement, for that use of it.
    pub async fn prepare(&self, usage: Use, text: &str) -> Result<Statement, Fault> {
        let preparing = self.backend.prepare(text, usage.execution());
        match tokio::time::timeout(self.request_timeout, preparing).await {
            Ok(prepared) => Ok(Statement {
                prepared: prepared?,
                usage,
            }),
            Err(_) => Err(Fault::NotStarted(
                "preparing a statement timed out".to_owned(),
            )),
        }
    }

    /// Executes a statement whose answer is one page.
    pub async fn execute(
        &self,
        statement: &Statement,
        values: &[Value],
    ) -> Result<Vec<Row>, Fault> {
        let (window, order) = match statement.usage {
            Use::HedgedCas(order) => (&self.hedged_transactions, order),
            Use::SettlingRead => (&self.settling_reads, Order::First),
            Use::Cas | Use::CasEverywhere | Use::SerialRead => (&self.transactions, Order::First),
            Use::Read
            | Use::ReadEverywhere
            | Use::AnyRead
            | Use::Write
            | Use::ReadFrom(_)
            | Use::WriteTo(_) => {
                let executed = statement.prepared.execute(values);
                return self.observed(statement.usage, executed).await;
            }
        };
        let was_hedged = AtomicBool::new(false);
        let executed = self.coordinated(statement, values, &was_hedged);
        let transaction = Box::pin(self.observed(statement.usage, executed));
        let was_slow = || was_hedged.load(Ordering::Relaxed);
        window.one(order, transaction, was_slow).await
    }

    /// Executes a read, and answers with one page of it and where it goes on.
    pub async fn page(
        &self,
        statement: &Statement,
        values: &[Value],
        page_rows: i32,
        from: Option<NextPage>,
    ) -> Result<(Vec<Row>, Option<NextPage>), Fault> {
        let from = from.map(|next| next.0);
        let page = statement.prepared.page(values, page_rows, from);
        let (rows, next) = self.observed(statement.usage, page).await?;
        Ok((rows, next.map(NextPage)))
    }

    /// Executes what changes the schema. All of these go to one node, the same for every client that is
    /// connected to it: there they come one after the other, so that two clients that create a table at once
    /// do not make two of it.
    pub async fn change_schema(&self, text: &str) -> Result<(), Fault> {
        let nodes = self.backend.nodes();
        let connected = nodes.iter().filter(|node| node.is_connected);
        let Some(node) = connected.min_by_key(|node| node.id) else {
            return Err(Fault::NotStarted("no node is connected".to_owned()));
        };
        let changed = self.backend.query_at(node, text, &[], AGREEMENT_MAX).await;
        changed.map(drop).map_err(|unanswered| unanswered.fault)
    }

    /// Waits until all nodes have the same schema.
    pub async fn agree_on_schema(&self) -> Result<(), Fault> {
        self.backend.agree_on_schema().await
    }

    /// Executes a lightweight transaction, or a read like one, at the first replica of its key: whoever
    /// writes to a key prefers the same node, which spares them contention. `was_hedged` becomes true where that did not
    /// answer in time and another one, asked as well, did.
    async fn coordinated(
        &self,
        statement: &Statement,
        values: &[Value],
        was_hedged: &AtomicBool,
    ) -> Result<Vec<Row>, Fault> {
        let mut refused = Fault::NotStarted("no node that has this key is connected".to_owned());
        let mut nodes = statement.prepared.replicas(values)?;
        let avoids = |node| self.failure_detector.avoids(node);
        by_preference(&mut nodes, self.majority, avoids);
        let mut nodes = nodes.iter().peekable();
        while let Some(first) = nodes.next() {
            let ask = |at| self.ask(at, &*statement.prepared, values);
            let answered = match nodes.peek() {
                Some(second) if matches!(statement.usage, Use::HedgedCas(_)) => {
                    let instead = || async {
                        let answered = ask(second).await;
                        if answered.is_ok() {
                            was_hedged.store(true, Ordering::Relaxed);
                            self.failure_detector.timed_out(first.id, first.address);
                        }
                        answered
                    };
                    hedged(ask(first), self.is_silent(first), instead, |rows| {
                        is_applied(rows)
                    })
                    .await
                }
                Some(_) | None => ask(first).await,
            };
            match answered {
                Ok(answer) => return Ok(answer),
                Err(unanswered) => {
                    refused = unanswered.fault;
                    if unanswered.silence != Silence::Unreached {
                        break;
                    }
                }
            }
        }
        Err(refused)
    }

    /// Executes a statement at this node.
    async fn ask(
        &self,
        at: &Coordinator,
        prepared: &dyn Prepared,
        values: &[Value],
    ) -> Result<Vec<Row>, Unanswered> {
        let answer = prepared.execute_at(at, values).await;
        match answer.as_ref().map_err(|unanswered| unanswered.silence) {
            Ok(_) | Err(Silence::Answered) => self.failure_detector.answered(at.id),
            Err(Silence::TimedOut) => self.failure_detector.timed_out(at.id, at.address),
            Err(Silence::Unreached | Silence::Broken) => {}
        }
        answer
    }

    /// Returns once the node has answered no transaction of any caller for a while. A node that is only slow is not hedged.
    async fn is_silent(&self, at: &Coordinator) {
        loop {
            let since = tokio::time::Instant::now();
            tokio::time::sleep(SECOND_NODE_AFTER).await;
            if !self.failure_detector.answered_since(at.id, since) {
                return;
            }
        }
    }
}

/// Keeps the connected replicas of a key: those of the preferred datacenter first, those that hang last, else in the order of the
/// ring. With the majority of one datacenter only its nodes stay: each node takes that for its own datacenter.
fn by_preference(
    replicas: &mut Vec<Coordinator>,
    majority: Majority,
    avoids: impl Fn(Uuid) -> bool,
) {
    replicas.retain(|at| at.is_connected && (majority == Majority::Everywhere || at.is_near));
    replicas.sort_by_cached_key(|at| (avoids(at.id), !at.is_near));
}

/// Refuses a local majority in a datacenter that the cluster does not have.
fn has_datacenter(
    options: &CassandraOptions,
    known: &BTreeMap<String, usize>,
) -> Result<(), ConnectFault> {
    let wanted = options.datacenter.as_deref().unwrap_or_default();
    if options.majority == Majority::Everywhere || known.contains_key(wanted) {
        return Ok(());
    }
    let names: Vec<_> = known.keys().map(String::as_str).collect();
    Err(ConnectFault::Unreachable(format!(
        "the datacenter {wanted:?}, which local_quorum needs, has no node; the cluster has {}",
        names.join(", ")
    )))
}

/// Whether the answer to a transaction says that it took effect.
fn is_applied(rows: &[Row]) -> bool {
    let applied = rows.first().and_then(|row| row.get("[applied]"));
    matches!(applied, Some(Value::Boolean(true)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replica(number: u128, is_near: bool, is_connected: bool) -> Coordinator {
        Coordinator {
            id: Uuid::from_u128(number),
            address: ([127, 0, 0, 1], 9042).into(),
            is_near,
            is_connected,
            shard: 0,
        }
    }

    #[test]
    fn a_transaction_goes_to_a_near_node_and_with_the_majority_of_one_datacenter_to_no_other_one() {
        let all = [
            replica(1, false, true),
            replica(2, true, false),
            replica(3, true, true),
            replica(4, true, true),
        ];
        let order = |majority| -> Vec<u128> {
            let mut replicas = all.to_vec();
            by_preference(&mut replicas, majority, |node| node.as_u128() == 3);
            replicas.iter().map(|at| at.id.as_u128()).collect()
        };
        assert_eq!(order(Majority::Everywhere), [4, 1, 3]);
        assert_eq!(order(Majority::OneDatacenter), [4, 3]);
    }

    #[test]
    fn ranges_cover_all_tokens_once() {
        let ends = |nodes: &[i64]| -> Vec<(i64, i64)> {
            let ranges = ranges_between(nodes.iter().copied());
            ranges.iter().map(|one| (one.above, one.up_to)).collect()
        };
        assert_eq!(ends(&[]), [(i64::MIN, i64::MAX)]);
        assert_eq!(ends(&[7, -7, 7]), [(i64::MIN, -7), (-7, 7), (7, i64::MAX)]);
        assert_eq!(ends(&[i64::MAX, i64::MIN]), [(i64::MIN, i64::MAX)]);
    }
}
