//! Distributed traces: spans for collectors, and the W3C context that comes with a call and goes on to other replicas.
//!
//! All spans of traces have the target [`TARGET`] and the level DEBUG. A call that is not traced makes none of them. `telemetry`
//! exports them, and leaves them out of the log.

use std::fmt::Display;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU32, Ordering};

use opentelemetry::KeyValue;
use opentelemetry::propagation::{Extractor, Injector, TextMapPropagator as _};
use opentelemetry::trace::{FutureExt as _, Status, TraceContextExt as _, get_active_span};
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{IdGenerator as _, RandomIdGenerator};
use tonic::Code;
use tonic::metadata::{MetadataMap, MetadataValue};
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt as _;

/// The target of all spans and events of traces.
pub const TARGET: &str = "fermata::trace";

/// The metadata with the context, as W3C names it.
pub const TRACEPARENT: &str = "traceparent";

/// One in so many calls without a context is traced; 0: none, as nothing is exported.
static ONE_IN: AtomicU32 = AtomicU32::new(0);

/// Begins to make spans: of calls whose callers trace them, and of one in so many others.
pub fn begin(one_in: NonZeroU32) {
    ONE_IN.store(one_in.get(), Ordering::Relaxed);
}

/// True once in so many times, by chance.
fn chance(one_in: u32) -> bool {
    let random = u64::from_be_bytes(RandomIdGenerator::default().new_span_id().to_bytes());
    random <= u64::MAX / u64::from(one_in)
}

/// The span of a call that was received with this context; no span if the call is not traced. The path is `None` if no service here
/// has it.
pub fn of_call(path: Option<&str>, traceparent: Option<&str>) -> Span {
    let one_in = ONE_IN.load(Ordering::Relaxed);
    if one_in == 0 {
        return Span::none();
    }
    let parent = traceparent
        .map(|context| TraceContextPropagator::new().extract(&Received(context)))
        .filter(|parent| parent.span().span_context().is_valid());
    let is_traced = match &parent {
        Some(parent) => parent.span().span_context().is_sampled(),
        None => chance(one_in),
    };
    if !is_traced {
        return Span::none();
    }
    let path = path.unwrap_or("other").trim_start_matches('/');
    let (service, method) = path.split_once('/').unwrap_or((path, ""));
    let span = tracing::debug_span!(
        target: TARGET,
        parent: None,
        "request",
        otel.name = path,
        otel.kind = "server",
        rpc.system = "grpc",
        rpc.service = service,
        rpc.method = method,
    );
    if let Some(parent) = parent {
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

/// A context as it was received. No tracestate: nothing here reads it, and it may be large.
struct Received<'a>(&'a str);

impl Extractor for Received<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        (key == TRACEPARENT).then_some(self.0)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chance_chooses_about_one_in_so_many() {
        assert!(chance(1));
        let chosen = (0..100_000).filter(|_| chance(100)).count();
        assert!((700..1_300).contains(&chosen), "{chosen}");
    }
}
