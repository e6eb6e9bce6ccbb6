//! Logging: what `tracing` events and spans look like, and which are written.
//!
//! Logs go to stderr; where that takes none they are left out. Stdout belongs to what a command answers. No value, and nothing that lets its
//! reader act as a holder, may be in an event.

use std::io::{self, IsTerminal, Write};
use std::sync::Arc;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::ParseError;
use tracing_subscriber::reload;
use tracing_subscriber::util::{SubscriberInitExt, TryInitError};

use crate::config::{LogConfig, LogFormat};

/// The target of the HTTP/2 library.
const HTTP2: &str = "h2";

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
#[derive(Clone)]
pub struct LogFilter(Arc<Replace>);

type Replace = dyn Fn(EnvFilter) -> Result<(), reload::Error> + Send + Sync;

impl LogFilter {
    /// From now on this filter is in force.
    pub fn replace(&self, filter: &str) -> Result<(), TelemetryError> {
        Ok((self.0)(parsed(filter)?)?)
    }
}

/// The filter, and what it does not say: whoever speaks HTTP/2 with us can have that library warn as often as they like.
fn parsed(filter: &str) -> Result<EnvFilter, ParseError> {
    let names_http2 = filter
        .split(',')
        .any(|directive| directive.trim().starts_with(HTTP2));
    match names_http2 || filter.trim().is_empty() {
        true => EnvFilter::builder().parse(filter),
        false => EnvFilter::builder().parse(format!("{filter},{HTTP2}=error")),
    }
}

/// Sets logging up for this process, once.
pub fn init(config: &LogConfig) -> Result<LogFilter, TelemetryError> {
    let filter = parsed(&config.filter)?;
    let lines = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .log_internal_errors(false)
        .with_writer(|| Stderr);
    Ok(match config.format {
        LogFormat::Text => {
            let lines = lines.compact().with_ansi(wants_colour());
            let lines = lines.with_filter_reloading();
            let handle = lines.reload_handle();
            lines.finish().try_init()?;
            LogFilter(Arc::new(move |filter| handle.reload(filter)))
        }
        LogFormat::Json => {
            let lines = lines.json().flatten_event(true).with_filter_reloading();
            let handle = lines.reload_handle();
            lines.finish().try_init()?;
            LogFilter(Arc::new(move |filter| handle.reload(filter)))
        }
    })
}

/// What it does not take, since its disk is full, or nobody reads it any more, is left out: whoever logs goes on.
struct Stderr;

impl Write for Stderr {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let _ = io::stderr().write_all(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Colour is for people: on a terminal, unless they said no (<https://no-color.org>).
fn wants_colour() -> bool {
    let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    let is_dumb = variable("TERM").is_none_or(|term| term == "dumb");
    io::stderr().is_terminal() && variable("NO_COLOR").is_none() && !is_dumb
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_the_http2_library_errors_are_shown_unless_the_filter_names_it() {
        for (given, shown) in [
            ("info", true),
            ("warn,fermata=debug", true),
            ("info,h2=trace", false),
            ("h2::proto=warn,info", false),
            ("", false),
        ] {
            let filter = parsed(given).unwrap().to_string();
            assert_eq!(filter.contains("h2=error"), shown, "{given}: {filter}");
        }
        assert!(parsed("x=loud").is_err());
    }
}
