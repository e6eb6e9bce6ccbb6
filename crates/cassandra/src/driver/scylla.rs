//! The default client library: the `scylla` crate, for Cassandra and ScyllaDB.

mod outcome;
mod policy;
mod tls;
mod values;

use std::sync::Arc;
use std::time::Duration;

use scylla::client::PoolSize;
use scylla::client::execution_profile::ExecutionProfile;
use scylla::client::session::Session;
use scylla::client::session_builder::SessionBuilder;
use scylla::cluster::metadata::Peer;
use scylla::errors::ExecutionError;
use scylla::policies::host_filter::HostFilter;
use scylla::policies::load_balancing::{
    LoadBalancingPolicy, NodeIdentifier, SingleTargetLoadBalancingPolicy,
};
use scylla::policies::retry::{DefaultRetryPolicy, FallthroughRetryPolicy};
use scylla::policies::speculative_execution::SimpleSpeculativeExecutionPolicy;
use scylla::response::{PagingState, PagingStateResponse};
use scylla::routing::Shard;
use scylla::statement::prepared::PreparedStatement;
use scylla::statement::{Consistency, SerialConsistency, Statement as Unprepared};
use uuid::Uuid;

use self::outcome::{fault, fault_of_repeated, is_answer, not_connected, not_prepared};
use self::policy::PreferredFirst;
pub(super) use self::tls::client_config;
use self::values::rows;
use super::backend::{
    AGREEMENT_MAX, Backend, Boxed, Coordinator, Execution, KEEP_ALIVE, KEEP_ALIVE_TIMEOUT, Level,
    Node, Page, PageMark, Prepared, SECOND_NODE_AFTER, Sending, Silence, Unanswered,
};
use super::preferred::Preferred;
use super::reach::Greeted;
use crate::fault::{ConnectFault, Fault};
use crate::options::{CassandraOptions, Majority};
use crate::row_table::Quorum;
use crate::value::{Row, Value};

/// A session of the library.
#[derive(Debug)]
pub(super) struct Scylla {
    session: Arc<Session>,
    majority: Majority,
    datacenter: Option<Arc<str>>,
    preferred: Arc<Preferred>,
}

/// A statement of it.
#[derive(Debug)]
struct PreparedByScylla {
    session: Arc<Session>,
    prepared: PreparedStatement,
    sending: Sending,
    datacenter: Option<Arc<str>>,
    preferred: Arc<Preferred>,
}

impl HostFilter for Greeted {
    fn accept(&self, peer: &Peer) -> bool {
        self.admits((peer.address.ip(), peer.address.port()).into())
    }
}

