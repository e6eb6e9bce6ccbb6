//! The driver: connects, prepares, executes and pages. What is asked, and what the rows mean, is not known here.

mod counted;
mod nodes;
mod outcome;
mod preferred;
mod raced;
mod reach;
mod suspects;
mod values;
mod window;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use scylla::client::PoolSize;
use scylla::client::execution_profile::ExecutionProfile;
use scylla::client::session::Session;
use scylla::client::session_builder::SessionBuilder;
use scylla::cluster::Node;
use scylla::errors::ExecutionError;
use scylla::policies::load_balancing::{
    DefaultPolicy, NodeIdentifier, SingleTargetLoadBalancingPolicy,
};
use scylla::policies::retry::{DefaultRetryPolicy, FallthroughRetryPolicy};
use scylla::policies::speculative_execution::SimpleSpeculativeExecutionPolicy;
use scylla::response::{PagingState, PagingStateResponse};
use scylla::routing::Shard;
use scylla::statement::prepared::PreparedStatement;
use scylla::statement::{Consistency, SerialConsistency, Statement as Unprepared};

use self::counted::Counted;
pub use self::counted::Sent;
pub use self::nodes::{KnownNode, Setting};
use self::outcome::{fault, fault_of_repeated, is_answer, not_connected, not_prepared};
use self::preferred::{InFlight, Preferred};
use self::raced::{Unanswered, raced};
use self::reach::Silent;
use self::suspects::Suspects;
use self::values::rows;
pub use self::window::Order;
use self::window::Window;
use crate::fault::{ConnectFault, Fault};
use crate::options::{CassandraOptions, Majority};
use crate::tls;
use crate::value::{Row, Value};

/// After how long without an answer a read or a put is sent to another node as well.
const SPECULATE_AFTER: Duration = Duration::from_millis(200);
/// After how long without an answer of its node a transaction that may be sent twice is sent to another one as well.
const RACE_AFTER: Duration = Duration::from_millis(300);
/// How often each connection is looked at …
const KEEP_ALIVE: Duration = Duration::from_secs(2);
/// … and how long its node may take to show that it lives, before it is given up. Preparing waits for all nodes that
/// are connected: one that hangs would be in the way of each new statement until then.
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(5);
/// How long the nodes may take to agree on the schema.
const AGREEMENT_MAX: Duration = Duration::from_secs(60);

/// How a statement is executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// A lightweight transaction: never repeated by the driver, which could not know what became of it.
    Cas,
    /// One that may be sent twice, since it takes effect once at most. Where a node does not answer, another one is asked as
    /// well.
    RacedCas(Order),
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

/// A prepared statement.
#[derive(Clone, Debug)]
pub struct Statement {
    prepared: PreparedStatement,
    usage: Use,
}

