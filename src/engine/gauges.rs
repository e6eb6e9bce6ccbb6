//! The metrics of the engine in a registry: those that count, and gauges that are read at each scrape.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::{Registry, Unit};

use super::admission::Admission;
use super::calls::Engine;

/// One label, or none.
type Labels<'a> = Option<(&'static str, &'a str)>;

/// See the module.
struct EngineGauges(Engine);

impl fmt::Debug for EngineGauges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("EngineGauges")
    }
}

/// A number as a gauge.
fn gauge(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

impl Collector for EngineGauges {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let engine = &self.0;
        let mut put = |name: &str, help: &str, values: Vec<(Labels<'_>, i64)>| {
            let help = format!("{help}.");
            let mut family = encoder.encode_descriptor(name, &help, None, MetricType::Gauge)?;
            for (label, value) in values {
                let value = ConstGauge::new(value);
                match label {
                    Some(label) => value.encode(family.encode_family(&[label])?)?,
                    None => {
                        let none: [(&str, &str); 0] = [];
                        value.encode(family.encode_family(&none)?)?;
                    }
                }
            }
            Ok::<_, fmt::Error>(())
        };
        let one = |value| vec![(None, value)];
        put(
            "replica_ready",
            "1 while this replica serves calls",
            one(i64::from(engine.ready().is_ok())),
        )?;
        let limits = engine.limits();
        put(
            "keys_limit",
            "limits.active_keys_max",
            one(gauge(limits.active_keys_max)),
        )?;
        put(
            "sessions_limit",
            "limits.sessions_max",
            one(gauge(limits.sessions_max)),
        )?;
        let admissions = [
            ("begin", &engine.shared.begins),
            ("read", &engine.shared.reads),
        ];
        let of_each = |number: fn(&Admission) -> usize| {
            let each = admissions.iter();
            each.map(|(kind, admission)| (Some(("kind", *kind)), gauge(number(admission))))
                .collect()
        };
        put(
            "admitted_calls",
            "Calls under the concurrency limit, by kind: those that begin an entry or a session, and reads without a lock",
            of_each(Admission::in_flight),
        )?;
        put(
            "admitted_calls_limit",
            "The adaptive limit of such calls; a call above it is refused with OVERLOADED",
            of_each(Admission::limit),
        )?;
        put(
            "commits_in_flight",
            "Commits that the store has not answered yet",
            one(i64::try_from(engine.shared.commits.open()).unwrap_or(i64::MAX)),
        )?;
        let Some(replica) = engine.shared.serving() else {
            return Ok(());
        };
        put(
            "keys",
            "Keys in the memory of this replica, idle ones included",
            one(gauge(replica.shell.keys.count())),
        )?;
        put(
            "sessions",
            "Open sessions that this replica keeps",
            one(gauge(replica.sessions.table.count())),
        )?;
        put(
            "other_replicas",
            "Other running replicas that this one knows",
            one(gauge(replica.local.membership.peers().len())),
        )?;
        let queues = replica.shell.reports.queues().all();
        let queues = queues.iter();
        put(
            "locks_held",
            "Locks held at this replica, by table",
            queues
                .clone()
                .map(|(table, held, _)| (Some(("table", table.as_str())), *held))
                .collect(),
        )?;
        put(
            "lock_waiters",
            "LockRefs that wait for a lock at this replica, by table",
            queues
                .map(|(table, _, waiters)| (Some(("table", table.as_str())), *waiters))
                .collect(),
        )?;
        if !replica.local.is_alone() {
            let left = replica.local.sure_for().as_secs_f64();
            let lease = encoder.encode_descriptor(
                "replica_lease",
                "Time for which this replica may answer without another heartbeat.",
                Some(&Unit::Seconds),
                MetricType::Gauge,
            )?;
            ConstGauge::new(left).encode(lease)?;
        }
        Ok(())
    }
}

impl Engine {
    /// Adds its metrics to a registry.
    pub fn register(&self, registry: &mut Registry) {
        self.shared.metrics.register(registry);
        registry.register_collector(Box::new(EngineGauges(self.clone())));
    }
}
