//! The layer around every call, health and reflection included: its deadline, its span, and the statuses that the library makes
//! before the call reaches a handler.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::{HeaderMap, Request, Response};
use http_body_util::BodyExt as _;
use tokio::time::{Instant, timeout, timeout_at};
use tonic::body::Body;
use tonic::{Code, Status};
use tower::{Layer, Service};
use tracing::Instrument;
use tracing::field::Empty;

use super::AccessCheck;
use super::budget::{Account, AnswerBody, AnswerForm, Arrival, ConnectionInfo, ReceivedBody};
use super::deadline::Deadline;
use super::listing_turns::ListingTurns;
use super::metrics::RequestMetrics;
use super::status;
use super::stopping::Stopping;
use crate::engine::{Begins, Engine};
use crate::limits::Limits;
use crate::trace;

/// The paths whose statuses this layer maps: other services keep their own.
const OURS: &str = "/fermata.";

/// The path of the service for clients.
const LOCK_SERVICE: &str = "/fermata.v1.LockService/";

/// The methods with a stream of messages from their caller.
const STREAMS_IN: [&str; 3] = ["/KeepAlive", "/Pipeline", "/ServerReflectionInfo"];

/// How long the message of a refused call is read. A message after the answer is one more reset of a stream; HTTP/2 takes a
/// client with many of them for an attacker, and ends its connection.
const REFUSED_WITHIN: Duration = Duration::from_secs(1);

/// Wraps a server in [`Calls`].
#[derive(Clone)]
pub struct CallLayer {
    /// Named in the status of a message that is too large.
    message_bytes_max: usize,
    /// How long a message may take without a deadline of its caller.
    call_max: Duration,
    stopping: Stopping,
    check: AccessCheck,
    listings: ListingTurns,
    /// The engine of these clients; `None` for other replicas, whose calls were admitted by the asked replica, or are by the
    /// home.
    engine: Option<Engine>,
    metrics: RequestMetrics,
}

impl CallLayer {
    /// The layer of a server with these limits. Once it stops, incomplete messages are not waited for.
    pub fn new(limits: &Limits, stopping: Stopping) -> Self {
        CallLayer {
            message_bytes_max: limits.message_bytes_max,
            call_max: limits.call_max(),
            stopping,
            check: AccessCheck::open(),
            listings: ListingTurns::new(limits.listings_max),
            engine: None,
            metrics: RequestMetrics::default(),
        }
    }

    /// Calls count in these metrics.
    #[must_use]
    pub fn with_metrics(self, metrics: RequestMetrics) -> Self {
        CallLayer { metrics, ..self }
    }

    /// For clients of this engine: overload is refused before a message is read.
    #[must_use]
    pub fn with_engine(self, engine: Engine) -> Self {
        let engine = Some(engine);
        CallLayer { engine, ..self }
    }

    /// The refusal of a call under overload.
    fn overloaded(&self, path: &str) -> Option<Response<Body>> {
        let begins = match path.strip_prefix(LOCK_SERVICE)? {
            "CreateLockRef" | "OpenSession" => Begins::Entry,
            "Get" => Begins::Read,
            _ => return None,
        };
        let again_after = self.engine.as_ref()?.is_overloaded(begins)?;
        Some(self.counted(path, status::overloaded(again_after)))
    }

    /// The refusal of a call, counted.
    fn counted(&self, path: &str, refused: Status) -> Response<Body> {
        let reason = status::reason(&refused);
        self.metrics.answered(path, Some(&reason), None);
        refused.into_http()
    }

    /// Only for known callers.
    #[must_use]
    pub fn with_access(self, check: AccessCheck) -> Self {
        CallLayer { check, ..self }
    }
}

impl<S> Layer<S> for CallLayer {
    type Service = Calls<S>;

    fn layer(&self, inner: S) -> Calls<S> {
        Calls {
            inner,
            layer: self.clone(),
        }
    }
}

/// See the module.
#[derive(Clone)]
pub struct Calls<S> {
    inner: S,
    layer: CallLayer,
}

