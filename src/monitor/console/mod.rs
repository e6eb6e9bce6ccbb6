//! The console: a page for operators, and the API that it calls. Its files are in the binary, it loads nothing from elsewhere, and it
//! may do what the login of its user may do.
//!
//! What must not live here: rules of identities (the server has them), and counts of its own.

use std::sync::Arc;
use std::time::Duration;

use axum::body::to_bytes;
use axum::extract::{Extension, Path, Request, State};
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderName, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use bytes::Bytes;
use parking_lot::Mutex;
use prost_reflect::DescriptorError;
use serde_json::json;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::calls::Calls;
use super::guard::{Caller, Protection, Refused, check_call, check_way};
use super::history::History;
use crate::access::Access;
use crate::build;
use crate::server::{LocalDialer, Readiness};

/// The size limit of a request. The longest one has a key, a reason and a name.
const REQUEST_BYTES_MAX: usize = 16 * 1024;

/// The time for the body of a request.
const REQUEST_WITHIN: Duration = Duration::from_secs(5);
/// Calls at once, of all pages: half of the connections of the port, so that probes and scrapes have room.
const CALLS_MAX: usize = 32;

/// The page runs its own files only, in no frame, and calls this server only.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const JSON: &str = "application/json";

/// The files below `/console/`.
const FILES: [(&str, &str, &str); 8] = [
    ("console.css", CSS, include_str!("console.css")),
    ("console.js", SCRIPT, include_str!("console.js")),
    ("api.js", SCRIPT, include_str!("api.js")),
    ("force.js", SCRIPT, include_str!("force.js")),
    ("plots.js", SCRIPT, include_str!("plots.js")),
    ("queue.js", SCRIPT, include_str!("queue.js")),
    ("table.js", SCRIPT, include_str!("table.js")),
    ("icon.svg", "image/svg+xml", include_str!("icon.svg")),
];

/// See the module.
pub struct Console {
    calls: Calls,
    access: Access,
    insecure: bool,
    /// The kind of the store.
    store: &'static str,
    readiness: Readiness,
    history: Mutex<History>,
    room: Semaphore,
}

impl Console {
    /// For the server that this dialer reaches, with the logins of this access; `insecure` as in the configuration, `store` the kind
    /// of the store.
    pub fn new(
        dialer: LocalDialer,
        access: Access,
        insecure: bool,
        (store, readiness): (&'static str, Readiness),
    ) -> Result<Console, DescriptorError> {
        Ok(Console {
            calls: Calls::new(dialer)?,
            access,
            insecure,
            store,
            readiness,
            history: Mutex::default(),
            room: Semaphore::new(CALLS_MAX),
        })
    }

    /// The metrics of this time since any moment.
    pub fn scraped(&self, at: Duration, text: &str) {
        self.history.lock().add(at, text);
    }

    /// Its paths.
    pub fn routes(self: Arc<Self>) -> axum::Router {
        axum::Router::new()
            .route("/", get(async || file(HTML, include_str!("index.html"))))
            .route("/console/{file}", get(named_file))
            .route("/api/replica", get(replica))
            .route("/api/fermata.v1.LockAdmin/{method}", post(call))
            .with_state(self)
    }

    fn check_way(&self, caller: &Caller, headers: &HeaderMap) -> Result<(), Refused> {
        let protection = Protection {
            login: self.access.policy().needs_login(),
            insecure: self.insecure,
        };
        check_way(caller, headers, protection)
    }

    /// How the page logs in.
    fn login(&self, caller: &Caller) -> &'static str {
        let policy = self.access.policy();
        match (policy.needs_login(), policy.takes_tokens()) {
            (false, _) => "none",
            (true, _) if caller.origin.certificate.is_some() => "certificate",
            (true, true) => "token",
            (true, false) => "no certificate",
        }
    }
}

async fn named_file(Path(name): Path<String>) -> Response {
    match FILES.iter().find(|(file, _, _)| *file == name) {
        Some((_, kind, text)) => file(kind, text),
        None => StatusCode::NOT_FOUND.into_response(),
    }
}

fn file(kind: &'static str, text: &'static str) -> Response {
    answer(StatusCode::OK, kind, text.into())
}

/// With the headers of every answer. A browser asks for the files anew, so that page and server are of one version.
fn answer(status: StatusCode, kind: &'static str, body: Bytes) -> Response {
    let headers: [(HeaderName, &str); 6] = [
        (CONTENT_TYPE, kind),
        (CONTENT_SECURITY_POLICY, POLICY),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (REFERRER_POLICY, "no-referrer"),
        (CACHE_CONTROL, "no-store"),
        (
            HeaderName::from_static("cross-origin-resource-policy"),
            "same-origin",
        ),
    ];
    (status, headers, body).into_response()
}

/// What everybody who reaches the port may know: no more than the metrics say.
async fn replica(
    State(console): State<Arc<Console>>,
    Extension(caller): Extension<Arc<Caller>>,
    headers: HeaderMap,
) -> Response {
    let way = console.check_way(&caller, &headers);
    let refused = way.err().map(|refused| refused.to_string());
    let shown = json!({
        "version": build::VERSION,
        "commit": build::COMMIT,
        "store": console.store,
        "notReady": console.readiness.now().err(),
        "login": console.login(&caller),
        "identity": caller.origin.certificate.as_deref(),
        "refused": refused,
        "points": console.history.lock().points(),
    });
    answer(StatusCode::OK, JSON, shown.to_string().into())
}

async fn call(
    State(console): State<Arc<Console>>,
    Extension(caller): Extension<Arc<Caller>>,
    Path(method): Path<String>,
    request: Request,
) -> Response {
    let Ok(_room) = console.room.try_acquire() else {
        let busy = json!({"code": "ResourceExhausted", "reason": "", "message": "too many calls of consoles at once"});
        return answer(StatusCode::TOO_MANY_REQUESTS, JSON, busy.to_string().into());
    };
    let (parts, body) = request.into_parts();
    let headers = parts.headers;
    let may = check_call(&headers).and_then(|()| console.check_way(&caller, &headers));
    if let Err(refused) = may {
        let status = match refused {
            Refused::NotJson => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            _ => StatusCode::FORBIDDEN,
        };
        let shown =
            json!({"code": "PermissionDenied", "reason": "", "message": refused.to_string()});
        return answer(status, JSON, shown.to_string().into());
    }
    let body = match timeout(REQUEST_WITHIN, to_bytes(body, REQUEST_BYTES_MAX)).await {
        Ok(Ok(body)) => body,
        Ok(Err(_)) => return StatusCode::PAYLOAD_TOO_LARGE.into_response(),
        Err(_elapsed) => return StatusCode::REQUEST_TIMEOUT.into_response(),
    };
    let origin = caller.origin.clone();
    match console.calls.call(&method, origin, &headers, &body).await {
        Ok(json) => answer(StatusCode::OK, JSON, json.into()),
        Err(failed) => {
            let (status, shown) = failed.shown();
            answer(status, JSON, shown.into())
        }
    }
}
