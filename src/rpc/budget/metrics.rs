//! The metrics of connections: their number, what they hold, and those that were refused or cut off.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

use super::Accounts;

/// Reads what connections hold at each scrape.
struct ConnectionGauges(Accounts);

impl fmt::Debug for ConnectionGauges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ConnectionGauges")
    }
}

/// A number as a gauge.
fn gauge(number: impl TryInto<i64>) -> i64 {
    number.try_into().unwrap_or(i64::MAX)
}

impl Collector for ConnectionGauges {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let (held, limits) = (self.0.held(), self.0.limits());
        let gauges = [
            (
                "connections",
                "Connections of clients",
                gauge(held.connections),
            ),
            (
                "connections_limit",
                "limits.connections_max, less if there are too few file descriptors",
                gauge(limits.connections_max),
            ),
            (
                "in_flight_bytes",
                "Bytes of messages and answers in flight on all connections of clients",
                gauge(held.bytes),
            ),
            (
                "in_flight_bytes_limit",
                "limits.bytes_in_flight_max: above it the largest connections are cut off",
                gauge(limits.bytes_max),
            ),
        ];
        for (name, help, value) in gauges {
            let gauge = ConstGauge::new(value);
            let help = format!("{help}.");
            let family = encoder.encode_descriptor(name, &help, None, gauge.metric_type())?;
            gauge.encode(family)?;
        }
        Ok(())
    }
}

impl Accounts {
    /// Adds all to a registry.
    pub fn register(&self, registry: &mut Registry) {
        registry.register(
            "connections_refused",
            "Connections of clients that were closed at once: limits.connections_max was reached, or the share of their address",
            self.refused().clone(),
        );
        registry.register(
            "connections_cut",
            "Connections of clients that were cut off: they took none of their answers, or held most of too many bytes",
            self.cut_off().clone(),
        );
        registry.register_collector(Box::new(ConnectionGauges(self.clone())));
    }
}
