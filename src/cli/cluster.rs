//! The connection of commands to Cassandra: shared flags, and the options that settings and flags give.

use std::path::{Path, PathBuf};

use clap::builder::{OsStringValueParser, TypedValueParser as _};
use fermata_cassandra::{
    CassandraOptions, CassandraTls, ClientCertificate, Credentials, Keyspace, Majority,
};
use fermata_command::remote::variable;
use fermata_command::{Failure, exit};

use crate::config::{CassandraConfig, Config, Consistency, Flag, Problems, Sources};
use crate::lock::TableName;

/// The variable of the password.
const PASSWORD_VARIABLE: &str = "FERMATA_CASSANDRA_PASSWORD";

/// The file with settings.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "Settings")]
pub struct SettingsFile {
    /// File with settings (TOML)
    #[arg(long, value_name = "FILE", env = "FERMATA_CONFIG",
          value_parser = OsStringValueParser::new().map(PathBuf::from))]
    config: Option<PathBuf>,
}

impl SettingsFile {
    /// The file. An empty variable names none.
    pub fn path(self) -> Option<PathBuf> {
        self.config.filter(|path| !path.as_os_str().is_empty())
    }
}

/// The flags for settings of Cassandra.
#[derive(Debug, Clone, Default, PartialEq, Eq, clap::Args)]
#[command(next_help_heading = "Settings for Cassandra")]
pub struct ClusterFlags {
    /// First nodes to ask, HOST or HOST:PORT, with commas
    #[arg(long, value_name = "HOSTS")]
    contact_points: Option<String>,

    /// Keyspace of the tables [default: fermata]
    #[arg(long, value_name = "NAME")]
    keyspace: Option<String>,

    /// User of the login [default: no login]
    #[arg(long, value_name = "NAME")]
    user: Option<String>,

    /// File with the password alone [default: the variable FERMATA_CASSANDRA_PASSWORD]
    #[arg(long, value_name = "FILE")]
    password_file: Option<String>,

    /// Preferred datacenter; with local_quorum that of the majority
    #[arg(long, value_name = "NAME")]
    datacenter: Option<String>,

    /// Majority that must agree: quorum, or local_quorum for a keyspace in one datacenter [default: quorum]
    #[arg(long, value_name = "WHOSE")]
    consistency: Option<String>,

    /// CAs of the nodes (PEM); turns TLS on
    #[arg(long, value_name = "FILE")]
    tls_ca: Option<String>,

    /// Certificate of this client (PEM)
    #[arg(long, value_name = "FILE")]
    tls_certificate: Option<String>,

    /// Its key (PEM)
    #[arg(long, value_name = "FILE")]
    tls_key: Option<String>,

    /// Whether a node's certificate must name its address [default: true]
    #[arg(long, value_name = "BOOL")]
    tls_verify_host: Option<String>,

    /// Client library: scylla, or cassandra-cpp if built in [default: scylla]
    #[arg(long, value_name = "NAME")]
    driver: Option<String>,
}

impl ClusterFlags {
    /// The keyspace alone.
    pub fn of_keyspace(name: Option<String>) -> ClusterFlags {
        ClusterFlags {
            keyspace: name,
            ..ClusterFlags::default()
        }
    }

    /// As settings.
    pub fn into_flags(self) -> impl Iterator<Item = Flag> {
        [
            ("--contact-points", "contact_points", self.contact_points),
            ("--keyspace", "keyspace", self.keyspace),
            ("--user", "user", self.user),
            ("--password-file", "password_file", self.password_file),
            ("--datacenter", "datacenter", self.datacenter),
            ("--consistency", "consistency", self.consistency),
            ("--tls-ca", "tls.ca_file", self.tls_ca),
            ("--tls-certificate", "tls.cert_file", self.tls_certificate),
            ("--tls-key", "tls.key_file", self.tls_key),
            ("--tls-verify-host", "tls.verify_host", self.tls_verify_host),
            ("--driver", "driver", self.driver),
        ]
        .into_iter()
        .filter_map(|(name, key, value)| {
            let key = format!("store.cassandra.{key}");
            value.map(|value| Flag { name, key, value })
        })
    }

    /// Reads all layers for a command that needs the cluster alone.
    pub fn load(self, file: SettingsFile) -> Result<Config, Problems> {
        self.load_with(file, Config::check_cluster)
    }

    /// Reads all layers for a command without a cluster.
    pub fn load_names(self, file: SettingsFile) -> Result<Config, Problems> {
        self.load_with(file, |_| Ok(()))
    }

