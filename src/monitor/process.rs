//! The metrics of the process, under the names that Prometheus gives them everywhere, and of its runtime.

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::{Registry, Unit};
use tokio::runtime::{Handle, RuntimeMetrics};

use crate::process::{cpu_seconds, open_files, open_files_max, resident_bytes};

/// Adds the metrics of this process.
pub fn register(registry: &mut Registry) {
    let started = SystemTime::now().duration_since(UNIX_EPOCH);
    registry.register_collector(Box::new(ProcessMetrics {
        started: started.unwrap_or_default(),
    }));
}

/// Adds the metrics of the runtime that this is called in.
pub fn register_runtime(registry: &mut Registry) {
    let runtime = Handle::current().metrics();
    registry.register_collector(Box::new(Runtime(runtime)));
}

/// Encodes one metric without labels.
fn put(
    encoder: &mut DescriptorEncoder<'_>,
    (name, help): (&str, &str),
    unit: Option<&Unit>,
    metric: &impl EncodeMetric,
) -> fmt::Result {
    let help = format!("{help}.");
    metric.encode(encoder.encode_descriptor(name, &help, unit, metric.metric_type())?)
}

#[derive(Debug)]
struct ProcessMetrics {
    /// Since 1970.
    started: Duration,
}

fn gauge(number: impl TryInto<i64>) -> ConstGauge<i64> {
    ConstGauge::new(number.try_into().unwrap_or(i64::MAX))
}

impl Collector for ProcessMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let encoder = &mut encoder;
        if let Some(seconds) = cpu_seconds() {
            let what = ("process_cpu", "Processor time of this process");
            put(
                encoder,
                what,
                Some(&Unit::Seconds),
                &ConstCounter::new(seconds),
            )?;
        }
        let what = ("process_start_time", "Start of this process since 1970");
        let started = ConstGauge::new(self.started.as_secs_f64());
        put(encoder, what, Some(&Unit::Seconds), &started)?;
        if let Some(bytes) = resident_bytes() {
            let what = ("process_resident_memory", "Memory of this process");
            put(encoder, what, Some(&Unit::Bytes), &gauge(bytes))?;
        }
        if let Some(files) = open_files() {
            let what = ("process_open_fds", "Open file descriptors of this process");
            put(encoder, what, None, &gauge(files))?;
        }
        if let Some(most) = open_files_max() {
            let what = ("process_max_fds", "Limit of open file descriptors");
            put(encoder, what, None, &gauge(most))?;
        }
        Ok(())
    }
}

#[derive(Debug)]
struct Runtime(RuntimeMetrics);

impl Collector for Runtime {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let encoder = &mut encoder;
        let workers = self.0.num_workers();
        let busy: Duration = (0..workers)
            .map(|worker| self.0.worker_total_busy_duration(worker))
            .sum();
        let what = (
            "runtime_busy",
            "Time for which the threads of the runtime were busy; divided by runtime_workers it is their use",
        );
        let busy = ConstCounter::new(busy.as_secs_f64());
        put(encoder, what, Some(&Unit::Seconds), &busy)?;
        let what = ("runtime_workers", "Threads of the runtime");
        put(encoder, what, None, &gauge(workers))?;
        let what = ("runtime_tasks", "Tasks of the runtime");
        put(encoder, what, None, &gauge(self.0.num_alive_tasks()))?;
        let what = (
            "runtime_queue_depth",
            "Tasks that wait in the shared queue of the runtime for a thread",
        );
        put(encoder, what, None, &gauge(self.0.global_queue_depth()))
    }
}
