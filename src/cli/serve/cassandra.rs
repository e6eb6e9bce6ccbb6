//! `serve` on Cassandra: waits until the cluster can be reached and its tables are there, as long as that takes.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::cli::remote::variable;
use crate::config::{CassandraConfig, Config, Consistency};
use crate::engine::{Engine, EngineError, EngineOptions};
use crate::store::Store;
use crate::store::cassandra::health::{self, Finding, Weight};
use crate::store::cassandra::schema::{Schema, SchemaError};
use crate::store::cassandra::{
    CassandraOptions, CassandraStore, CassandraTls, ClientCertificate, Credentials, Keyspace,
    Majority, OpenError,
};

/// The password, where it is in no file.
const PASSWORD: &str = "FERMATA_CASSANDRA_PASSWORD";
/// The first pause between two tries to start.
const PAUSE_MIN: Duration = Duration::from_millis(500);
/// The longest.
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// Why the settings of Cassandra cannot be used. Correct them and start again.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// A file that is named cannot be read.
    #[error("cannot read {path}: {error}")]
    File {
        /// Which.
        path: PathBuf,
        /// What the system said.
        error: std::io::Error,
    },
    /// A user without a password.
    #[error(
        "store.cassandra.user is set, and there is no password: set store.cassandra.password_file or {PASSWORD}"
    )]
    NoPassword,
}

/// A text file of the configuration, whole.
pub fn file(path: &Path) -> Result<String, SettingsError> {
    std::fs::read_to_string(path).map_err(|error| SettingsError::File {
        path: path.to_owned(),
        error,
    })
}

/// How the cluster of the configuration is reached.
pub fn options(config: &CassandraConfig) -> Result<CassandraOptions, SettingsError> {
    let client = match (&config.tls.cert_file, &config.tls.key_file) {
        (Some(certificate), Some(key)) => Some(ClientCertificate {
            certificate_file: certificate.clone(),
            key_file: key.clone(),
        }),
        // One without the other is refused with the configuration.
        (None, _) | (_, None) => None,
    };
    let tls = config.tls.ca_file.as_ref().map(|ca_file| CassandraTls {
        ca_file: ca_file.clone(),
        client,
        verify_host: config.tls.verify_host,
    });
    let credentials = match &config.user {
        None => None,
        Some(user) => {
            let password = match &config.password_file {
                Some(path) => Some(file(path)?.trim_end_matches(['\r', '\n']).to_owned()),
                None => variable(PASSWORD),
            };
            let user = user.clone();
            let password = password.ok_or(SettingsError::NoPassword)?;
            Some(Credentials { user, password })
        }
    };
    let usual = CassandraOptions::new(config.contact_points.0.clone(), config.keyspace.0.clone());
    Ok(CassandraOptions {
        credentials,
        tls,
        datacenter: config.datacenter.clone(),
        majority: match config.consistency {
            Consistency::Quorum => Majority::Everywhere,
            Consistency::LocalQuorum => Majority::OneDatacenter,
        },
        connections_per_node: config.connections_per_node,
        connect_timeout: config.connect_timeout.duration(),
        request_timeout: config.request_timeout.duration(),
        ..usual
    })
}

/// Why a try to start failed. What is wrong outside may be put right while this process waits.
#[derive(Debug)]
enum NotYet {
    Open(OpenError),
    Check(SchemaError),
    Wrong(Vec<Finding>),
    Engine(EngineError),
}

impl fmt::Display for NotYet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NotYet::Open(error) => error.fmt(f),
            NotYet::Check(error) => error.fmt(f),
            NotYet::Wrong(findings) => {
                let words = |one: &Finding| format!("{}: {}", one.what, one.remedy);
                let all: Vec<String> = findings.iter().map(words).collect();
                f.write_str(&all.join("; "))
            }
            NotYet::Engine(error) => error.fmt(f),
        }
    }
}

/// What is to be started once the cluster is there.
pub struct Starting {
    options: CassandraOptions,
    schema: Schema,
}

impl Starting {
    /// On the cluster of this configuration.
    pub fn new(config: &Config) -> Result<Starting, SettingsError> {
        let options = options(&config.store.cassandra)?;
        let schema = Schema {
            keyspace: options.keyspace.clone(),
            replication: None,
            tables: config.table_names(),
        };
        Ok(Starting { options, schema })
    }

    /// Where the data is, in words.
    pub fn place(&self) -> String {
        format!(
            "data in the keyspace {} of {} (Cassandra)",
            self.options.keyspace,
            self.options.contact_points.join(",")
        )
    }

    /// Starts the engine, trying for as long as this is polled. `engine_options` makes those of an engine on
    /// the store.
    pub async fn run(
        &self,
        engine: &Engine,
        engine_options: impl Fn(Arc<dyn Store>) -> EngineOptions,
    ) {
        let mut pause = PAUSE_MIN;
        loop {
            let why = match self.try_once(engine, &engine_options).await {
                Ok(()) => return,
                Err(why) => why,
            };
            tracing::warn!(
                contact_points = self.options.contact_points.join(","),
                keyspace = %self.options.keyspace,
                next_try_in = ?pause,
                "cannot start yet: {why}{}", self.repair(&why)
            );
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    async fn try_once(
        &self,
        engine: &Engine,
        engine_options: &impl Fn(Arc<dyn Store>) -> EngineOptions,
    ) -> Result<(), NotYet> {
        let opened = CassandraStore::open(self.options.clone()).await;
        let store = opened.map_err(NotYet::Open)?;
        let found = health::check(&self.options, &self.schema).await;
        let (wrong, advice): (Vec<Finding>, Vec<Finding>) = found
            .map_err(NotYet::Check)?
            .into_iter()
            .partition(|one| one.weight == Weight::Wrong);
        if !wrong.is_empty() {
            return Err(NotYet::Wrong(wrong));
        }
        let begun = engine.begin(engine_options(Arc::new(store))).await;
        begun.map_err(NotYet::Engine)?;
        for one in advice {
            tracing::warn!("advice: {}: {}", one.what, one.remedy);
        }
        Ok(())
    }

    /// The command that puts it right, where there is one.
    fn repair(&self, why: &NotYet) -> String {
        let apply = match why {
            NotYet::Open(OpenError::NoSchema { .. } | OpenError::OldSchema { .. }) => true,
            NotYet::Open(OpenError::OtherSchema { found, known, .. }) => found < known,
            NotYet::Wrong(_) => true,
            NotYet::Open(
                OpenError::Settings(_) | OpenError::Refused(_) | OpenError::Unreachable(_),
            )
            | NotYet::Check(_)
            | NotYet::Engine(_) => false,
        };
        if !apply {
            return String::new();
        }
        let mut command = format!(
            " (fermata schema apply --contact-points {}",
            self.options.contact_points.join(",")
        );
        if self.options.keyspace != Keyspace::default() {
            command.push_str(&format!(" --keyspace {}", self.options.keyspace));
        }
        for table in self
            .schema
            .tables
            .iter()
            .filter(|t| t.as_str() != "default")
        {
            command.push_str(&format!(" --table {table}"));
        }
        command + " --replication DATACENTER=3)"
    }
}