impl<S> Service<Request<Body>> for Calls<S>
where
    S: Service<Request<Body>, Response = Response<Body>> + Clone + Send + 'static,
    S::Future: Send + 'static,
    S::Error: 'static,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, S::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        let deadline = Deadline::of_headers(request.headers());
        request.extensions_mut().insert(deadline);
        let connection = request.extensions().get::<ConnectionInfo>().cloned();
        let account = connection.as_ref().map(|info| &info.account);
        let caller = connection.as_ref().and_then(|info| info.origin.as_ref());
        let path = request.uri().path();
        match self.layer.check.login(path, request.headers(), caller) {
            Ok(login) => drop(request.extensions_mut().insert(login)),
            Err(refused) => {
                let refused = self.layer.counted(path, refused);
                return Box::pin(refuse(request, account.cloned(), refused));
            }
        }
        if let Some(overloaded) = self.layer.overloaded(request.uri().path()) {
            return Box::pin(refuse(request, account.cloned(), overloaded));
        }
        let path = request.uri().path();
        let open = account.map(|account| account.begin(bytes_of(request.headers())));
        let ours = path.starts_with(OURS);
        let writes = ours && may_write(path);
        let known = self.layer.metrics.knows(path);
        let trace = {
            let context = request.headers().get(trace::TRACEPARENT);
            let context = context.and_then(|context| context.to_str().ok());
            trace::of_call(known.then_some(path), context)
        };
        let span = span_of(path);
        let message_bytes_max = self.layer.message_bytes_max;
        let answer_by = deadline.answer_within(self.layer.call_max);
        let arrival = match is_stream_in(path) {
            false => Arrival::By(answer_by),
            true => Arrival::Each(self.layer.call_max),
        };
        let answers = AnswerKind::of(path);
        let (path, begun) = (path.to_owned(), Instant::now());
        let metrics = self.layer.metrics.clone();
        let (body_of, stopping) = (open.clone(), self.layer.stopping.clone());
        let mut request = request.map(|body| {
            let body = ReceivedBody::new(body, body_of, arrival, message_bytes_max, stopping);
            Body::new(body)
        });
        let mut inner = self.inner.clone();
        std::mem::swap(&mut inner, &mut self.inner);
        if answers.is_listing {
            let own = open.as_ref().map(|open| Arc::clone(open.account()));
            let turns = self.layer.listings.clone().on(own.as_deref());
            request.extensions_mut().insert(turns);
        }
        let answered = async move {
            let _counted = metrics.begun();
            let count = |answer: &Response<Body>| {
                let failed = status::reason_of(answer.headers());
                metrics.answered(&path, failed.as_deref(), Some(begun.elapsed()));
                if let Some(reason) = failed {
                    trace::failed(code_of(answer.headers()).unwrap_or(Code::Ok), &reason);
                }
            };
            let _turn = match &open {
                // A listing has a turn of its own.
                Some(open) if answers.form == AnswerForm::Read && !answers.is_listing => {
                    match timeout_at(answer_by, open.account().read_turn(answers.has_lock)).await {
                        Ok(turn) => turn,
                        Err(_elapsed) => {
                            let late = status::message_late().into_http();
                            count(&late);
                            return Ok(late);
                        }
                    }
                }
                Some(_) | None => None,
            };
            let call = inner.call(request);
            // tonic's own timer sits outside of this layer, starts later and is polled after it: a call
            // is always answered here first, and never with its CANCELLED.
            let response = match deadline.last_chance() {
                None => call.await?,
                Some(last_chance) => match timeout_at(last_chance, call).await {
                    Ok(response) => response?,
                    Err(_elapsed) if writes => status::late_write().into_http(),
                    Err(_elapsed) if ours => status::outcome_unknown().into_http(),
                    Err(_elapsed) => status::deadline_exceeded().into_http(),
                },
            };
            let response = if ours {
                mapped(response, message_bytes_max)
            } else {
                response
            };
            let code = code_of(response.headers()).unwrap_or(Code::Ok);
            tracing::debug!(?code, "answered");
            let Some(open) = open else {
                count(&response);
                return Ok(response);
            };
            open.answered();
            let (head, body) = response.into_parts();
            let response = match AnswerBody::new(body, open, answers.form, answer_by).await {
                Ok(body) => Response::from_parts(head, Body::new(body)),
                Err(no_room) => no_room.into_http(),
            };
            count(&response);
            Ok(response)
        };
        Box::pin(answered.instrument(span).instrument(trace))
    }
}