impl Statement {
    /// The same, in the order that this use has.
    pub fn used_as(self, usage: Use) -> Statement {
        match (self.usage, usage) {
            (Use::RacedCas(_), Use::RacedCas(_)) => Statement { usage, ..self },
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
pub struct NextPage(PagingState);

/// A connected cluster.
#[derive(Debug)]
pub struct Driver {
    session: Arc<Session>,
    majority: Majority,
    datacenter: Option<String>,
    request_timeout: Duration,
    counted: Counted,
    suspects: Arc<Suspects>,
    /// Reads and writes that are no transactions.
    in_flight: Arc<AtomicUsize>,
    /// Room for transactions in flight. Those that are raced may come in floods, and so may reads that settle what became of
    /// them; the others do not wait behind these, nor these behind each other.
    raced_transactions: Window,
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
        Driver::connect_by(options, &contact_points, silent).await
    }

    async fn connect_by(
        options: &CassandraOptions,
        contact_points: &[String],
        silent: Arc<Silent>,
    ) -> Result<Driver, ConnectFault> {
        let mut policy = DefaultPolicy::builder().token_aware(true);
        if let Some(datacenter) = &options.datacenter {
            policy = policy
                .prefer_datacenter(datacenter.clone())
                .permit_dc_failover(options.majority == Majority::Everywhere);
        }
        let in_flight = Arc::<AtomicUsize>::default();
        let suspects = Arc::<Suspects>::default();
        let preferred = Preferred::new(
            policy.build(),
            options.datacenter.clone(),
            options.preferred_node,
            Arc::clone(&in_flight),
            Arc::clone(&suspects),
        );
        let (quorum, serial) = match options.majority {
            Majority::Everywhere => (Consistency::Quorum, SerialConsistency::Serial),
            Majority::OneDatacenter => (Consistency::LocalQuorum, SerialConsistency::LocalSerial),
        };
        // What a statement does not say for itself. The driver's own default is LocalSerial.
        let profile = ExecutionProfile::builder()
            .consistency(quorum)
            .serial_consistency(Some(serial))
            .request_timeout(Some(options.request_timeout))
            .load_balancing_policy(Arc::new(preferred))
            .retry_policy(Arc::new(FallthroughRetryPolicy::new()))
            // Only where a statement says that it is idempotent.
            .speculative_execution_policy(Some(Arc::new(SimpleSpeculativeExecutionPolicy {
                max_retry_count: 1,
                retry_interval: SPECULATE_AFTER,
            })))
            .build();
        let mut builder = SessionBuilder::new()
            .known_nodes(contact_points)
            .host_filter(Arc::clone(&silent) as _)
            .default_execution_profile_handle(profile.into_handle())
            .pool_size(PoolSize::PerHost(options.connections_per_node))
            .connection_timeout(options.connect_timeout)
            .keepalive_interval(KEEP_ALIVE)
            .keepalive_timeout(KEEP_ALIVE_TIMEOUT)
            .schema_agreement_timeout(AGREEMENT_MAX)
            .auto_await_schema_agreement(false)
            .keyspaces_to_fetch([options.keyspace.as_str()]);
        if let Some(credentials) = &options.credentials {
            builder = builder.user(&credentials.user, &credentials.password);
        }
        if let Some(tls) = &options.tls {
            let config = tls::client_config(tls).map_err(ConnectFault::Settings)?;
            builder = builder.tls_context(Some(config));
        }
        let session = builder
            .build()
            .await
            .map_err(|error| not_connected(error, options.tls.is_some()))?;
        let session = Arc::new(session);
        silent.take_in(&session);
        if options.majority == Majority::OneDatacenter {
            let state = session.get_cluster_state();
            let nodes = state.get_nodes_info().iter();
            let names: BTreeSet<_> = nodes.filter_map(|n| n.datacenter.as_deref()).collect();
            let is_there = |name: &String| names.contains(name.as_str());
            if !options.datacenter.as_ref().is_some_and(is_there) {
                let names = names.into_iter().collect::<Vec<_>>().join(", ");
                return Err(ConnectFault::Unreachable(format!(
                    "no node is in the datacenter {:?}, whose majority is to agree; there are: {names}",
                    options.datacenter.as_deref().unwrap_or_default(),
                )));
            }
        }
        let window = || Window::new(options.transactions_max.get(), options.request_timeout);
        Ok(Driver {
            session,
            majority: options.majority,
            datacenter: options.datacenter.clone(),
            request_timeout: options.request_timeout,
            counted: Counted::default(),
            suspects,
            in_flight,
            raced_transactions: window(),
            settling_reads: window(),
            transactions: window(),
        })
    }

    /// The ranges of tokens that have the same nodes each.
    pub fn ranges(&self) -> Vec<TokenRange> {
        let state = self.session.get_cluster_state();
        let ring = state.replica_locator().ring().iter();
        ranges_between(ring.map(|(token, _)| token.value()))
    }

    /// The statements that were executed so far.
    pub fn counts(&self) -> Sent {
        self.counted.so_far()
    }

    /// Whether there is a connection to any node.
    pub fn is_connected(&self) -> bool {
        let state = self.session.get_cluster_state();
        state
            .get_nodes_info()
            .iter()
            .any(|node| node.is_connected())
    }

    /// Prepares a statement, for that use of it.
    pub async fn prepare(&self, usage: Use, text: &str) -> Result<Statement, Fault> {
        let preparing = Box::pin(self.session.prepare(text));
        let mut prepared = match tokio::time::timeout(self.request_timeout, preparing).await {
            Ok(prepared) => prepared.map_err(not_prepared)?,
            Err(_) => {
                return Err(Fault::NotStarted(
                    "preparing a statement timed out".to_owned(),
                ));
            }
        };
        match usage {
            Use::Cas | Use::RacedCas(_) => prepared.set_is_idempotent(false),
            Use::SerialRead | Use::SettlingRead => {
                prepared.set_is_idempotent(false);
                prepared.set_consistency(match self.majority {
                    Majority::Everywhere => Consistency::Serial,
                    Majority::OneDatacenter => Consistency::LocalSerial,
                });
            }
            Use::Read | Use::AnyRead | Use::Write => {
                prepared.set_is_idempotent(true);
                prepared.set_retry_policy(Some(Arc::new(DefaultRetryPolicy::new())));
                if usage == Use::AnyRead {
                    prepared.set_consistency(Consistency::One);
                }
            }
        }
        Ok(Statement { prepared, usage })
    }

    /// Executes a statement whose answer is one page. (What the session makes of it is boxed, here and below: it has some
    /// kilobytes, which would else be part of whatever waits for it, and of all that waits for that.)
    pub async fn execute(
        &self,
        statement: &Statement,
        values: &[Value],
    ) -> Result<Vec<Row>, Fault> {
        let answer = match statement.usage {
            Use::Cas | Use::RacedCas(_) | Use::SerialRead | Use::SettlingRead => {
                let (window, order) = match statement.usage {
                    Use::RacedCas(order) => (&self.raced_transactions, order),
                    Use::SettlingRead => (&self.settling_reads, Order::First),
                    _ => (&self.transactions, Order::First),
                };
                let was_raced = AtomicBool::new(false);
                let transaction = Box::pin(async {
                    self.counted.one(statement.usage);
                    self.coordinated(statement, values, &was_raced).await
                });
                let was_slow = || was_raced.load(Ordering::Relaxed);
                return window.one(order, transaction, was_slow).await;
            }
            Use::Read | Use::AnyRead => {
                self.counted.one(statement.usage);
                let _in_flight = InFlight::begin(&self.in_flight);
                let answer = Box::pin(self.session.execute_unpaged(&statement.prepared, values));
                answer.await.map_err(fault)?
            }
            Use::Write => {
                self.counted.one(statement.usage);
                let _in_flight = InFlight::begin(&self.in_flight);
                let answer = Box::pin(self.session.execute_unpaged(&statement.prepared, values));
                answer.await.map_err(fault_of_repeated)?
            }
        };
        rows(answer)
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
        let _in_flight = InFlight::begin(&self.in_flight);
        let mut prepared = statement.prepared.clone();
        prepared.set_page_size(page_rows.max(1));
        let from = from.map_or_else(PagingState::start, |next| next.0);
        let page = Box::pin(self.session.execute_single_page(&prepared, values, from));
        let (answer, next) = page.await.map_err(fault)?;
        let next = match next {
            PagingStateResponse::HasMorePages { state } => Some(NextPage(state)),
            PagingStateResponse::NoMorePages => None,
        };
        Ok((rows(answer)?, next))
    }

    /// Executes what changes the schema. All of these go to one node, the same for every client that is
    /// connected to it: there they come one after the other, so that two clients that create a table at once
    /// do not make two of it.
    pub async fn change_schema(&self, text: &str) -> Result<(), Fault> {
        let mut statement = Unprepared::new(text);
        statement.set_request_timeout(Some(AGREEMENT_MAX));
        let state = self.session.get_cluster_state();
        let connected = state.get_nodes_info().iter().filter(|n| n.is_connected());
        if let Some(node) = connected.min_by_key(|node| node.host_id) {
            statement.set_load_balancing_policy(Some(only(Arc::clone(node), None)));
        }
        let changed = Box::pin(self.session.query_unpaged(statement, &[]));
        changed.await.map(drop).map_err(fault)
    }

    /// Waits until all nodes have the same schema.
    pub async fn agree_on_schema(&self) -> Result<(), Fault> {
        let unknown = |error: &dyn std::fmt::Display| Fault::Unknown(error.to_string());
        let agreed = self.session.await_schema_agreement().await;
        agreed.map_err(|error| unknown(&error))?;
        let refreshed = self.session.refresh_metadata().await;
        refreshed.map_err(|error| unknown(&error))
    }

    /// Executes a lightweight transaction, or a read like one, at the first replica of its key: whoever
    /// writes to a key prefers the same node, which spares them contention. `was_raced` becomes true where that did not
    /// answer in time and another one, asked as well, did.
    async fn coordinated(
        &self,
        statement: &Statement,
        values: &[Value],
        was_raced: &AtomicBool,
    ) -> Result<Vec<Row>, Fault> {
        let mut refused = Fault::NotStarted("no node that has this key is connected".to_owned());
        let nodes = self.coordinators(&statement.prepared, values)?;
        let mut nodes = nodes.iter().peekable();
        while let Some(first) = nodes.next() {
            let ask = |at| self.ask(at, &statement.prepared, values);
            let answered = match nodes.peek() {
                Some(second) if matches!(statement.usage, Use::RacedCas(_)) => {
                    let instead = || async {
                        let answered = ask(second).await;
                        if answered.is_ok() {
                            was_raced.store(true, Ordering::Relaxed);
                            self.note_time_out(first);
                        }
                        answered
                    };
                    raced(ask(first), self.is_silent(first), instead, |rows| {
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
                    if !unanswered.is_unreached {
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
        prepared: &PreparedStatement,
        values: &[Value],
    ) -> Result<Vec<Row>, Unanswered> {
        let mut there = prepared.clone();
        let id = at.node.host_id;
        there.set_load_balancing_policy(Some(only(Arc::clone(&at.node), Some(at.shard))));
        let answer = Box::pin(self.session.execute_unpaged(&there, values));
        let error = match answer.await {
            Ok(answer) => {
                self.suspects.answered(id);
                return rows(answer).map_err(|fault| Unanswered {
                    fault,
                    is_unreached: false,
                });
            }
            Err(error) => error,
        };
        let is_unreached = matches!(
            error,
            ExecutionError::ConnectionPoolError(_) | ExecutionError::EmptyPlan
        );
        if is_answer(&error) {
            self.suspects.answered(id);
        } else if matches!(error, ExecutionError::RequestTimeout(_)) {
            self.note_time_out(at);
        }
        Err(Unanswered {
            fault: fault(error),
            is_unreached,
        })
    }

    fn note_time_out(&self, at: &Coordinator) {
        let (id, address) = (at.node.host_id, at.node.address);
        let session = Arc::clone(&self.session);
        let probe = move || nodes::probe(Arc::clone(&session), id);
        self.suspects.timed_out(id, address.to_string(), probe);
    }

    /// Returns once a node has answered no transaction for a while, whoever asked: one that is only slow is not raced.
    async fn is_silent(&self, at: &Coordinator) {
        loop {
            let since = tokio::time::Instant::now();
            tokio::time::sleep(RACE_AFTER).await;
            if !self.suspects.answered_since(at.node.host_id, since) {
                return;
            }
        }
    }

    /// The connected replicas of a key: those of the preferred datacenter first, those that hang last, else
    /// in the order of the ring. Where the majority is that of one datacenter, no others: a node means its own by that.
    fn coordinators(
        &self,
        prepared: &PreparedStatement,
        values: &[Value],
    ) -> Result<Vec<Coordinator>, Fault> {
        let no_token = |why: &dyn std::fmt::Display| Fault::NotStarted(why.to_string());
        let token = prepared.calculate_token(&values);
        let token = token.map_err(|error| no_token(&error))?;
        let (Some(token), Some(table)) = (token, prepared.get_table_spec()) else {
            return Err(no_token(&"the statement names no partition"));
        };
        let state = self.session.get_cluster_state();
        let Some(keyspace) = state.get_keyspace(table.ks_name()) else {
            return Err(no_token(&"the keyspace is not known yet"));
        };
        let replicas =
            state
                .replica_locator()
                .replicas_for_token(token, &keyspace.strategy, None, table);
        let is_far = |node: &Node| node.datacenter != self.datacenter;
        let is_local = self.majority == Majority::OneDatacenter;
        let mut replicas: Vec<_> = replicas
            .into_replicas_ordered()
            .into_iter()
            .filter(|(node, _)| node.is_connected() && !(is_local && is_far(node)))
            .map(|(node, shard)| Coordinator {
                node: Arc::clone(node),
                shard,
            })
            .collect();
        replicas.sort_by_cached_key(|Coordinator { node, .. }| {
            let far = self.datacenter.is_some() && is_far(node);
            (self.suspects.avoids(node.host_id), far)
        });
        Ok(replicas)
    }
}

/// A node that transactions on a key may be sent to.
struct Coordinator {
    node: Arc<Node>,
    shard: Shard,
}

/// Whether the answer to a transaction says that it took effect.
fn is_applied(rows: &[Row]) -> bool {
    let applied = rows.first().and_then(|row| row.get("[applied]"));
    matches!(applied, Some(Value::Boolean(true)))
}

fn only(
    node: Arc<Node>,
    shard: Option<Shard>,
) -> Arc<dyn scylla::policies::load_balancing::LoadBalancingPolicy> {
    SingleTargetLoadBalancingPolicy::new(NodeIdentifier::Node(node), shard)
}

#[cfg(test)]
mod tests {
    use super::*;

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
