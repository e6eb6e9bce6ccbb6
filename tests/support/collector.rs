//! A collector of traces: takes spans by OTLP, and shows those of one trace.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::Span;
use tokio::net::TcpListener;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status};

/// A span, and the instance of the service that made it.
#[derive(Clone, Debug)]
pub struct Collected {
    pub instance: String,
    pub span: Span,
}

impl Collected {
    /// The names of its events.
    pub fn events(&self) -> Vec<&str> {
        let events = self.span.events.iter();
        events.map(|event| event.name.as_str()).collect()
    }
}

#[derive(Clone, Default)]
pub struct Collector(Arc<Mutex<Vec<Collected>>>);

#[tonic::async_trait]
impl TraceService for Collector {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        let mut spans = self.0.lock().unwrap();
        for resource in request.into_inner().resource_spans {
            let attributes = resource.resource.unwrap_or_default().attributes;
            let instance = attributes.into_iter().find_map(|attribute| {
                let is_it = attribute.key == "service.instance.id";
                match attribute.value.and_then(|value| value.value) {
                    Some(Value::StringValue(name)) if is_it => Some(name),
                    _ => None,
                }
            });
            let instance = instance.unwrap();
            let of_scopes = resource.scope_spans.into_iter();
            spans.extend(
                of_scopes
                    .flat_map(|scope| scope.spans)
                    .map(|span| Collected {
                        instance: instance.clone(),
                        span,
                    }),
            );
        }
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

impl Collector {
    /// Listens; with its endpoint.
    pub async fn start() -> (Collector, String) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let collector = Collector::default();
        let service = TraceServiceServer::new(collector.clone());
        tokio::spawn(async move {
            let server = Server::builder().add_service(service);
            server
                .serve_with_incoming(TcpIncoming::from(listener))
                .await
                .unwrap();
        });
        (collector, endpoint)
    }

    /// The spans of a trace, by their begin, once there are these.
    pub async fn trace(
        &self,
        id: [u8; 16],
        is_whole: impl Fn(&[Collected]) -> bool,
    ) -> Vec<Collected> {
        for _ in 0..400 {
            let mut spans = self.0.lock().unwrap().clone();
            spans.retain(|one| one.span.trace_id == id);
            spans.sort_by_key(|one| one.span.start_time_unix_nano);
            if is_whole(&spans) {
                return spans;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let names = self
            .0
            .lock()
            .unwrap()
            .iter()
            .map(|one| one.span.name.clone())
            .collect::<Vec<_>>();
        panic!("the trace is not whole; there are {names:?}");
    }
}

/// A trace as a tree: begin and length in ms, the instance, the name, the events.
pub fn listing(trace: &[Collected]) -> String {
    let begun = trace
        .first()
        .map_or(0, |first| first.span.start_time_unix_nano);
    let mut children = BTreeMap::<&[u8], Vec<&Collected>>::new();
    let ids: Vec<&[u8]> = trace.iter().map(|one| &*one.span.span_id).collect();
    for one in trace {
        let parent = &*one.span.parent_span_id;
        let parent = if ids.contains(&parent) { parent } else { &[] };
        children.entry(parent).or_default().push(one);
    }
    let mut text = String::new();
    show(&[], 0, begun, &children, &mut text);
    text
}

fn show(
    of: &[u8],
    depth: usize,
    begun: u64,
    children: &BTreeMap<&[u8], Vec<&Collected>>,
    text: &mut String,
) {
    let ms = |nanos: u64| nanos as f64 / 1e6;
    for one in children.get(of).into_iter().flatten() {
        let span = &one.span;
        let events = match one.events().as_slice() {
            [] => String::new(),
            events => format!("  ({})", events.join(", ")),
        };
        writeln!(
            text,
            "{:>8.1} {:>7.1}  {:<9} {:indent$}{}{events}",
            ms(span.start_time_unix_nano - begun),
            ms(span.end_time_unix_nano - span.start_time_unix_nano),
            one.instance,
            "",
            span.name,
            indent = 2 * depth,
        )
        .unwrap();
        show(&span.span_id, depth + 1, begun, children, text);
    }
}
