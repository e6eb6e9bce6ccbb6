//! The metrics of calls: how many, how they ended, and how long they took.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};
use prost::Message as _;
use prost_types::FileDescriptorSet;

use super::peer_proto;

/// The bounds of calls, in seconds.
const SECONDS: [f64; 13] = [
    0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0,
];
/// The service and the method of a path that no service here has.
const OTHER: &str = "other";
/// The reason of a call that succeeded.
const OK: &str = "OK";

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct MethodLabels {
    service: String,
    method: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct RequestLabels {
    service: String,
    method: String,
    reason: String,
}

/// See the module. Clones count together.
#[derive(Clone, Debug)]
pub struct RequestMetrics(Arc<Families>);

#[derive(Debug)]
struct Families {
    requests: Family<RequestLabels, Counter>,
    durations: Family<MethodLabels, Histogram, fn() -> Histogram>,
    in_flight: Gauge,
    /// The methods of all services, by path.
    methods: HashMap<String, MethodMetrics>,
    other: MethodMetrics,
}

#[derive(Debug)]
struct MethodMetrics {
    labels: MethodLabels,
    answered: Counter,
    /// Made by the first call: most methods are rare.
    duration: OnceLock<Histogram>,
}

/// A call in flight, until this is dropped.
pub struct CountedCall(Gauge);

impl Drop for CountedCall {
    fn drop(&mut self) {
        self.0.dec();
    }
}

/// The paths of all methods of the services in these descriptors, with the names of service and method.
fn methods(descriptors: &[u8]) -> Vec<(String, MethodLabels)> {
    // They are compiled in; without them calls count as others.
    let files = FileDescriptorSet::decode(descriptors).unwrap_or_default();
    let mut methods = Vec::new();
    for file in &files.file {
        for service in &file.service {
            let service_name = format!("{}.{}", file.package(), service.name());
            methods.extend(service.method.iter().map(|method| {
                let labels = MethodLabels {
                    service: service_name.clone(),
                    method: method.name().to_owned(),
                };
                (format!("/{service_name}/{}", method.name()), labels)
            }));
        }
    }
    methods
}

impl Default for RequestMetrics {
    fn default() -> RequestMetrics {
        let requests = Family::<RequestLabels, Counter>::default();
        let of = |labels: MethodLabels| MethodMetrics {
            answered: requests.get_or_create_owned(&labels.with(OK)),
            duration: OnceLock::new(),
            labels,
        };
        let descriptors = [
            fermata_proto::FILE_DESCRIPTOR_SET,
            peer_proto::FILE_DESCRIPTOR_SET,
            tonic_health::pb::FILE_DESCRIPTOR_SET,
            tonic_reflection::pb::v1::FILE_DESCRIPTOR_SET,
        ];
        let methods = descriptors.into_iter().flat_map(methods);
        let methods = methods.map(|(path, labels)| (path, of(labels)));
        let methods = methods.collect();
        let other = of(MethodLabels {
            service: OTHER.to_owned(),
            method: OTHER.to_owned(),
        });
        RequestMetrics(Arc::new(Families {
            requests,
            durations: Family::new_with_constructor(|| Histogram::new(SECONDS)),
            in_flight: Gauge::default(),
            methods,
            other,
        }))
    }
}

impl MethodLabels {
    fn with(&self, reason: &str) -> RequestLabels {
        RequestLabels {
            service: self.service.clone(),
            method: self.method.clone(),
            reason: reason.to_owned(),
        }
    }
}

impl RequestMetrics {
    /// Counts a call as in flight.
    pub fn begun(&self) -> CountedCall {
        self.0.in_flight.inc();
        CountedCall(self.0.in_flight.clone())
    }

    /// Whether a service here has this path.
    pub fn knows(&self, path: &str) -> bool {
        self.0.methods.contains_key(path)
    }

    /// Counts the answer to a call of this path; with the reason if it was refused, or failed. `took` is `None` if it was
    /// refused before it began: such calls would hide how long the others take.
    pub fn answered(&self, path: &str, failed: Option<&str>, took: Option<Duration>) {
        let method = self.0.methods.get(path).unwrap_or(&self.0.other);
        match failed {
            None => method.answered.inc(),
            Some(reason) => {
                let labels = method.labels.with(reason);
                self.0.requests.get_or_create(&labels).inc()
            }
        };
        let Some(took) = took else {
            return;
        };
        let new = || self.0.durations.get_or_create_owned(&method.labels);
        let duration = method.duration.get_or_init(new);
        duration.observe(took.as_secs_f64());
    }

    /// Adds all to a registry.
    pub fn register(&self, registry: &mut Registry) {
        registry.register(
            "requests",
            "Calls, by method and by reason: OK, or the reason of the error; streams count at their begin, and calls in a Pipeline as \
             calls of their own, or as Pipeline if they were given up or late before they began",
            self.0.requests.clone(),
        );
        registry.register_with_unit(
            "request_duration",
            "Time from the headers of a call to its answer, of a stream to its begin; without calls that were refused before they began",
            Unit::Seconds,
            self.0.durations.clone(),
        );
        registry.register(
            "requests_in_flight",
            "Calls that were not answered yet, waits for locks included; streams count until they begin",
            self.0.in_flight.clone(),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(metrics: &RequestMetrics, path: &str) -> MethodLabels {
        let method = metrics.0.methods.get(path);
        method.unwrap_or(&metrics.0.other).labels.clone()
    }

    #[test]
    fn calls_count_by_their_method_and_reason_and_strange_paths_together() {
        let metrics = RequestMetrics::default();
        let counted = |path, reason| {
            let labels = labels(&metrics, path).with(reason);
            let counter = metrics.0.requests.get(&labels);
            counter.map_or(0, |counter| counter.get())
        };
        let create = "/fermata.v1.LockService/CreateLockRef";
        let took = Some(Duration::ZERO);
        metrics.answered(create, None, took);
        metrics.answered(create, Some("OVERLOADED"), None);
        for path in ["/a/b", "/fermata.v1.LockService/Nothing"] {
            metrics.answered(path, Some("UNIMPLEMENTED"), took);
        }
        assert_eq!(counted(create, "OK"), 1);
        assert_eq!(counted(create, "OVERLOADED"), 1);
        assert_eq!(counted("/a/b", "UNIMPLEMENTED"), 2);
        for path in [
            "/fermata.internal.v1.Peer/Forward",
            "/grpc.health.v1.Health/Check",
            "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
        ] {
            assert_ne!(labels(&metrics, path).service, OTHER, "{path}");
        }
    }
}