impl Scylla {
    /// Connects to the nodes that answer.
    pub(super) async fn connect(
        options: &CassandraOptions,
        contact_points: &[String],
        greeted: Arc<Greeted>,
        preferred: Arc<Preferred>,
    ) -> Result<Scylla, ConnectFault> {
        let policy = PreferredFirst::new(options, Arc::clone(&preferred));
        let (quorum, serial) = match options.majority {
            Majority::Everywhere => (Consistency::Quorum, SerialConsistency::Serial),
            Majority::OneDatacenter => (Consistency::LocalQuorum, SerialConsistency::LocalSerial),
        };
        // What a statement does not say for itself. The library's own default is LocalSerial.
        let profile = ExecutionProfile::builder()
            .consistency(quorum)
            .serial_consistency(Some(serial))
            .request_timeout(Some(options.request_timeout))
            .load_balancing_policy(Arc::new(policy))
            .retry_policy(Arc::new(FallthroughRetryPolicy::new()))
            // Only where a statement says that it is idempotent.
            .speculative_execution_policy(Some(Arc::new(SimpleSpeculativeExecutionPolicy {
                max_retry_count: 1,
                retry_interval: SECOND_NODE_AFTER,
            })))
            .build();
        let mut builder = SessionBuilder::new()
            .known_nodes(contact_points)
            .host_filter(Arc::clone(&greeted) as _)
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
            let config = client_config(tls).map_err(ConnectFault::Settings)?;
            builder = builder.tls_context(Some(config));
        }
        let session = builder
            .build()
            .await
            .map_err(|error| not_connected(error, options.tls.is_some()))?;
        let session = Arc::new(session);
        let known = Arc::downgrade(&session);
        let take_in = greeted.take_in(move || {
            let session = known.upgrade()?;
            // Where this fails, the library's own next read at the cluster takes them in.
            Some(async move { drop(session.refresh_metadata().await) })
        });
        take_in.await;
        Ok(Scylla {
            session,
            majority: options.majority,
            datacenter: options.datacenter.as_deref().map(Arc::from),
            preferred,
        })
    }

    async fn prepared(&self, text: &str, execution: Execution) -> Result<Arc<dyn Prepared>, Fault> {
        let prepared = self.session.prepare(text).await;
        let mut prepared = prepared.map_err(not_prepared)?;
        prepared.set_is_idempotent(execution.sending != Sending::Once);
        if execution.sending != Sending::Once {
            prepared.set_retry_policy(Some(Arc::new(DefaultRetryPolicy::new())));
        }
        match (execution.level, self.majority) {
            (Level::Majority, _) => {}
            (Level::Everywhere, _) => {
                prepared.set_consistency(Consistency::Quorum);
                prepared.set_serial_consistency(Some(SerialConsistency::Serial));
            }
            (Level::Serial, Majority::Everywhere) => {
                prepared.set_consistency(Consistency::Serial);
            }
            (Level::Serial, Majority::OneDatacenter) => {
                prepared.set_consistency(Consistency::LocalSerial);
            }
            (Level::One, _) => prepared.set_consistency(Consistency::One),
            (Level::Of(Quorum::All), _) => prepared.set_consistency(Consistency::Quorum),
            (Level::Of(Quorum::Local), _) => prepared.set_consistency(Consistency::LocalQuorum),
            (Level::Of(Quorum::Each), _) => prepared.set_consistency(Consistency::EachQuorum),
        }
        Ok(Arc::new(PreparedByScylla {
            session: Arc::clone(&self.session),
            prepared,
            sending: execution.sending,
            datacenter: self.datacenter.clone(),
            preferred: Arc::clone(&self.preferred),
        }))
    }
}

impl Backend for Scylla {
    fn nodes(&self) -> Vec<Node> {
        let state = self.session.get_cluster_state();
        let nodes = state.get_nodes_info().iter();
        let nodes = nodes.map(|node| Node {
            id: node.host_id,
            datacenter: node.datacenter.clone(),
            is_connected: node.is_connected(),
        });
        nodes.collect()
    }

    fn ring(&self) -> Vec<i64> {
        let state = self.session.get_cluster_state();
        let ring = state.replica_locator().ring().iter();
        ring.map(|(token, _)| token.value()).collect()
    }

    fn prepare<'a>(
        &'a self,
        text: &'a str,
        execution: Execution,
    ) -> Boxed<'a, Result<Arc<dyn Prepared>, Fault>> {
        Box::pin(self.prepared(text, execution))
    }

    fn query_at<'a>(
        &'a self,
        node: &'a Node,
        text: &'a str,
        values: &'a [Value],
        within: Duration,
    ) -> Boxed<'a, Result<Vec<Row>, Unanswered>> {
        Box::pin(async move {
            let at = at(&self.session, node.id, None).ok_or_else(left)?;
            let mut statement = Unprepared::new(text);
            statement.set_consistency(Consistency::One);
            statement.set_request_timeout(Some(within));
            statement.set_load_balancing_policy(Some(at));
            let answer = self.session.query_unpaged(statement, values).await;
            rows(answer.map_err(unanswered)?).map_err(Unanswered::unreadable)
        })
    }

    fn agree_on_schema(&self) -> Boxed<'_, Result<(), Fault>> {
        Box::pin(async move {
            let unknown = |error: &dyn std::fmt::Display| Fault::Unknown(error.to_string());
            let agreed = self.session.await_schema_agreement().await;
            agreed.map_err(|error| unknown(&error))?;
            let refreshed = self.session.refresh_metadata().await;
            refreshed.map_err(|error| unknown(&error))
        })
    }
}

