//! The client library of those who build with the feature `cassandra-cpp`: the C++ driver of Apache (once DataStax), by way
//! of the crate of that name.
//!
//! That crate cannot say which node a statement is for, and whom the library would ask it does not tell. So each node has a
//! session of its own here, which knows no other node, and [`ring`] tells which nodes have a partition.

mod keeper;
mod link;
mod members;
mod outcome;
mod prepared;
mod ring;
mod settings;
mod topology;
mod values;

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use cassandra_cpp::Consistency;
use tokio::time::timeout;

use self::members::Members;
use self::prepared::PreparedByCpp;
use super::AGREEMENT_MAX;
use super::backend::{Backend, Boxed, Execution, Level, Node, Prepared, Unanswered};
use super::preferred::Preferred;
use super::reach::Silent;
use crate::fault::{ConnectFault, Fault};
use crate::options::{CassandraOptions, Majority};
use crate::value::{Row, Value};

/// How often the nodes are asked whether all have the same schema.
const AGREEMENT_PAUSE: Duration = Duration::from_millis(200);

/// The sessions, one a node.
#[derive(Debug)]
pub(super) struct Cpp {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    members: Arc<Members>,
    keyspace: String,
    majority: Majority,
    request_timeout: Duration,
    preferred: Arc<Preferred>,
    /// Counts requests, where all nodes take turns.
    turns: AtomicUsize,
}

impl Cpp {
    /// Connects to the nodes that are not silent; to those later.
    pub(super) async fn connect(
        options: &CassandraOptions,
        contact_points: &[String],
        silent: &Silent,
        preferred: Arc<Preferred>,
    ) -> Result<Cpp, ConnectFault> {
        let members = Members::connect(options, contact_points, silent).await?;
        Ok(Cpp {
            shared: Arc::new(Shared {
                members,
                keyspace: options.keyspace.as_str().to_owned(),
                majority: options.majority,
                request_timeout: options.request_timeout,
                preferred,
                turns: AtomicUsize::new(0),
            }),
        })
    }
}

impl Shared {
    fn consistency(&self, level: Level) -> Consistency {
        match (level, self.majority) {
            (Level::Majority, Majority::Everywhere) | (Level::Everywhere, _) => Consistency::QUORUM,
            (Level::Majority, Majority::OneDatacenter) => Consistency::LOCAL_QUORUM,
            (Level::Serial, Majority::Everywhere) => Consistency::SERIAL,
            (Level::Serial, Majority::OneDatacenter) => Consistency::LOCAL_SERIAL,
            (Level::One, _) => Consistency::ONE,
        }
    }

    fn serial_consistency(&self, level: Level) -> Consistency {
        match level {
            Level::Everywhere => Consistency::SERIAL,
            Level::Majority | Level::Serial | Level::One => self.consistency(Level::Serial),
        }
    }
}

impl Backend for Cpp {
    fn nodes(&self) -> Vec<Node> {
        self.shared.members.nodes()
    }

    fn ring(&self) -> Vec<i64> {
        self.shared.members.ring().tokens().collect()
    }

    fn prepare<'a>(
        &'a self,
        text: &'a str,
        execution: Execution,
    ) -> Boxed<'a, Result<Arc<dyn Prepared>, Fault>> {
        Box::pin(async move {
            let prepared = PreparedByCpp::prepare(&self.shared, text.into(), execution).await?;
            Ok(Arc::new(prepared) as Arc<dyn Prepared>)
        })
    }

    fn query_at<'a>(
        &'a self,
        node: &'a Node,
        text: &'a str,
        values: &'a [Value],
        within: Duration,
    ) -> Boxed<'a, Result<Vec<Row>, Unanswered>> {
        Box::pin(async move {
            let link = self.shared.members.link(node.id)?;
            let answer = topology::query(&link, text, values, within).await?;
            topology::read(&answer)
        })
    }

    fn agree_on_schema(&self) -> Boxed<'_, Result<(), Fault>> {
        Box::pin(async move {
            let members = &self.shared.members;
            let agreed = async {
                // (One that does not answer may do so soon.)
                while !matches!(members.agree().await, Ok(true)) {
                    tokio::time::sleep(AGREEMENT_PAUSE).await;
                }
                members.known_anew(AGREEMENT_MAX).await
            };
            match timeout(AGREEMENT_MAX, agreed).await {
                Ok(true) => Ok(()),
                Ok(false) => Err(Fault::Unknown("no node tells its tables".to_owned())),
                Err(_) => Err(Fault::Unknown(
                    "the nodes do not agree on the schema".to_owned(),
                )),
            }
        })
    }
}
