//! The nodes of the cluster, one by one: where they are, and how each is set.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use scylla::client::session::Session;
use scylla::cluster::Node;
use scylla::statement::{Consistency, Statement as Unprepared};
use uuid::Uuid;

use super::outcome::{fault, is_answer};
use super::suspects::Probed;
use super::values::rows;
use super::{Driver, only};
use crate::fault::Fault;

/// How long a node may take to send a renewal.
const PROBE_TIMEOUT: Duration = Duration::from_secs(1);

/// A node that the cluster knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownNode {
    /// Where clients reach it.
    pub address: String,
    /// Where it is, if that is told.
    pub datacenter: Option<String>,
    /// A setting of it.
    pub setting: Setting,
}

/// What a node says of a setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Setting {
    /// It has this value.
    Is(String),
    /// It knows no such setting.
    Unknown,
    /// It could not be asked.
    NotAsked(String),
}

impl Driver {
    /// The datacenters that there are, and how many nodes each has.
    pub fn datacenters(&self) -> BTreeMap<String, usize> {
        let mut datacenters = BTreeMap::<_, usize>::new();
        for node in self.session.get_cluster_state().get_nodes_info() {
            if let Some(name) = &node.datacenter {
                *datacenters.entry(name.clone()).or_default() += 1;
            }
        }
        datacenters
    }

    /// All nodes that the cluster knows, each with what it says of a setting.
    pub async fn nodes(&self, setting: &str) -> Vec<KnownNode> {
        let state = self.session.get_cluster_state();
        let mut nodes = Vec::new();
        for node in state.get_nodes_info() {
            nodes.push(KnownNode {
                address: node.address.to_string(),
                datacenter: node.datacenter.clone(),
                setting: self.setting(node, setting).await,
            });
        }
        nodes.sort_by(|a, b| a.address.cmp(&b.address));
        nodes
    }

    async fn setting(&self, node: &Arc<Node>, name: &str) -> Setting {
        if !node.is_connected() {
            return Setting::NotAsked("there is no connection to it".to_owned());
        }
        let text = "SELECT value FROM system_views.settings WHERE name = ?";
        let statement = asked_of(node, text);
        let answer = self.session.query_unpaged(statement, (name,)).await;
        let rows = match answer.map_err(fault).and_then(rows) {
            Ok(rows) => rows,
            Err(Fault::Refused(_)) => return Setting::Unknown,
            Err(Fault::NotStarted(why) | Fault::Unknown(why)) => return Setting::NotAsked(why),
        };
        let first = rows.into_iter().next();
        match first.and_then(|mut row| row.text("value").ok().flatten()) {
            Some(value) => Setting::Is(value),
            None => Setting::Unknown,
        }
    }
}

/// Asks a node for what it has at hand, to see whether it answers at all.
pub(super) async fn probe(session: Arc<Session>, node: Uuid) -> Probed {
    let state = session.get_cluster_state();
    let Some(node) = state.get_node_by_host_id(node) else {
        return Probed::Gone;
    };
    let mut statement = asked_of(node, "SELECT key FROM system.local");
    statement.set_request_timeout(Some(PROBE_TIMEOUT));
    match session.query_unpaged(statement, ()).await {
        Ok(_) => Probed::Answered,
        Err(error) if is_answer(&error) => Probed::Answered,
        Err(_) => Probed::Silent,
    }
}

/// A statement about a node itself, for nobody but that node.
fn asked_of(node: &Arc<Node>, text: &str) -> Unprepared {
    let mut statement = Unprepared::new(text);
    statement.set_consistency(Consistency::One);
    statement.set_load_balancing_policy(Some(only(Arc::clone(node), None)));
    statement
}
