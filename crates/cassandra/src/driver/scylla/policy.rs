//! The choice of the node for a request of the library.

use std::sync::Arc;

use scylla::cluster::{ClusterState, NodeRef};
use scylla::policies::load_balancing::{
    DefaultPolicy, FallbackPlan, LoadBalancingPolicy, RoutingInfo,
};
use scylla::routing::Shard;
use uuid::Uuid;

use crate::driver::preferred::Preferred;
use crate::options::{CassandraOptions, Majority};

/// The preferred one, and the others as the library orders them.
#[derive(Debug)]
pub(super) struct PreferredFirst {
    /// All nodes, in another order for each request.
    any: Arc<dyn LoadBalancingPolicy>,
    datacenter: Option<String>,
    preferred: Arc<Preferred>,
}

impl PreferredFirst {
    pub(super) fn new(options: &CassandraOptions, preferred: Arc<Preferred>) -> PreferredFirst {
        let datacenter = options.datacenter.clone();
        let mut any = DefaultPolicy::builder().token_aware(true);
        if let Some(datacenter) = &datacenter {
            any = any
                .prefer_datacenter(datacenter.clone())
                .permit_dc_failover(options.majority == Majority::Everywhere);
        }
        PreferredFirst {
            any: any.build(),
            datacenter,
            preferred,
        }
    }
}

impl LoadBalancingPolicy for PreferredFirst {
    fn pick<'a>(
        &'a self,
        request: &'a RoutingInfo<'_>,
        cluster: &'a ClusterState,
    ) -> Option<(NodeRef<'a>, Option<Shard>)> {
        let any = || self.any.pick(request, cluster);
        let (Some(token), Some(table)) = (request.token, request.table) else {
            return any();
        };
        let Some(keyspace) = cluster.get_keyspace(table.ks_name()) else {
            return any();
        };
        let datacenter = self.datacenter.as_deref();
        let replicas = cluster.replica_locator().replicas_for_token(
            token,
            &keyspace.strategy,
            datacenter,
            table,
        );
        let mut replicas: Vec<(NodeRef<'a>, Shard)> = replicas.into_iter().collect();
        replicas.sort_by_key(|(node, _)| node.host_id);
        // Where it is not said which one is near, nor is it known here.
        let mut datacenters = replicas.iter().map(|(node, _)| node.datacenter.as_deref());
        let one = datacenters.next();
        if datacenters.any(|other| Some(other) != one) {
            return any();
        }
        let nodes: Vec<(Uuid, bool)> = replicas
            .iter()
            .map(|(node, _)| (node.host_id, node.is_connected()))
            .collect();
        match self.preferred.choose(&nodes) {
            Some(at) => Some((replicas[at].0, Some(replicas[at].1))),
            None => any(),
        }
    }

    fn fallback<'a>(
        &'a self,
        request: &'a RoutingInfo<'_>,
        cluster: &'a ClusterState,
    ) -> FallbackPlan<'a> {
        self.any.fallback(request, cluster)
    }

    fn name(&self) -> String {
        "PreferredFirst".to_owned()
    }
}