/// Whether this method has a stream of messages from its caller.
fn is_stream_in(path: &str) -> bool {
    STREAMS_IN.iter().any(|method| path.ends_with(method))
}

/// Refuses a call with this answer. Its message is read before, and dropped.
async fn refuse<E>(
    request: Request<Body>,
    account: Option<Arc<Account>>,
    refused: Response<Body>,
) -> Result<Response<Body>, E> {
    let is_stream = is_stream_in(request.uri().path());
    // It counts as any other for as long as it is here.
    let header_bytes = bytes_of(request.headers());
    let _call = account.as_ref().map(|account| account.begin(header_bytes));
    let mut body = request.into_body();
    let read_out = async { while let Some(Ok(_)) = body.frame().await {} };
    if !is_stream {
        let _ = timeout(REFUSED_WITHIN, read_out).await;
    }
    Ok(refused)
}

/// The size of the headers of a call, as HPACK counts them.
fn bytes_of(headers: &HeaderMap) -> usize {
    let lengths = headers
        .iter()
        .map(|(name, value)| name.as_str().len() + value.len() + 32);
    lengths.sum()
}

/// The kind of answers of a method, for the budget.
#[derive(Clone, Copy)]
struct AnswerKind {
    form: AnswerForm,
    /// It may scan everything.
    is_listing: bool,
    /// It reads under a lock.
    has_lock: bool,
}

impl AnswerKind {
    fn of(path: &str) -> AnswerKind {
        let method = path.rsplit('/').next().unwrap_or_default();
        let is_listing = matches!(
            method,
            "ListLocks"
                | "DescribeLock"
                | "ListSessions"
                | "ListReplicas"
                | "DescribeActivity"
                | "ListKeys"
                | "DescribeKey"
        );
        let form = match method {
            _ if is_listing => AnswerForm::Read,
            "Get" | "CriticalGet" => AnswerForm::Read,
            "WatchLock" | "ForwardWatch" | "Watch" | "Backup" => AnswerForm::Always,
            // What keeps locks alive is not refused.
            "RenewLocks" => AnswerForm::Always,
            _ if is_stream_in(path) => AnswerForm::Always,
            _ => AnswerForm::Done,
        };
        AnswerKind {
            form,
            is_listing,
            has_lock: method == "CriticalGet",
        }
    }
}

/// Whether a call of this method may write a value.
fn may_write(path: &str) -> bool {
    let method = path.rsplit('/').next().unwrap_or_default();
    matches!(method, "CriticalPut" | "CriticalDelete" | "ReleaseLock")
}

/// `/fermata.v1.LockService/Get` -> a span of service and method. What the call is about is recorded by
/// its handler; values never are.
pub(super) fn span_of(path: &str) -> tracing::Span {
    let (service, method) = path
        .trim_start_matches('/')
        .split_once('/')
        .unwrap_or((path, ""));
    span(service, method)
}

/// The span of one call.
fn span(service: &str, method: &str) -> tracing::Span {
    tracing::info_span!(
        "call",
        service,
        method,
        table = Empty,
        entry = Empty,
        session = Empty
    )
}

/// Replaces a status of the library by that of the contract. Statuses of the library come as headers without a body; our own
/// carry details and stay.
fn mapped(response: Response<Body>, message_bytes_max: usize) -> Response<Body> {
    let headers = response.headers();
    if headers.contains_key(Status::GRPC_STATUS_DETAILS) {
        return response;
    }
    let Some(code) = code_of(headers) else {
        return response;
    };
    let message = headers
        .get(Status::GRPC_MESSAGE)
        .map(|value| percent_encoding::percent_decode(value.as_bytes()).decode_utf8_lossy())
        .unwrap_or_default();
    match status::of_library(code, &message, message_bytes_max) {
        Some(status) => status.into_http(),
        None => response,
    }
}

fn code_of(headers: &HeaderMap) -> Option<Code> {
    headers
        .get(Status::GRPC_STATUS)
        .map(|value| Code::from_bytes(value.as_bytes()))
}
