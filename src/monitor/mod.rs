//! HTTP for operators, on a port of its own: metrics, liveness, readiness, and the console.
//!
//! Everybody who reaches the port may read the metrics, which name no key, client or value. The console shows what the login of its
//! user may see.

mod calls;
mod console;
mod guard;
mod history;
mod process;

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::header::{ACCEPT, CONTENT_TYPE};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::Mutex;
use prometheus_client::encoding::{prometheus_text, text};
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::{Instant, interval, sleep, timeout};
use tower::ServiceExt as _;

use crate::access::Origin;
use crate::build;
use crate::server::{ByteStream, ClientTls, Readiness};
pub use console::Console;
use guard::Caller;
use history::SCRAPE_EVERY;

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
    /// For connections that begin with TLS; others are served in clear.
    tls: Option<ClientTls>,
    console: Option<Arc<Console>>,
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
            tls: None,
            console: None,
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

    /// With TLS for those who begin with it.
    #[must_use]
    pub fn with_tls(self, tls: Option<ClientTls>) -> Monitor {
        Monitor { tls, ..self }
    }

    /// With the page for operators.
    #[must_use]
    pub fn with_console(self, console: Console) -> Monitor {
        let console = Some(Arc::new(console));
        Monitor { console, ..self }
    }

    /// Adds metrics; their names get the prefix `fermata_`.
    pub fn add(&self, register: impl FnOnce(&mut Registry)) {
        let mut registry = self.registry.lock();
        register(registry.sub_registry_with_prefix("fermata"));
    }

    /// Serves requests on this listener.
    pub async fn serve(self: Arc<Self>, listener: TcpListener) -> Infallible {
        let mut router = axum::Router::new()
            .route("/metrics", get(metrics))
            .route("/healthz", get(|| async { "ok\n" }))
            .route("/readyz", get(ready))
            .with_state(Arc::clone(&self));
        if let Some(console) = &self.console {
            router = router.merge(Arc::clone(console).routes());
        }
        let connections = Arc::new(Semaphore::new(CONNECTIONS_MAX));
        loop {
            // Never closed.
            let permit = Arc::clone(&connections).acquire_owned().await.ok();
            let (stream, from) = match listener.accept().await {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::debug!(%error, "no HTTP connection was accepted");
                    sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            let connection = requests(stream, from, self.tls.clone(), router.clone());
            tokio::spawn(async move {
                let _permit = permit;
                // Errors are of the client, and a slow one keeps its connection no longer than this.
                let _ = timeout(CONNECTION_WITHIN, connection).await;
            });
        }
    }

    /// Gives the metrics to the console, every few seconds and without end. Ends at once without a console.
    pub async fn scrape(self: Arc<Self>) {
        let Some(console) = &self.console else {
            return;
        };
        let (begun, mut scrapes) = (Instant::now(), interval(SCRAPE_EVERY));
        loop {
            scrapes.tick().await;
            let mut text = String::new();
            if prometheus_text::encode(&mut text, &self.registry.lock()).is_ok() {
                console.scraped(begun.elapsed(), &text);
            }
        }
    }
}

/// Serves one request of a connection.
async fn requests(
    stream: TcpStream,
    from: SocketAddr,
    tls: Option<ClientTls>,
    router: axum::Router,
) {
    let (stream, caller) = match timeout(HEADERS_WITHIN, begun(stream, from, tls)).await {
        Ok(Ok((stream, caller))) => (stream, Arc::new(caller)),
        Ok(Err(error)) => {
            tracing::debug!(%from, %error, "an HTTP connection ended before its request");
            return;
        }
        Err(_elapsed) => return,
    };
    let service = service_fn(move |mut request: axum::http::Request<Incoming>| {
        request.extensions_mut().insert(Arc::clone(&caller));
        router.clone().oneshot(request)
    });
    let mut server = http1::Builder::new();
    server
        .timer(TokioTimer::new())
        .header_read_timeout(HEADERS_WITHIN)
        .keep_alive(false);
    if let Err(error) = server.serve_connection(TokioIo::new(stream), service).await {
        tracing::debug!(%from, %error, "an HTTP connection broke");
    }
}

/// A connection and its other end, with TLS if its first byte is of TLS.
async fn begun(
    stream: TcpStream,
    from: SocketAddr,
    tls: Option<ClientTls>,
) -> io::Result<(Box<dyn ByteStream>, Caller)> {
    let origin = Origin {
        from: Arc::from(from.to_string()),
        address: Some(from.ip()),
        ..Origin::default()
    };
    let mut first = [0];
    if let Some(tls) = tls
        && stream.peek(&mut first).await? > 0
        && fermata_tls::is_begun_by(first[0])
    {
        let (stream, origin) = tls.accept_http(stream, origin).await?;
        let is_encrypted = true;
        return Ok((
            stream,
            Caller {
                origin,
                is_encrypted,
            },
        ));
    }
    let is_encrypted = false;
    Ok((
        Box::new(stream),
        Caller {
            origin,
            is_encrypted,
        },
    ))
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
