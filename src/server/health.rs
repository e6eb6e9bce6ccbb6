//! grpc.health.v1: readiness follows the engine; liveness says that the process answers.

use std::convert::Infallible;
use std::time::Duration;

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
pub(super) struct Health(HealthReporter);

impl Health {
    /// Not ready until [`Health::follow`] is polled.
    pub(super) async fn new() -> Health {
        let health = Health(HealthReporter::new());
        health.not_serving().await;
        health
            .0
            .set_service_status(LIVENESS, ServingStatus::Serving)
            .await;
        health
    }

    /// The service to serve.
    pub(super) fn service(&self) -> HealthServer<HealthService> {
        HealthServer::new(HealthService::from_health_reporter(self.0.clone()))
    }

    /// Looks at the readiness of an engine at this interval, for as long as it is polled.
    pub(super) async fn follow(&self, engine: &Engine, every: Duration) -> Infallible {
        let mut answered = None;
        loop {
            let ready = engine.ready();
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
                        self.not_serving().await;
                    }
                }
            }
            sleep(every).await;
        }
    }

    /// Not ready.
    pub(super) async fn not_serving(&self) {
        self.set(ServingStatus::NotServing).await;
    }

    /// Ends the streams of all watchers after the last status: they would delay the stop.
    pub(super) async fn end_watches(&self) {
        let mut reporter = self.0.clone();
        for service in READY.into_iter().chain([LIVENESS]) {
            reporter.clear_service_status(service).await;
        }
    }

    async fn set(&self, status: ServingStatus) {
        for service in READY {
            self.0.set_service_status(service, status).await;
        }
    }
}