impl Prepared for PreparedByScylla {
    fn replicas(&self, values: &[Value]) -> Result<Vec<Coordinator>, Fault> {
        let no_token = |why: &dyn std::fmt::Display| Fault::NotStarted(why.to_string());
        let token = self.prepared.calculate_token(&values);
        let token = token.map_err(|error| no_token(&error))?;
        let (Some(token), Some(table)) = (token, self.prepared.get_table_spec()) else {
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
        let replicas = replicas.into_replicas_ordered().into_iter();
        let is_near = |node: &scylla::cluster::Node| match &self.datacenter {
            Some(near) => node.datacenter.as_deref() == Some(&**near),
            None => true,
        };
        let replicas = replicas.map(|(node, shard)| Coordinator {
            id: node.host_id,
            address: (node.address.ip(), node.address.port()).into(),
            is_near: is_near(node),
            is_connected: node.is_connected(),
            shard,
        });
        Ok(replicas.collect())
    }

    fn execute<'a>(&'a self, values: &'a [Value]) -> Boxed<'a, Result<Vec<Row>, Fault>> {
        Box::pin(async move {
            let _in_flight = self.preferred.begin();
            let answer = self.session.execute_unpaged(&self.prepared, values).await;
            rows(answer.map_err(match self.sending {
                Sending::Once | Sending::Read => fault,
                Sending::Write => fault_of_repeated,
            })?)
        })
    }

    fn execute_at<'a>(
        &'a self,
        to: &'a Coordinator,
        values: &'a [Value],
    ) -> Boxed<'a, Result<Vec<Row>, Unanswered>> {
        Box::pin(async move {
            let at = at(&self.session, to.id, Some(to.shard)).ok_or_else(left)?;
            let mut prepared = self.prepared.clone();
            prepared.set_load_balancing_policy(Some(at));
            let answer = self.session.execute_unpaged(&prepared, values).await;
            rows(answer.map_err(unanswered)?).map_err(Unanswered::unreadable)
        })
    }

    fn page<'a>(
        &'a self,
        values: &'a [Value],
        page_rows: i32,
        from: Option<PageMark>,
    ) -> Boxed<'a, Result<Page, Fault>> {
        Box::pin(async move {
            let _in_flight = self.preferred.begin();
            let mut prepared = self.prepared.clone();
            prepared.set_page_size(page_rows.max(1));
            let from = from.map_or_else(PagingState::start, |mark| {
                PagingState::new_from_raw_bytes(mark.0)
            });
            let page = self.session.execute_single_page(&prepared, values, from);
            let (answer, next) = page.await.map_err(fault)?;
            let next = match &next {
                PagingStateResponse::HasMorePages { state } => state.as_bytes_slice(),
                PagingStateResponse::NoMorePages => None,
            };
            Ok((rows(answer)?, next.cloned().map(PageMark)))
        })
    }
}

/// What sends a statement to this node, if the cluster still has it.
fn at(session: &Session, node: Uuid, shard: Option<Shard>) -> Option<Arc<dyn LoadBalancingPolicy>> {
    let state = session.get_cluster_state();
    let node = Arc::clone(state.get_node_by_host_id(node)?);
    Some(SingleTargetLoadBalancingPolicy::new(
        NodeIdentifier::Node(node),
        shard,
    ))
}

fn left() -> Unanswered {
    Unanswered {
        fault: Fault::NotStarted("the cluster has no such node any more".to_owned()),
        silence: Silence::Unreached,
    }
}

fn unanswered(error: ExecutionError) -> Unanswered {
    let silence = match &error {
        ExecutionError::ConnectionPoolError(_) | ExecutionError::EmptyPlan => Silence::Unreached,
        ExecutionError::RequestTimeout(_) => Silence::TimedOut,
        error if is_answer(error) => Silence::Answered,
        _ => Silence::Broken,
    };
    Unanswered {
        fault: fault(error),
        silence,
    }
}
