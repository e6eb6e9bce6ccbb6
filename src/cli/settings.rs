//! The flags that are settings: what `serve` and `check` have in common.

use std::path::PathBuf;

use crate::config::{Config, Flag, Problems, Sources};

/// Flags come before environment variables, those before the file.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "Settings")]
pub struct Settings {
    /// Read settings from this TOML file (none is read unless it is named)
    #[arg(long, value_name = "FILE", env = "FERMATA_CONFIG")]
    pub config: Option<PathBuf>,

    /// Serve gRPC here; several with commas between; port 0 takes a free one [default: 127.0.0.1:7450]
    #[arg(long, value_name = "IP:PORT")]
    pub listen: Option<String>,

    /// Keep the data in this directory [default: fermata in the user's data directory]
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<String>,

    /// Serve without TLS also where other machines can reach it
    #[arg(long)]
    pub insecure: bool,

    /// How long open calls may take to end after SIGTERM [default: 10s]
    #[arg(long, value_name = "SPAN")]
    pub shutdown_grace: Option<String>,

    /// Log for people (text) or for machines (json) [default: text]
    #[arg(long, value_name = "FORMAT")]
    pub log_format: Option<String>,

    /// Log these events: a level, or target=level with commas between [default: info]
    #[arg(long, value_name = "FILTER")]
    pub log_filter: Option<String>,
}

impl Settings {
    /// Reads all layers, the environment of this process among them.
    pub fn load(self) -> Result<Config, Problems> {
        Config::load(&Sources {
            file: self.config.clone(),
            environment: Sources::process_environment(),
            flags: self.into_flags(),
        })
    }

    fn into_flags(self) -> Vec<Flag> {
        let insecure = self.insecure.then(|| "true".to_owned());
        [
            ("--listen", "listen", self.listen),
            ("--data-dir", "data_dir", self.data_dir),
            ("--insecure", "insecure", insecure),
            ("--shutdown-grace", "shutdown_grace", self.shutdown_grace),
            ("--log-format", "log.format", self.log_format),
            ("--log-filter", "log.filter", self.log_filter),
        ]
        .into_iter()
        .filter_map(|(name, key, value)| value.map(|value| Flag { name, key, value }))
        .collect()
    }
}
