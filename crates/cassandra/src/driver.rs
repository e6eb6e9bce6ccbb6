//! The driver: connects, prepares, executes and pages. What is asked, and what the rows mean, is not known here.

mod backend;
mod counted;
#[cfg(feature = "cassandra-cpp")]
// The error of the wrapped library is large, and is turned into ours where it is seen.
#[allow(clippy::result_large_err)]
mod cpp;
mod failure_detector;
mod hedged;
mod nodes;
mod preferred;
mod reach;
mod scylla;
mod window;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use uuid::Uuid;

use self::backend::{
    Backend, Coordinator, Execution, Level, Node, PageMark, Prepared, Sending, Silence, Unanswered,
};
use self::counted::Counted;
pub use self::counted::Sent;
use self::failure_detector::FailureDetector;
use self::hedged::hedged;
pub use self::nodes::{KnownNode, Setting};
use self::preferred::Preferred;
use self::reach::Silent;
use self::scylla::Scylla;
pub use self::window::Order;
use self::window::Window;
use crate::fault::{ConnectFault, Fault};
use crate::options::{CassandraOptions, DriverKind, Majority};
use crate::value::{Row, Value};

/// After how long without an answer a read or a put is sent to another node as well.
const SPECULATE_AFTER: Duration = Duration::from_millis(200);
/// After how long without an answer of its node a transaction that may be sent twice is sent to another one as well.
const HEDGE_AFTER: Duration = Duration::from_millis(300);
/// How often each connection is looked at …
const KEEP_ALIVE: Duration = Duration::from_secs(2);
/// … and how long its node may take to show that it lives, before it is given up. Preparing waits for all nodes that
/// are connected: one that hangs would be in the way of each new statement until then.
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(5);
/// How long the nodes may take to agree on the schema. One that missed a change, since it was down or hung then, asks for it
/// after a minute.
const AGREEMENT_MAX: Duration = Duration::from_secs(100);

/// How a statement is executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// A lightweight transaction: never repeated by the driver, which could not know what became of it.
    Cas,
    /// One that may be sent twice, since it takes effect once at most. Where a node does not answer, another one is asked as
    /// well.
    HedgedCas(Order),
    /// A lightweight transaction that a majority of all nodes decides, whatever [`Majority`] says.
    CasEverywhere,
    /// A read that first settles the transactions that are in flight.
    SerialRead,
    /// The same of what a transaction is in doubt about: it may come in floods, from wherever nodes hang.
    SettlingRead,
    /// A read of what a majority has. May be sent twice.
    Read,
    /// A read of what any one replica has, be it old. May be sent twice.
    AnyRead,
    /// A write with its own timestamp, so that sending it twice changes nothing.
    Write,
}

impl Use {
    fn execution(self) -> Execution {
        let (level, sending) = match self {
            Use::Cas | Use::HedgedCas(_) => (Level::Majority, Sending::Once),
            Use::CasEverywhere => (Level::Everywhere, Sending::Once),
            Use::SerialRead | Use::SettlingRead => (Level::Serial, Sending::Once),
            Use::Read => (Level::Majority, Sending::Read),
            Use::AnyRead => (Level::One, Sending::Read),
            Use::Write => (Level::Majority, Sending::Write),
        };
        Execution { level, sending }
    }
}

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

