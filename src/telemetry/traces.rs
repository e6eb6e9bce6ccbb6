//! Exports the spans of `crate::trace` to a collector, by OTLP over gRPC.

use std::num::NonZeroU32;
use std::time::Duration;

use opentelemetry::KeyValue;
use opentelemetry::trace::TracerProvider as _;
use opentelemetry_otlp::{ExporterBuildError, SpanExporter, WithExportConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{Sampler, SdkTracerProvider, SpanData, SpanExporter as Export};
use tracing::Subscriber;
use tracing_opentelemetry::OpenTelemetryLayer;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::registry::LookupSpan;

use crate::build;
use crate::clock::{Clock as _, SystemClock};
use crate::config::TracesConfig;
use crate::log_throttle::LogThrottle;
use crate::trace::{self, TARGET};

/// The time for one export, and for the last one when the process stops.
const EXPORT_WITHIN: Duration = Duration::from_secs(2);

/// The export of spans, in a thread of its own. While the collector cannot be reached, spans are dropped: 2,048 wait at most.
#[derive(Debug)]
pub struct Traces {
    provider: SdkTracerProvider,
    one_in: NonZeroU32,
}

/// Says in the log that spans are lost.
#[derive(Debug)]
struct Exporter {
    inner: SpanExporter,
    lost: LogThrottle,
}

impl Export for Exporter {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let spans = batch.len();
        let exported = self.inner.export(batch).await;
        if let Err(error) = &exported {
            let why = error.to_string();
            if let Some(times) = self.lost.met(SystemClock.boot(), &why) {
                tracing::warn!(
                    error = why,
                    spans,
                    times,
                    "spans were not exported, and are lost"
                );
            }
        }
        exported
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.inner.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.inner.set_resource(resource);
    }
}

impl Traces {
    /// Exports to the collector of this configuration; `None` without an endpoint. Needs the runtime. The variables
    /// `OTEL_SERVICE_NAME` and `OTEL_RESOURCE_ATTRIBUTES` change the resource.
    pub fn new(
        config: &TracesConfig,
        instance: &str,
    ) -> Result<Option<Traces>, ExporterBuildError> {
        let Some(endpoint) = &config.endpoint else {
            return Ok(None);
        };
        let exporter = SpanExporter::builder()
            .with_tonic()
            .with_endpoint(endpoint)
            .with_timeout(EXPORT_WITHIN)
            .build()?;
        let exporter = Exporter {
            inner: exporter,
            lost: LogThrottle::default(),
        };
        let mut resource = Resource::builder();
        if std::env::var_os("OTEL_SERVICE_NAME").is_none() {
            resource = resource.with_service_name("fermata");
        }
        let resource = resource.with_attributes([
            KeyValue::new("service.version", build::VERSION),
            KeyValue::new("service.instance.id", instance.to_owned()),
        ]);
        let provider = SdkTracerProvider::builder()
            .with_batch_exporter(exporter)
            // Calls that are not traced make no span.
            .with_sampler(Sampler::AlwaysOn)
            .with_resource(resource.build())
            .build();
        Ok(Some(Traces {
            provider,
            one_in: config.one_in,
        }))
    }

    /// Begins to make spans.
    pub fn begin(&self) {
        trace::begin(self.one_in);
    }

    /// The layer that takes spans from the code.
    pub fn layer<S>(&self) -> impl Layer<S> + use<S>
    where
        S: Subscriber + for<'span> LookupSpan<'span>,
    {
        OpenTelemetryLayer::new(self.provider.tracer("fermata"))
            .with_location(false)
            .with_threads(false)
            .with_target(false)
            .with_tracked_inactivity(false)
            .with_filter(Targets::new().with_target(TARGET, LevelFilter::DEBUG))
    }

    /// Exports the last spans, for two seconds at most. Blocks.
    pub fn end(&self) {
        if let Err(error) = self.provider.shutdown_with_timeout(EXPORT_WITHIN) {
            tracing::debug!(%error, "the last spans were not exported");
        }
    }
}
