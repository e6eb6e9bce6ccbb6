//! Distributed traces: spans for collectors, and the W3C context that comes with a call and goes on to other replicas.
//!
//! All spans of traces have the target [`TARGET`] and the level DEBUG. They cost next to nothing while `traces.endpoint` is not set.
//! `telemetry` exports them, and leaves them out of the log.

use std::fmt::Display;

use http::HeaderMap;
use opentelemetry::KeyValue;
use opentelemetry::propagation::{Extractor, Injector, TextMapPropagator as _};
use opentelemetry::trace::{FutureExt as _, Status, TraceContextExt as _, get_active_span};
use opentelemetry_sdk::propagation::TraceContextPropagator;
use tonic::Code;
use tonic::metadata::{MetadataMap, MetadataValue};
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt as _;

/// The target of all spans and events of traces.
pub const TARGET: &str = "fermata::trace";

/// The header with the context, as W3C names it.
const TRACEPARENT: &str = "traceparent";

/// The span of a call that was received with these headers; `None`: of a path that no service here has.
pub fn of_call(path: Option<&str>, headers: &HeaderMap) -> Span {
    let path = path.unwrap_or("other");
    let (service, method) = path
        .trim_start_matches('/')
        .split_once('/')
        .unwrap_or((path, ""));
    let span = tracing::debug_span!(
        target: TARGET,
        parent: None,
        "request",
        otel.name = path.trim_start_matches('/'),
        otel.kind = "server",
        rpc.system = "grpc",
        rpc.service = service,
        rpc.method = method,
    );
    if !span.is_disabled() && headers.contains_key(TRACEPARENT) {
        let parent = TraceContextPropagator::new().extract(&Headers(headers));
        // Only fails without the layer that exports, and then nobody misses it.
        let _ = span.set_parent(parent);
    }
    span
}

/// The current span, unless it is of a trace.
pub fn log_span() -> Span {
    let current = Span::current();
    match current.metadata().is_some_and(|of| of.target() == TARGET) {
        true => Span::none(),
        false => current,
    }
}

/// Whether work that begins now is part of a trace.
pub fn is_active() -> bool {
    get_active_span(|span| span.span_context().is_valid())
}

/// Carries the trace of the present call into work that goes on in a task of its own.
pub fn carried<F: Future>(work: F) -> impl Future<Output = F::Output> {
    work.with_current_context()
}

/// Adds the context of this span to the metadata of a call to another replica.
pub fn pass_on(span: &Span, metadata: &mut MetadataMap) {
    if span.is_disabled() {
        return;
    }
    let context = span.context();
    if context.span().span_context().is_valid() {
        TraceContextPropagator::new().inject_context(&context, &mut Metadata(metadata));
    }
}

/// Records the subject of a call, in the span of the log and in that of the trace.
pub fn record(field: &'static str, value: &dyn Display) {
    Span::current().record(field, tracing::field::display(value));
    get_active_span(|span| {
        if span.is_recording() {
            span.set_attribute(KeyValue::new(format!("fermata.{field}"), value.to_string()));
        }
    });
}

/// Notes why the call of the active span was refused. A refusal that is no fault of the server is no error of its span
/// (OpenTelemetry's conventions for gRPC servers).
pub fn failed(code: Code, reason: &str) {
    get_active_span(|span| {
        if !span.is_recording() {
            return;
        }
        span.set_attribute(KeyValue::new("rpc.grpc.status_code", code as i64));
        span.set_attribute(KeyValue::new("fermata.reason", reason.to_owned()));
        if matches!(
            code,
            Code::Unknown
                | Code::DeadlineExceeded
                | Code::Unimplemented
                | Code::Internal
                | Code::Unavailable
                | Code::DataLoss
        ) {
            span.set_status(Status::error(reason.to_owned()));
        }
    });
}

struct Headers<'a>(&'a HeaderMap);

impl Extractor for Headers<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        // No tracestate: nothing here reads it, and it may be large.
        let context = self.0.get(TRACEPARENT).filter(|_| key == TRACEPARENT);
        context?.to_str().ok()
    }

    fn keys(&self) -> Vec<&str> {
        vec![TRACEPARENT]
    }
}

struct Metadata<'a>(&'a mut MetadataMap);

impl Injector for Metadata<'_> {
    fn set(&mut self, key: &str, value: String) {
        if key == TRACEPARENT
            && let Ok(value) = MetadataValue::try_from(value)
        {
            self.0.insert(TRACEPARENT, value);
        }
    }
}
