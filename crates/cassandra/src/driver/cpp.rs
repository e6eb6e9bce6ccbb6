//! The client library behind the feature `cassandra-cpp`: the C++ driver of Apache (once DataStax), used through the crate
//! `cassandra-cpp`.
//!
//! That crate can neither send a statement to a given node nor say which node the library would ask. So each node has its own
//! session here, which knows no other node, and [`ring`] lists the nodes of a partition.

mod keeper;
mod link;
mod members;
mod outcome;
mod prepared;
mod ring;
mod settings;
mod shared;
mod topology;
mod values;

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use tokio::time::timeout;

use self::members::Members;
use self::prepared::PreparedByCpp;
use self::shared::Shared;
use super::backend::{
    AGREEMENT_MAX, ANSWERS_WITHIN, Backend, Boxed, Execution, Node, Prepared, Unanswered,
};
use super::preferred::Preferred;
use super::reach::Greeted;
use crate::fault::{ConnectFault, Fault};
use crate::options::CassandraOptions;
use crate::value::{Row, Value};

/// The sessions, one a node.
#[derive(Debug)]
pub(super) struct Cpp {
    shared: Arc<Shared>,
}

impl Cpp {
    /// Connects to the nodes that answer; to the others later.
    pub(super) async fn connect(
        options: &CassandraOptions,
        contact_points: &[String],
        greeted: &Greeted,
        preferred: Arc<Preferred>,
    ) -> Result<Cpp, ConnectFault> {
        let members = Members::connect(options, contact_points, greeted).await?;
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
                // A node that does not answer may do so soon.
                while !matches!(members.agree().await, Ok(true)) {
                    tokio::time::sleep(ANSWERS_WITHIN).await;
                }
                members.known_anew(AGREEMENT_MAX).await
            };
            match timeout(AGREEMENT_MAX, agreed).await {
                Ok(true) => Ok(()),
                Ok(false) => Err(Fault::Unknown(
                    "no node answered with its tables".to_owned(),
                )),
                Err(_) => Err(Fault::Unknown(
                    "the nodes do not agree on the schema".to_owned(),
                )),
            }
        })
    }
}
