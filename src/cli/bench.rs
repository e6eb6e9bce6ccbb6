//! What `fermata bench` takes of the server: how Cassandra is reached, and a replica in this process that is called
//! without a network in between. The benchmark itself is in `bench/`.

use std::sync::Arc;

use fermata_bench::{InProcess, Program, StartReplica};
use fermata_cassandra::CassandraOptions;
use fermata_command::output::say;
use fermata_command::{Failure, exit};
use futures_util::future::BoxFuture;
use tokio::time::timeout;

use super::cluster::{self, ClusterFlags, SettingsFile};
use super::replica::Made;
use super::replica::cassandra::Starting;
use crate::clock::SystemIds;
use crate::config::{Config, ConfiguredTable};
use crate::engine::{Engine, NoPeers};
use crate::lock::TableName;
use crate::server::Server;
use crate::telemetry;

/// What a call is told before the replica has started: nobody calls so early.
const NOT_YET: &str = "the replica in this process has not started";

/// The flags that name a cluster.
#[derive(Debug, Clone, clap::Args)]
pub struct Flags {
    #[command(flatten)]
    file: SettingsFile,

    #[command(flatten)]
    cluster: Box<ClusterFlags>,
}

impl Program for Flags {
    fn is_given(&self) -> bool {
        *self.cluster != ClusterFlags::default()
    }

    fn cassandra(&self) -> Result<CassandraOptions, Failure> {
        let config = self.cluster.clone().load(self.file.clone())?;
        Ok(cluster::options(&config.store.cassandra)?)
    }

    fn replica(&self, table: &str) -> Result<Box<dyn StartReplica>, Failure> {
        let config = self.of_replica(table)?;
        Ok(Box::new(UnstartedReplica { config }))
    }
}

impl Flags {
    /// The settings of a replica that serves this table as well; an empty name is the default.
    fn of_replica(&self, table: &str) -> Result<Config, Failure> {
        let mut config = self.cluster.clone().load_replica(self.file.clone())?;
        if !table.is_empty() {
            let table = TableName::parse(table);
            let table = table.map_err(|error| Failure::usage(format!("--table: {error}")))?;
            config.tables.entry(ConfiguredTable(table)).or_default();
        }
        Ok(config)
    }
}

/// A replica, not started yet.
#[derive(Debug)]
struct UnstartedReplica {
    config: Config,
}

impl StartReplica for UnstartedReplica {
    fn start(self: Box<Self>) -> BoxFuture<'static, Result<InProcess, Failure>> {
        Box::pin(start(self.config))
    }
}

/// On the cluster of this configuration, or not at all. Logs from now on, as `serve` does.
async fn start(config: Config) -> Result<InProcess, Failure> {
    let starting = Starting::new(&config)?;
    let logs = telemetry::init(&config.log);
    logs.map_err(|error| Failure::new(exit::CONFIG, error.to_string()))?;
    let engine = Engine::waiting(config.table_names(), config.limits.clone(), NOT_YET);
    let grace = config.shutdown_grace.duration();
    let made = Made {
        config,
        peers: Arc::new(NoPeers),
        address: String::new(),
        peer_address: String::new(),
    };
    let options = |store| made.options(store);
    let started = starting.once(&engine, &options).await;
    started.map_err(|error| {
        let why = format!("the replica in this process cannot start: {error}");
        Failure::new(exit::UNAVAILABLE, why)
    })?;
    let replica = Server::new(engine.clone(), Arc::new(SystemIds)).in_process();
    Ok(InProcess::new(replica.service(), async move {
        engine.stop();
        // Lets the other replicas have at once what it had.
        if timeout(grace, engine.leave(grace)).await.is_err() {
            say(
                "the replica in this process could not write that it stopped: others wait for its replica TTL",
            );
        }
        drop(replica);
    }))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::config::StoreKind;

    #[derive(Debug, Parser)]
    struct Command {
        #[command(flatten)]
        flags: Flags,
    }

    fn flags() -> Flags {
        let words = ["bench", "--contact-points", "a", "--keyspace", "locks"];
        Command::try_parse_from(words).unwrap().flags
    }

    #[test]
    fn a_replica_in_the_process_serves_the_table_that_is_asked_for_on_the_cluster_of_the_flags() {
        assert!(flags().is_given());
        let config = flags().of_replica("orders").unwrap();
        let tables: Vec<_> = config
            .table_names()
            .iter()
            .map(ToString::to_string)
            .collect();
        assert_eq!(tables, ["default", "orders"]);
        assert_eq!(config.store.kind, StoreKind::Cassandra);
        assert_eq!(config.store.cassandra.keyspace.0.as_str(), "locks");
        assert!(flags().of_replica("a-b!").is_err());
        assert_eq!(flags().cassandra().unwrap().keyspace.as_str(), "locks");
    }
}
