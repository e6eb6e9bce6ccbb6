//! Logging: what `tracing` events and spans look like, and which are written.
//!
//! Logs go to stderr; stdout belongs to what a command answers. No value, and nothing that lets its
//! reader act as a holder, may be in an event.

use std::io::{self, IsTerminal};

use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::ParseError;
use tracing_subscriber::util::{SubscriberInitExt, TryInitError};

use crate::config::{LogConfig, LogFormat};

/// Why logging could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// The filter is malformed. Correct `log.filter`.
    #[error("log.filter: {0}")]
    Filter(#[from] ParseError),
    /// The process logs already.
    #[error("logging was set up before: {0}")]
    Taken(#[from] TryInitError),
}

/// Sets logging up for this process, once.
pub fn init(config: &LogConfig) -> Result<(), TelemetryError> {
    let filter = EnvFilter::builder().parse(&config.filter)?;
    let lines = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr);
    match config.format {
        LogFormat::Text => lines
            .compact()
            .with_ansi(wants_colour())
            .finish()
            .try_init()?,
        LogFormat::Json => lines.json().flatten_event(true).finish().try_init()?,
    }
    Ok(())
}

/// Colour is for people: on a terminal, unless they said no (<https://no-color.org>).
fn wants_colour() -> bool {
    io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}