/// A connected cluster.
#[derive(Debug)]
pub struct Driver {
    backend: Arc<dyn Backend>,
    majority: Majority,
    request_timeout: Duration,
    counted: Counted,
    failure_detector: Arc<FailureDetector>,
    /// Room for transactions in flight. Those that are hedged may come in floods, and so may reads that settle what became of
    /// them; the others do not wait behind these, nor these behind each other.
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
        let (contact_points, silent) = Silent::greet(&options.contact_points).await;
        let driver = Driver::connect_by(options, &contact_points, Arc::clone(&silent)).await?;
        match silent.greet_others().await {
            None => Ok(driver),
            // Of the nodes that the first connection found.
            Some(silent) => Driver::connect_by(options, &contact_points, silent).await,
        }
    }

    async fn connect_by(
        options: &CassandraOptions,
        contact_points: &[String],
        silent: Arc<Silent>,
    ) -> Result<Driver, ConnectFault> {
        let failure_detector = Arc::<FailureDetector>::default();
        let preferred = Preferred::new(options.preferred_node, Arc::clone(&failure_detector));
        let preferred = Arc::new(preferred);
        let backend: Arc<dyn Backend> = match options.driver {
            DriverKind::Scylla => {
                Arc::new(Scylla::connect(options, contact_points, silent, preferred).await?)
            }
            #[cfg(feature = "cassandra-cpp")]
            DriverKind::CassandraCpp => {
                Arc::new(cpp::Cpp::connect(options, contact_points, &silent, preferred).await?)
            }
            #[cfg(not(feature = "cassandra-cpp"))]
            DriverKind::CassandraCpp => {
                return Err(ConnectFault::Settings(
                    "this program was built without the driver cassandra-cpp".to_owned(),
                ));
            }
        };
        datacenter_is_there(options, &backend.nodes())?;
        let window = || Window::new(options.transactions_max.get(), options.request_timeout);
        Ok(Driver {
            backend,
            majority: options.majority,
            request_timeout: options.request_timeout,
            counted: Counted::default(),
            failure_detector,
            hedged_transactions: window(),
            settling_reads: window(),
            transactions: window(),
        })
    }

    /// The ranges of tokens that have the same nodes each.
    pub fn ranges(&self) -> Vec<TokenRange> {
        ranges_between(self.backend.ring().into_iter())
    }

    /// The statements that were executed so far.
    pub fn counts(&self) -> Sent {
        self.counted.so_far()
    }

    /// Whether there is a connection to any node.
    pub fn is_connected(&self) -> bool {
        self.backend.nodes().iter().any(|node| node.is_connected)
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
            Use::Read | Use::AnyRead | Use::Write => {
                self.counted.one(statement.usage);
                return statement.prepared.execute(values).await;
            }
        };
        let was_hedged = AtomicBool::new(false);
        let transaction = Box::pin(async {
            self.counted.one(statement.usage);
            self.coordinated(statement, values, &was_hedged).await
        });
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
        self.counted.one(statement.usage);
        let from = from.map(|next| next.0);
        let page = statement.prepared.page(values, page_rows, from).await;
        let (rows, next) = page?;
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
        let nodes = self.coordinators(&*statement.prepared, values)?;
        let mut nodes = nodes.iter().peekable();
        while let Some(first) = nodes.next() {
            let ask = |at| self.ask(at, &*statement.prepared, values);
            let answered = match nodes.peek() {
                Some(second) if matches!(statement.usage, Use::HedgedCas(_)) => {
                    let instead = || async {
                        let answered = ask(second).await;
                        if answered.is_ok() {
                            was_hedged.store(true, Ordering::Relaxed);
                            self.note_time_out(first);
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
            Err(Silence::TimedOut) => self.note_time_out(at),
            Err(Silence::Unreached | Silence::Broken) => {}
        }
        answer
    }

    fn note_time_out(&self, at: &Coordinator) {
        let (id, address) = (at.id, at.address.to_string());
        // It may have ended by then.
        let backend = Arc::downgrade(&self.backend);
        let probe = move || nodes::probe(backend.upgrade(), id);
        self.failure_detector.timed_out(id, address, probe);
    }

    /// Returns once a node has answered no transaction for a while, whoever asked: one that is only slow is not hedged.
    async fn is_silent(&self, at: &Coordinator) {
        loop {
            let since = tokio::time::Instant::now();
            tokio::time::sleep(HEDGE_AFTER).await;
            if !self.failure_detector.answered_since(at.id, since) {
                return;
            }
        }
    }

    /// The connected replicas of a key: those of the preferred datacenter first, those that hang last, else
    /// in the order of the ring. Where the majority is that of one datacenter, no others: a node means its own by that.
    fn coordinators(
        &self,
        prepared: &dyn Prepared,
        values: &[Value],
    ) -> Result<Vec<Coordinator>, Fault> {
        let mut replicas = prepared.replicas(values)?;
        let avoids = |node| self.failure_detector.avoids(node);
        by_preference(&mut replicas, self.majority, avoids);
        Ok(replicas)
    }
}

/// Leaves out whom nothing is to be sent to, and orders the others.
fn by_preference(
    replicas: &mut Vec<Coordinator>,
    majority: Majority,
    avoids: impl Fn(Uuid) -> bool,
) {
    replicas.retain(|at| at.is_connected && (majority == Majority::Everywhere || at.is_near));
    replicas.sort_by_cached_key(|at| (avoids(at.id), !at.is_near));
}

/// That the datacenter whose majority is to agree is one.
fn datacenter_is_there(options: &CassandraOptions, nodes: &[Node]) -> Result<(), ConnectFault> {
    let names: BTreeSet<_> = nodes
        .iter()
        .filter_map(|n| n.datacenter.as_deref())
        .collect();
    let wanted = options.datacenter.as_deref().unwrap_or_default();
    if options.majority == Majority::Everywhere || names.contains(wanted) {
        return Ok(());
    }
    let names = names.into_iter().collect::<Vec<_>>().join(", ");
    Err(ConnectFault::Unreachable(format!(
        "no node is in the datacenter {wanted:?}, whose majority is to agree; there are: {names}"
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
