//! A replica of the benchmark's own, called without a network in between.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;

use super::BenchError;
use super::connect::{Client, client_of};
use crate::cli::replica::Made;
use crate::cli::replica::cassandra::Starting;
use crate::clock::SystemIds;
use crate::config::Config;
use crate::engine::{Engine, NoPeers};
use crate::server::{InProcess, Server};
use crate::telemetry;

/// What a call is told before the replica has started: nobody calls so early.
const NOT_YET: &str = "the replica in this process has not started";

/// A whole replica, among all others on its store; nobody but this process can call it.
pub(super) struct Replica {
    engine: Engine,
    service: InProcess,
    /// How long it may take to say that it stopped.
    grace: Duration,
}

impl Replica {
    /// On the cluster of this configuration, or not at all. Logs from now on, as `serve` does.
    pub(super) async fn start(config: &Config) -> Result<Replica, BenchError> {
        let starting = Starting::new(config)?;
        telemetry::init(&config.log)?;
        let made = Made {
            config: config.clone(),
            peers: Arc::new(NoPeers),
            address: String::new(),
            peer_address: String::new(),
        };
        let engine = Engine::waiting(config.table_names(), config.limits.clone(), NOT_YET);
        let options = |store| made.options(store);
        starting.once(&engine, &options).await?;
        Ok(Replica::of(engine, config.shutdown_grace.duration()))
    }

    /// Of an engine that runs.
    pub(super) fn of(engine: Engine, grace: Duration) -> Replica {
        Replica {
            service: Server::new(engine.clone(), Arc::new(SystemIds)).in_process(),
            engine,
            grace,
        }
    }

    /// A client of it.
    pub(super) fn client(&self) -> Client {
        client_of(self.service.service())
    }

    /// Once nobody calls it any more: lets the other replicas have at once what it had.
    pub(super) async fn stop(self) {
        self.engine.stop();
        if timeout(self.grace, self.engine.hand_over()).await.is_err() {
            eprintln!(
                "fermata: the other replicas were not told that the one in this process is gone"
            );
        }
    }
}
