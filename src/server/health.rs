//! grpc.health.v1: readiness follows the engine; liveness says that the process answers.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::sleep;
use tonic_health::ServingStatus;
use tonic_health::pb::health_server::HealthServer;
use tonic_health::server::{HealthReporter, HealthService};

use crate::engine::Engine;

/// The services that are ready with the engine: the server as a whole, and each service.
const READY: [&str; 3] = ["", "fermata.v1.LockService", "fermata.v1.LockAdmin"];

/// Always SERVING, for a probe that restarts a process without an answer.
const LIVENESS: &str = "liveness";

/// The health service of one server.
pub(super) struct Health {
    reporter: HealthReporter,
    readiness: Readiness,
}

/// Whether a server serves calls, or why it does not. Clones follow the same server.
#[derive(Clone, Debug)]
pub struct Readiness(Arc<Mutex<Result<(), String>>>);

impl Default for Readiness {
    fn default() -> Readiness {
        Readiness(Arc::new(Mutex::new(Err("starting".to_owned()))))
    }
}

impl Readiness {
    /// The readiness now.
    pub fn now(&self) -> Result<(), String> {
        self.0.lock().clone()
    }

    fn set(&self, ready: Result<(), String>) {
        *self.0.lock() = ready;
    }
}

impl Health {
    /// Not ready until [`Health::follow`] is polled.
    pub(super) async fn new(readiness: Readiness) -> Health {
        let health = Health {
            reporter: HealthReporter::new(),
            readiness,
        };
        health.set(ServingStatus::NotServing).await;
        health
            .reporter
            .set_service_status(LIVENESS, ServingStatus::Serving)
            .await;
        health
    }

    /// The service to serve.
    pub(super) fn service(&self) -> HealthServer<HealthService> {
        HealthServer::new(HealthService::from_health_reporter(self.reporter.clone()))
    }

    /// Looks at the readiness of an engine at this interval, for as long as it is polled.
    pub(super) async fn follow(&self, engine: &Engine, every: Duration) -> Infallible {
        let mut answered = None;
        loop {
            let ready = engine.ready();
            self.readiness
                .set(ready.as_ref().map(|_| ()).map_err(ToString::to_string));
            // Only changes are set: each wakes all watchers.
            if answered != Some(ready.is_ok()) {
                answered = Some(ready.is_ok());
                match ready {
                    Ok(()) => {
                        tracing::info!("ready");
                        self.set(ServingStatus::Serving).await;
                    }
                    Err(why) => {
                        tracing::warn!(%why, "not ready");
                        self.set(ServingStatus::NotServing).await;
                    }
                }
            }
            sleep(every).await;
        }
    }

    /// Not ready from now on: the server stops.
    pub(super) async fn stopping(&self) {
        self.readiness.set(Err("stopping".to_owned()));
        self.set(ServingStatus::NotServing).await;
    }

    /// Ends the streams of all watchers after the last status: they would delay the stop.
    pub(super) async fn end_watches(&self) {
        let mut reporter = self.reporter.clone();
        for service in READY.into_iter().chain([LIVENESS]) {
            reporter.clear_service_status(service).await;
        }
    }

    async fn set(&self, status: ServingStatus) {
        for service in READY {
            self.reporter.set_service_status(service, status).await;
        }
    }
}
