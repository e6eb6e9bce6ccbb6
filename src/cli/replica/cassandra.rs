//! The start of a replica on Cassandra, as soon as the cluster and its tables are available.

use std::sync::Arc;
use std::time::Duration;

use crate::cli::cluster::{self, SettingsError};
use crate::clock::{Clock as _, SystemClock};
use crate::config::Config;
use crate::engine::{Engine, EngineOptions};
use crate::lock::{NameHash, TableName};
use crate::log_throttle::LogThrottle;
use crate::protocol::LeaderlessTables;
use crate::store::Store;
use crate::store::cassandra::health::{Finding, Weight};
use crate::store::cassandra::schema::Schema;
use crate::store::cassandra::{CassandraError, CassandraOptions, CassandraStore};
use crate::store::metrics::StoreMetrics;

/// The pause between two tries to start.
const RETRY_EVERY: Duration = Duration::from_secs(1);

/// A replica that waits for its cluster.
pub struct Starting {
    options: CassandraOptions,
    schema: Schema,
    /// The protocol of each table.
    protocols: Vec<(TableName, String)>,
    /// The command to make the tables.
    apply: String,
}

impl Starting {
    /// On the cluster of this configuration.
    pub fn new(config: &Config) -> Result<Starting, SettingsError> {
        let mut options = cluster::options(&config.store.cassandra)?;
        let address = config.listen.addresses().next();
        let address = address
            .map(|address| address.to_string())
            .unwrap_or_default();
        options.preferred_node = preferred_node(&super::name(config, &address));
        let schema = Schema {
            keyspace: options.keyspace.clone(),
            replication: None,
            tables: config.home_tables(),
            cell_tables: config.cell_tables(),
            row_tables: config.row_tables(),
        };
        let mut apply = cluster::apply_command(&config.store.cassandra, &schema.tables);
        if !schema.cell_tables.is_empty() {
            apply.push_str(" --config FILE");
        }
        Ok(Starting {
            protocols: config.protocols(),
            options,
            schema,
            apply,
        })
    }

    /// The place of the data, in words.
    pub fn location(&self) -> String {
        format!(
            "data in the keyspace {} of {} (Cassandra)",
            self.options.keyspace,
            self.options.contact_points.join(",")
        )
    }

    /// Tries to start the engine for as long as this is polled. `engine_options` makes its options.
    pub async fn run(
        &self,
        engine: &Engine,
        leaderless: &LeaderlessTables,
        metrics: &StoreMetrics,
        engine_options: impl Fn(Store) -> EngineOptions,
    ) {
        let log_throttle = LogThrottle::default();
        while let Err(why) = self
            .once(engine, leaderless, metrics, &engine_options)
            .await
        {
            if let Some(times) = log_throttle.met(SystemClock.boot(), &why) {
                tracing::warn!(
                    contact_points = self.options.contact_points.join(","),
                    keyspace = %self.options.keyspace,
                    times,
                    "cannot start yet: {why}"
                );
            }
            tokio::time::sleep(RETRY_EVERY).await;
        }
    }

    /// Starts the engine, or returns the reason why not.
    async fn once(
        &self,
        engine: &Engine,
        leaderless: &LeaderlessTables,
        metrics: &StoreMetrics,
        engine_options: &impl Fn(Store) -> EngineOptions,
    ) -> Result<(), String> {
        let opened = CassandraStore::open_counted(self.options.clone(), metrics.clone()).await;
        let store = opened.map_err(|error| match error {
            CassandraError::NoSchema { .. } => {
                format!("{error} ({} --replication DATACENTER=3)", self.apply)
            }
            error => error.to_string(),
        })?;
        // By the same connection: another one takes as long again if a node hangs.
        let found = store.check(&self.options, &self.schema, &self.apply).await;
        let found = found.map_err(|error| error.to_string())?;
        let (wrong, others): (Vec<Finding>, Vec<Finding>) = found
            .into_iter()
            .partition(|one| one.weight == Weight::Wrong);
        if !wrong.is_empty() {
            let words = |one: &Finding| format!("{}: {}", one.what, one.remedy);
            return Err(wrong.iter().map(words).collect::<Vec<_>>().join("; "));
        }
        let agreed = store.agree_on_majority().await;
        agreed.map_err(|error| error.to_string())?;
        for (table, protocol) in &self.protocols {
            let agreed = store.agree_on_protocol(table, protocol).await;
            agreed.map_err(|error| error.to_string())?;
        }
        let store = Arc::new(store.with_row_tables(self.schema.row_tables.clone()));
        let begun = engine.begin(engine_options(store.store())).await;
        begun.map_err(|error| error.to_string())?;
        leaderless.begin(store.cells());
        let tables = self.schema.tables.clone();
        tokio::spawn(async move { store.prepare_ahead(&tables).await });
        for one in others {
            tracing::warn!("{}: {}: {}", one.weight, one.what, one.remedy);
        }
        Ok(())
    }
}

/// The preferred node of a replica of this name: by its text, and the sum of its numbers. So numbered replicas, and replicas on
/// consecutive ports of a host, prefer different nodes.
fn preferred_node(name: &str) -> u64 {
    let text = name.bytes().filter(|sign| !sign.is_ascii_digit());
    let numbers = name.split(|sign: char| !sign.is_ascii_digit());
    // The last digits of a number that is too long.
    let number = |text: &str| {
        let last = text.len().saturating_sub(18);
        text[last..].parse::<u64>().unwrap_or_default()
    };
    numbers
        .map(number)
        .fold(NameHash::of(text).0, u64::wrapping_add)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replicas_that_are_numbered_prefer_each_another_node() {
        for names in [
            ["fermata-0:7450", "fermata-1:7450", "fermata-2:7450"],
            ["a:7450", "a:7451", "a:7452"],
            ["replica-1", "replica-2", "replica-3"],
        ] {
            let [first, second, third] = names.map(preferred_node);
            assert_eq!(second, first.wrapping_add(1), "{names:?}");
            assert_eq!(third, second.wrapping_add(1), "{names:?}");
        }
        // One port on hosts that have no numbers.
        assert_ne!(preferred_node("north:7450"), preferred_node("south:7450"));
        // More digits than a number has.
        let [long, none] = ["9".repeat(40), String::new()].map(|name| preferred_node(&name));
        assert_eq!(long, none.wrapping_add(999_999_999_999_999_999));
    }
}
