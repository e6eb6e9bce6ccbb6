//! The nodes of the cluster, one by one: where they are, and how each is set.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use super::Driver;
use super::backend::{Backend, Node, Silence, Unanswered};
use super::failure_detector::Probed;
use crate::fault::Fault;
use crate::value::Value;

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
        for name in self
            .backend
            .nodes()
            .into_iter()
            .filter_map(|node| node.datacenter)
        {
            *datacenters.entry(name).or_default() += 1;
        }
        datacenters
    }

    /// All nodes that the cluster knows, each with what it says of a setting.
    pub async fn nodes(&self, setting: &str) -> Vec<KnownNode> {
        let mut nodes = Vec::new();
        for node in self.backend.nodes() {
            nodes.push(KnownNode {
                setting: self.setting(&node, setting).await,
                address: node.address,
                datacenter: node.datacenter,
            });
        }
        nodes.sort_by(|a, b| a.address.cmp(&b.address));
        nodes
    }

    async fn setting(&self, node: &Node, name: &str) -> Setting {
        if !node.is_connected {
            return Setting::NotAsked("there is no connection to it".to_owned());
        }
        let text = "SELECT value FROM system_views.settings WHERE name = ?";
        let values = [Value::text(name)];
        let asked = self
            .backend
            .query_at(node, text, &values, self.request_timeout);
        let rows = match asked.await {
            Ok(rows) => rows,
            Err(Unanswered {
                fault: Fault::Refused(_),
                ..
            }) => return Setting::Unknown,
            Err(Unanswered {
                fault: Fault::NotStarted(why) | Fault::Unknown(why),
                ..
            }) => {
                return Setting::NotAsked(why);
            }
        };
        let first = rows.into_iter().next();
        match first.and_then(|mut row| row.text("value").ok().flatten()) {
            Some(value) => Setting::Is(value),
            None => Setting::Unknown,
        }
    }
}

/// Asks a node for what it has at hand, to see whether it answers at all.
pub(super) async fn probe(backend: Option<Arc<dyn Backend>>, node: Uuid) -> Probed {
    let Some(backend) = backend else {
        return Probed::Gone;
    };
    let Some(node) = backend.nodes().into_iter().find(|known| known.id == node) else {
        return Probed::Gone;
    };
    let text = "SELECT key FROM system.local";
    match backend.query_at(&node, text, &[], PROBE_TIMEOUT).await {
        Ok(_)
        | Err(Unanswered {
            silence: Silence::Answered,
            ..
        }) => Probed::Answered,
        Err(_) => Probed::Silent,
    }
}
