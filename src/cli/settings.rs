//! The flags that are settings: what `serve` and `check` have in common.

use super::cluster::{ClusterFlags, SettingsFile};
use crate::config::{Config, Flag, Problems, Sources};

const REPLICAS: &str = "Settings for several replicas";
const CLIENTS: &str = "Settings for clients that are not trusted";

/// Flags come before environment variables, those before the file.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "Settings")]
pub struct Settings {
    #[command(flatten)]
    pub file: SettingsFile,

    /// Serve gRPC here, or on unix:/PATH; several with commas between; port 0 takes a free one [default: 127.0.0.1:7450]
    #[arg(long, value_name = "IP:PORT")]
    pub listen: Option<String>,

    /// Keep the data in this directory [default: fermata in the user's data directory]
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<String>,

    /// Keep states and data here: embedded (on this machine), or cassandra [default: embedded]
    #[arg(long, value_name = "KIND")]
    pub store: Option<String>,

    /// Serve without TLS, or everybody, also where other machines can reach it
    #[arg(long)]
    pub insecure: bool,

    /// How long open calls may take to end after SIGTERM [default: 10s]
    #[arg(long, value_name = "SPAN")]
    pub shutdown_grace: Option<String>,

    /// Log for people (text) or for machines (json) [default: text]
    #[arg(long, value_name = "FORMAT")]
    pub log_format: Option<String>,

    /// Log these events: a level, or target=level with commas between [default: info,scylla=warn,h2=error]
    #[arg(long, value_name = "FILTER")]
    pub log_filter: Option<String>,

    #[command(flatten)]
    pub cluster: ClusterFlags,

    /// Encrypt, with this certificate (PEM)
    #[arg(long, value_name = "FILE", help_heading = CLIENTS)]
    pub client_tls_certificate: Option<String>,

    /// The key of that certificate (PEM)
    #[arg(long, value_name = "FILE", help_heading = CLIENTS)]
    pub client_tls_key: Option<String>,

    /// Know clients by certificates that are signed by those in this file (PEM)
    #[arg(long, value_name = "FILE", help_heading = CLIENTS)]
    pub client_tls_ca: Option<String>,

    /// Know clients by the tokens in this file (see `fermata token`)
    #[arg(long, value_name = "FILE", help_heading = CLIENTS)]
    pub tokens_file: Option<String>,

    /// Let each of them do what the rules in this file allow, and nothing else (TOML)
    #[arg(long, value_name = "FILE", help_heading = CLIENTS)]
    pub rules_file: Option<String>,

    /// Take calls of other replicas here [default: nowhere]
    #[arg(long, value_name = "IP:PORT", help_heading = REPLICAS)]
    pub peer_listen: Option<String>,

    /// Where other replicas reach that [default: the address of --peer-listen]
    #[arg(long, value_name = "HOST:PORT", help_heading = REPLICAS)]
    pub advertise: Option<String>,

    /// A file with the secret that all replicas know, of 16 bytes at least
    #[arg(long, value_name = "FILE", help_heading = REPLICAS)]
    pub peer_secret_file: Option<String>,

    /// Encrypt, and trust replicas whose certificates are signed by those in this file (PEM)
    #[arg(long, value_name = "FILE", help_heading = REPLICAS)]
    pub peer_tls_ca: Option<String>,

    /// The certificate of this replica, for where others reach it (PEM)
    #[arg(long, value_name = "FILE", help_heading = REPLICAS)]
    pub peer_tls_certificate: Option<String>,

    /// The key of that certificate (PEM)
    #[arg(long, value_name = "FILE", help_heading = REPLICAS)]
    pub peer_tls_key: Option<String>,
}

impl Settings {
    /// Reads all layers, the environment of this process among them.
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
