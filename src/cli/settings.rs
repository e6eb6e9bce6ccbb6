//! The flags for settings, shared by `serve` and `check`.

use super::cluster::{ClusterFlags, SettingsFile};
use crate::config::{Config, Flag, Problems, Sources};

const REPLICAS: &str = "Settings for several replicas";
const CLIENTS: &str = "Settings for known clients";

/// Flags override environment variables, and these the file.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "Settings")]
pub struct Settings {
    #[command(flatten)]
    pub file: SettingsFile,

    /// Address for gRPC, or unix:/PATH; several with commas; port 0 takes a free one [default: 127.0.0.1:7450]
    #[arg(long, value_name = "IP:PORT")]
    pub listen: Option<String>,

    /// Address for metrics, probes and the console over HTTP [default: none]
    #[arg(long, value_name = "IP:PORT")]
    pub http_listen: Option<String>,

    /// Directory of the embedded store [default: fermata in the user's data directory]
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<String>,

    /// Store: embedded (on this machine), or cassandra [default: embedded]
    #[arg(long, value_name = "KIND")]
    pub store: Option<String>,

    /// Allow addresses that other machines reach, without TLS or without known clients
    #[arg(long)]
    pub insecure: bool,

    /// Time for open calls after SIGTERM [default: 10s]
    #[arg(long, value_name = "SPAN")]
    pub shutdown_grace: Option<String>,

    /// Form of the log: text (for people), or json [default: text]
    #[arg(long, value_name = "FORMAT")]
    pub log_format: Option<String>,

    /// Logged events: a level, or target=level with commas [default: info,scylla=warn,h2=error]
    #[arg(long, value_name = "FILTER")]
    pub log_filter: Option<String>,

    #[command(flatten)]
    pub cluster: ClusterFlags,

    /// Certificate of this server (PEM); turns TLS on
    #[arg(long, value_name = "FILE", help_heading = CLIENTS)]
    pub client_tls_certificate: Option<String>,

    /// Its key (PEM)
    #[arg(long, value_name = "FILE", help_heading = CLIENTS)]
    pub client_tls_key: Option<String>,

    /// CAs of client certificates (PEM)
    #[arg(long, value_name = "FILE", help_heading = CLIENTS)]
    pub client_tls_ca: Option<String>,

    /// Tokens of clients (see `fermata token`)
    #[arg(long, value_name = "FILE", help_heading = CLIENTS)]
    pub tokens_file: Option<String>,

    /// Rules for known clients (TOML); without rules they may do everything
    #[arg(long, value_name = "FILE", help_heading = CLIENTS)]
    pub rules_file: Option<String>,

    /// Address for calls of other replicas [default: none]
    #[arg(long, value_name = "IP:PORT", help_heading = REPLICAS)]
    pub peer_listen: Option<String>,

    /// Address at which other replicas reach this one [default: that of --peer-listen]
    #[arg(long, value_name = "HOST:PORT", help_heading = REPLICAS)]
    pub advertise: Option<String>,

    /// File with the shared secret of all replicas, 16 bytes at least
    #[arg(long, value_name = "FILE", help_heading = REPLICAS)]
    pub peer_secret_file: Option<String>,

    /// CAs of the certificates of replicas (PEM); turns TLS on
    #[arg(long, value_name = "FILE", help_heading = REPLICAS)]
    pub peer_tls_ca: Option<String>,

    /// Certificate of this replica (PEM); it names the host of --advertise
    #[arg(long, value_name = "FILE", help_heading = REPLICAS)]
    pub peer_tls_certificate: Option<String>,

    /// Its key (PEM)
    #[arg(long, value_name = "FILE", help_heading = REPLICAS)]
    pub peer_tls_key: Option<String>,
}

impl Settings {
    /// Reads all layers, with the environment of this process.
    pub fn load(self) -> Result<Config, Problems> {
        let sources = Sources {
            file: self.file.clone().path(),
            environment: Sources::process_environment(),
            flags: self.into_flags(),
        };
        Config::load(&sources)
    }

    fn into_flags(self) -> Vec<Flag> {
        let insecure = self.insecure.then(|| "true".to_owned());
        [
            ("--listen", "listen", self.listen),
            ("--http-listen", "http.listen", self.http_listen),
            ("--data-dir", "data_dir", self.data_dir),
            ("--store", "store.kind", self.store),
            ("--insecure", "insecure", insecure),
            ("--shutdown-grace", "shutdown_grace", self.shutdown_grace),
            ("--log-format", "log.format", self.log_format),
            ("--log-filter", "log.filter", self.log_filter),
            (
                "--client-tls-certificate",
                "tls.cert_file",
                self.client_tls_certificate,
            ),
            ("--client-tls-key", "tls.key_file", self.client_tls_key),
            ("--client-tls-ca", "tls.client_ca_file", self.client_tls_ca),
            ("--tokens-file", "auth.tokens_file", self.tokens_file),
            ("--rules-file", "auth.rules_file", self.rules_file),
            ("--peer-listen", "peers.listen", self.peer_listen),
            ("--advertise", "peers.advertise", self.advertise),
            (
                "--peer-secret-file",
                "peers.secret_file",
                self.peer_secret_file,
            ),
            ("--peer-tls-ca", "peers.tls.ca_file", self.peer_tls_ca),
            (
                "--peer-tls-certificate",
                "peers.tls.cert_file",
                self.peer_tls_certificate,
            ),
            ("--peer-tls-key", "peers.tls.key_file", self.peer_tls_key),
        ]
        .into_iter()
        .filter_map(|(name, key, value)| {
            let key = key.to_owned();
            value.map(|value| Flag { name, key, value })
        })
        .chain(self.cluster.into_flags())
        .collect()
    }
}