    fn load_with(
        self,
        file: SettingsFile,
        check: impl FnOnce(&Config) -> Result<(), Vec<String>>,
    ) -> Result<Config, Problems> {
        let sources = Sources {
            file: file.path(),
            environment: Sources::process_environment(),
            flags: self.into_flags().collect(),
        };
        Config::load_with(&sources, check)
    }
}

/// Unusable settings. Correct them and start again.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// A file cannot be read.
    #[error("{setting}: cannot read {path}: {error}")]
    File {
        /// Its setting.
        setting: &'static str,
        /// Its path.
        path: PathBuf,
        /// The error of the system.
        error: std::io::Error,
    },
    /// A user without a password.
    #[error(
        "store.cassandra.user is set, and there is no password: set store.cassandra.password_file \
         (--password-file) or {PASSWORD_VARIABLE}"
    )]
    NoPassword,
}

impl From<SettingsError> for Failure {
    fn from(error: SettingsError) -> Failure {
        Failure::new(exit::CONFIG, error.to_string())
    }
}

impl From<Problems> for Failure {
    fn from(problems: Problems) -> Failure {
        Failure::new(exit::CONFIG, problems.to_string())
    }
}

/// Reads the text file of a setting.
pub fn file(setting: &'static str, path: &Path) -> Result<String, SettingsError> {
    std::fs::read_to_string(path).map_err(|error| SettingsError::File {
        setting,
        path: path.to_owned(),
        error,
    })
}

/// The options for a cluster; reads the password.
pub fn options(config: &CassandraConfig) -> Result<CassandraOptions, SettingsError> {
    let client = match (&config.tls.cert_file, &config.tls.key_file) {
        (Some(certificate), Some(key)) => Some(ClientCertificate {
            certificate_file: certificate.clone(),
            key_file: key.clone(),
        }),
        // The configuration refuses one without the other.
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
                Some(path) => {
                    let text = file("store.cassandra.password_file", path)?;
                    Some(text.trim_end_matches(['\r', '\n']).to_owned())
                }
                None => variable(PASSWORD_VARIABLE),
            };
            let user = user.clone();
            let password = password.ok_or(SettingsError::NoPassword)?;
            Some(Credentials { user, password })
        }
    };
    let usual = CassandraOptions::new(config.contact_points.0.clone(), config.keyspace.0.clone());
    Ok(CassandraOptions {
        driver: config.driver.kind(),
        credentials,
        tls,
        datacenter: config.datacenter.clone(),
        majority: match config.consistency {
            Consistency::Quorum => Majority::Everywhere,
            Consistency::LocalQuorum => Majority::OneDatacenter,
        },
        connections_per_node: config.connections_per_node,
        transactions_max: config.transactions_max,
        connect_timeout: config.connect_timeout.duration(),
        request_timeout: config.request_timeout.duration(),
        ..usual
    })
}

/// `fermata schema apply` for this cluster and these tables. It needs the login and TLS of this command as well.
pub fn apply_command(config: &CassandraConfig, tables: &[TableName]) -> String {
    let mut command = format!(
        "fermata schema apply --contact-points {}",
        config.contact_points.0.join(",")
    );
    if config.keyspace.0 != Keyspace::default() {
        command.push_str(&format!(" --keyspace {}", config.keyspace.0.as_str()));
    }
    for table in tables
        .iter()
        .filter(|table| **table != TableName::default_table())
    {
        command.push_str(&format!(" --table {table}"));
    }
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flags(pairs: &[(&'static str, &str)]) -> Config {
        let flags = pairs.iter().map(|(key, value)| Flag {
            name: "--flag",
            key: format!("store.cassandra.{key}"),
            value: (*value).to_owned(),
        });
        let sources = Sources {
            flags: flags.collect(),
            ..Sources::default()
        };
        Config::load_with(&sources, Config::check_cluster).unwrap()
    }

    #[test]
    fn a_command_names_the_cluster_the_keyspace_and_the_tables() {
        let config = flags(&[("contact_points", "a,b:9043")]);
        assert_eq!(
            apply_command(&config.store.cassandra, &[TableName::default_table()]),
            "fermata schema apply --contact-points a,b:9043"
        );
        let config = flags(&[("contact_points", "a"), ("keyspace", "locks")]);
        assert_eq!(
            apply_command(
                &config.store.cassandra,
                &[TableName::parse("orders").unwrap()]
            ),
            "fermata schema apply --contact-points a --keyspace locks --table orders"
        );
    }
}
