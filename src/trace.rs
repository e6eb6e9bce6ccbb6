//! Distributed traces: spans for collectors, and the W3C context that comes with a call and goes on to other replicas.
//!
//! All spans of traces have the target [`TARGET`] and the level DEBUG, so they cost next to nothing while `traces.endpoint` is not
//! set, and never stand in a line of the log. `telemetry` exports them.

use std::fmt::Display;

use http::HeaderMap;
use opentelemetry::KeyValue;
use opentelemetry::propagation::{Extractor, Injector, TextMapPropagator as _};
use opentelemetry::trace::{Status, TraceContextExt as _, get_active_span};
use opentelemetry_sdk::propagation::TraceContextPropagator;
use tonic::metadata::{MetadataKey, MetadataMap, MetadataValue};
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt as _;

/// The target of all spans and events of traces.
pub const TARGET: &str = "fermata::trace";

/// The header with the context, as W3C names it.
const TRACEPARENT: &str = "traceparent";

/// The span of a call that was received with these headers.
pub fn of_call(path: &str, headers: &HeaderMap) -> Span {
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

/// Records what a call is about, in the span of the log and in that of the trace.
pub fn record(field: &'static str, value: &dyn Display) {
    Span::current().record(field, tracing::field::display(value));
    get_active_span(|span| {
        if span.is_recording() {
            span.set_attribute(KeyValue::new(format!("fermata.{field}"), value.to_string()));
        }
    });
}

/// Marks the active span as failed, for this reason.
pub fn failed(reason: &str) {
    get_active_span(|span| {
        if span.is_recording() {
            span.set_attribute(KeyValue::new("fermata.reason", reason.to_owned()));
            span.set_status(Status::error(reason.to_owned()));
        }
    });
}

struct Headers<'a>(&'a HeaderMap);

impl Extractor for Headers<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key)?.to_str().ok()
    }

    fn keys(&self) -> Vec<&str> {
        self.0.keys().map(|key| key.as_str()).collect()
    }
}

struct Metadata<'a>(&'a mut MetadataMap);

impl Injector for Metadata<'_> {
    fn set(&mut self, key: &str, value: String) {
        // Both are made of hex digits and dashes.
        if let (Ok(key), Ok(value)) = (
            MetadataKey::from_bytes(key.as_bytes()),
            MetadataValue::try_from(value),
        ) {
            self.0.insert(key, value);
        }
    }
}
