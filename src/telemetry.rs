//! Logging: what `tracing` events and spans look like, and which are written.
//!
//! Logs go to stderr; stdout belongs to what a command answers. No value, and nothing that lets its
//! reader act as a holder, may be in an event.

use std::io::{self, IsTerminal};

use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::ParseError;
use tracing_subscriber::reload;
use tracing_subscriber::util::{SubscriberInitExt, TryInitError};

use crate::config::{LogConfig, LogFormat};

/// Why logging could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// The filter is malformed. Correct `log.filter`.
    #[error("log.filter: {0}")]
    Filter(#[from] ParseError),
    /// The process logs no more.
    #[error("the filter cannot be replaced: {0}")]
    Replaced(#[from] reload::Error),
    /// The process logs already.
    #[error("logging was set up before: {0}")]
    Taken(#[from] TryInitError),
}

/// Which events are written, as it may be changed while the process logs.
pub struct LogFilter(Box<Replace>);

type Replace = dyn Fn(EnvFilter) -> Result<(), reload::Error> + Send + Sync;

impl LogFilter {
    /// From now on this filter is in force.
    pub fn replace(&self, filter: &str) -> Result<(), TelemetryError> {
        let filter = EnvFilter::builder().parse(filter)?;
        Ok((self.0)(filter)?)
    }
}

/// Sets logging up for this process, once.
pub fn init(config: &LogConfig) -> Result<LogFilter, TelemetryError> {
    let filter = EnvFilter::builder().parse(&config.filter)?;
    let lines = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr);
    Ok(match config.format {
        LogFormat::Text => {
            let lines = lines.compact().with_ansi(wants_colour());
            let lines = lines.with_filter_reloading();
            let handle = lines.reload_handle();
            lines.finish().try_init()?;
            LogFilter(Box::new(move |filter| handle.reload(filter)))
        }
        LogFormat::Json => {
            let lines = lines.json().flatten_event(true).with_filter_reloading();
            let handle = lines.reload_handle();
            lines.finish().try_init()?;
            LogFilter(Box::new(move |filter| handle.reload(filter)))
        }
    })
}

/// Colour is for people: on a terminal, unless they said no (<https://no-color.org>).
fn wants_colour() -> bool {
    io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}
