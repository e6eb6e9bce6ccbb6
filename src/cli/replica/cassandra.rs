//! A replica on Cassandra: started once the cluster can be reached and its tables are there.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::cli::cluster::{self, SettingsError};
use crate::clock::{Clock as _, SystemClock};
use crate::config::Config;
use crate::engine::{Engine, EngineError, EngineOptions};
use crate::lock::NameHash;
use crate::log_throttle::LogThrottle;
use crate::store::Store;
use crate::store::cassandra::health::{Finding, Weight};
use crate::store::cassandra::schema::Schema;
use crate::store::cassandra::{CassandraError, CassandraOptions, CassandraStore};

/// The first pause between two tries to start.
const PAUSE_MIN: Duration = Duration::from_millis(500);
/// The longest.
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// Why a try to start failed, and the command that puts it right, where there is one. What is wrong outside may be
/// put right while this process waits.
#[derive(Debug, thiserror::Error)]
#[error("{why}{repair}")]
pub struct NotYet {
    why: Why,
    repair: String,
}

#[derive(Debug)]
enum Why {
    Cluster(CassandraError),
    Wrong(Vec<Finding>),
    Engine(EngineError),
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Why::Cluster(error) => error.fmt(f),
            Why::Wrong(findings) => {
                let words = |one: &Finding| format!("{}: {}", one.what, one.remedy);
                let all: Vec<String> = findings.iter().map(words).collect();
                f.write_str(&all.join("; "))
            }
            Why::Engine(error) => error.fmt(f),
        }
    }
}

/// What is to be started once the cluster is there.
pub struct Starting {
    options: CassandraOptions,
    schema: Schema,
    /// The command that makes the tables.
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
            tables: config.table_names(),
        };
        let apply = cluster::apply_command(&config.store.cassandra, &schema.tables);
        Ok(Starting {
            options,
            schema,
            apply,
        })
    }

    /// Where the data is, in words.
    pub fn location(&self) -> String {
        format!(
            "data in the keyspace {} of {} (Cassandra)",
            self.options.keyspace,
            self.options.contact_points.join(",")
        )
    }

    /// Starts the engine, trying for as long as this is polled. `engine_options` makes those of an engine on
    /// the store.
    pub async fn run(&self, engine: &Engine, engine_options: impl Fn(Store) -> EngineOptions) {
        let mut pause = PAUSE_MIN;
        let log_throttle = LogThrottle::default();
        loop {
            let Err(why) = self.once(engine, &engine_options).await else {
                return;
            };
            if let Some(times) = log_throttle.met(SystemClock.boot(), &why.to_string()) {
                tracing::warn!(
                    contact_points = self.options.contact_points.join(","),
                    keyspace = %self.options.keyspace,
                    times,
                    "cannot start yet: {why}"
                );
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    /// Starts the engine, or says why that cannot be.
    async fn once(
        &self,
        engine: &Engine,
        engine_options: &impl Fn(Store) -> EngineOptions,
    ) -> Result<(), NotYet> {
        let tried = self.tried(engine, engine_options).await;
        tried.map_err(|why| NotYet {
            repair: self.repair(&why),
            why,
        })
    }

    async fn tried(
        &self,
        engine: &Engine,
        engine_options: &impl Fn(Store) -> EngineOptions,
    ) -> Result<(), Why> {
        let opened = CassandraStore::open(self.options.clone()).await;
        let store = opened.map_err(Why::Cluster)?;
        // By the same connection: to make another one takes as long again where a node hangs.
        let found = store.check(&self.options, &self.schema, &self.apply);
        let (wrong, others): (Vec<Finding>, Vec<Finding>) = found
            .await
            .map_err(Why::Cluster)?
            .into_iter()
            .partition(|one| one.weight == Weight::Wrong);
        if !wrong.is_empty() {
            return Err(Why::Wrong(wrong));
        }
        store.agree_on_majority().await.map_err(Why::Cluster)?;
        let store = Arc::new(store);
        let begun = engine.begin(engine_options(store.store())).await;
        begun.map_err(Why::Engine)?;
        let tables = self.schema.tables.clone();
        tokio::spawn(async move { store.prepare_ahead(&tables).await });
        for one in others {
            tracing::warn!("{}: {}: {}", one.weight, one.what, one.remedy);
        }
        Ok(())
    }

    /// The command that puts it right, where there is one.
    fn repair(&self, why: &Why) -> String {
        match why {
            Why::Cluster(CassandraError::NoSchema { .. }) => {
                format!(" ({} --replication DATACENTER=3)", self.apply)
            }
            // Its findings name the commands.
            Why::Wrong(_) | Why::Cluster(_) | Why::Engine(_) => String::new(),
        }
    }
}

/// Which node a replica of this name prefers: by its text, and the sum of the numbers in it. So replicas which are numbered, or
/// share a host and have consecutive ports, prefer each another one.
fn preferred_node(name: &str) -> u64 {
    let text = name.bytes().filter(|sign| !sign.is_ascii_digit());
    let numbers = name.split(|sign: char| !sign.is_ascii_digit());
    // Of one that is too long for a number its last digits count.
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
