//! HTTP for operators, on a port of its own: metrics, liveness, readiness.
//!
//! Everybody who reaches the port may read all of it. No answer names a key, a client or a value.

mod process;

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::header::{ACCEPT, CONTENT_TYPE};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use parking_lot::Mutex;
use prometheus_client::encoding::{prometheus_text, text};
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

use crate::build;
use crate::server::Readiness;

/// Connections at once; more wait to be accepted.
const CONNECTIONS_MAX: usize = 64;
/// The time for the headers of a request.
const HEADERS_WITHIN: Duration = Duration::from_secs(10);
/// The time for a whole connection, of one request.
const CONNECTION_WITHIN: Duration = Duration::from_secs(30);
/// The pause after the system accepted no connection: it may be out of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(500);

/// The text format that Prometheus prefers; the other one is what people and older scrapers get.
const OPEN_METRICS: &str = "application/openmetrics-text";
const OPEN_METRICS_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The parts that are shown.
pub struct Monitor {
    registry: Mutex<Registry>,
    readiness: Readiness,
}

impl Monitor {
    /// Shows the metrics of the process, and those that are added. `store` is the kind of the store. To be called within the
    /// runtime that is measured.
    pub fn new(store: &str, readiness: Readiness) -> Monitor {
        let mut registry = Registry::default();
        process::register(&mut registry);
        let monitor = Monitor {
            registry: Mutex::new(registry),
            readiness,
        };
        let build = [
            ("version", build::VERSION),
            ("commit", build::COMMIT),
            ("store", store),
        ];
        let build: Vec<_> = build.map(|(name, is)| (name, is.to_owned())).into();
        monitor.add(|ours| {
            ours.register(
                "build",
                "The version and the commit of this program, and the kind of its store",
                Info::new(build),
            );
            process::register_runtime(ours);
        });
        monitor
    }

    /// Adds metrics; their names get the prefix `fermata_`.
    pub fn add(&self, register: impl FnOnce(&mut Registry)) {
        let mut registry = self.registry.lock();
        register(registry.sub_registry_with_prefix("fermata"));
    }

    /// Serves requests on this listener.
    pub async fn serve(self: Arc<Self>, listener: TcpListener) -> Infallible {
        let router = axum::Router::new()
            .route("/metrics", get(metrics))
            .route("/healthz", get(|| async { "ok\n" }))
            .route("/readyz", get(ready))
            .with_state(self);
        let service = TowerToHyperService::new(router);
        let connections = Arc::new(Semaphore::new(CONNECTIONS_MAX));
        loop {
            // Never closed.
            let permit = Arc::clone(&connections).acquire_owned().await.ok();
            let stream = match listener.accept().await {
                Ok((stream, _)) => stream,
                Err(error) => {
                    tracing::debug!(%error, "no HTTP connection was accepted");
                    sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            let mut server = http1::Builder::new();
            server
                .timer(TokioTimer::new())
                .header_read_timeout(HEADERS_WITHIN)
                .keep_alive(false);
            let connection = server.serve_connection(TokioIo::new(stream), service.clone());
            tokio::spawn(async move {
                let _permit = permit;
                // Errors are of the client, and a slow one keeps its connection no longer than this.
                let _ = timeout(CONNECTION_WITHIN, connection).await;
            });
        }
    }
}

async fn metrics(State(monitor): State<Arc<Monitor>>, headers: HeaderMap) -> Response {
    let accept = headers.get(ACCEPT).and_then(|value| value.to_str().ok());
    let is_open_metrics = accept.is_some_and(|accept| accept.contains(OPEN_METRICS));
    let mut shown = String::new();
    let (encoded, content_type) = match is_open_metrics {
        true => (
            text::encode(&mut shown, &monitor.registry.lock()),
            OPEN_METRICS_TYPE,
        ),
        false => (
            prometheus_text::encode(&mut shown, &monitor.registry.lock()),
            prometheus_text::CONTENT_TYPE,
        ),
    };
    match encoded {
        Ok(()) => ([(CONTENT_TYPE, content_type)], shown).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

async fn ready(State(monitor): State<Arc<Monitor>>) -> Response {
    match monitor.readiness.now() {
        Ok(()) => "ok\n".into_response(),
        Err(why) => (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")).into_response(),
    }
}
