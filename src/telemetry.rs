//! Telemetry: the form and the filter of the log, and the export of traces.
//!
//! Logs go to stderr. Lines that stderr does not accept are dropped. Stdout is for the answers of commands. An event holds no value,
//! and no secret of a holder.

mod traces;

use std::io::{self, IsTerminal, Write};
use std::sync::Arc;

use parking_lot::Mutex;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::{FilterExt as _, LevelFilter, ParseError, filter_fn};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::reload;
use tracing_subscriber::util::{SubscriberInitExt, TryInitError};
use tracing_subscriber::{Layer as _, Registry, fmt};

pub use traces::Traces;

use crate::config::{LogConfig, LogFormat};
use crate::trace::TARGET;

/// Why logging could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// The filter is malformed. Correct `log.filter`.
    #[error("log.filter: {0}")]
    Filter(#[from] ParseError),
    /// The filter is empty, or a part of it is neither a level nor TARGET=LEVEL.
    #[error("{0}")]
    Malformed(String),
    /// The process does not log any more.
    #[error("the filter cannot be replaced: {0}")]
    Replaced(#[from] reload::Error),
    /// Logging was set up before.
    #[error("logging was set up before: {0}")]
    Taken(#[from] TryInitError),
}

/// The filter of a process that logs; it can be replaced.
#[derive(Clone)]
pub struct LogFilter {
    handle: reload::Handle<EnvFilter, Registry>,
    /// As it was written.
    text: Arc<Mutex<String>>,
}

impl LogFilter {
    /// Puts this filter in force. Returns the one before.
    pub fn replace(&self, filter: &str) -> Result<String, TelemetryError> {
        let parsed = EnvFilter::builder().parse(filter)?;
        let mut text = self.text.lock();
        self.handle.reload(parsed)?;
        Ok(std::mem::replace(&mut *text, filter.to_owned()))
    }

    /// The same for an operator who changes it from afar: the audit log stays, unless the filter names it.
    pub fn set(&self, filter: &str) -> Result<String, TelemetryError> {
        check(filter)?;
        match filter.contains(AUDIT) {
            true => self.replace(filter),
            false => self.replace(&format!("{filter},{AUDIT}=info")),
        }
    }
}

/// The target of the audit log.
const AUDIT: &str = "fermata::audit";

/// Refuses filters that are probably mistyped. The library takes a word that is no level for a target with all its events: `inof`
/// would silence all others.
fn check(filter: &str) -> Result<(), TelemetryError> {
    for part in filter.split(',').map(str::trim) {
        let is_level = part.parse::<LevelFilter>().is_ok();
        if part.is_empty() || !(is_level || part.contains(['=', '['])) {
            return Err(TelemetryError::Malformed(format!(
                "{part:?} is neither a level (error, warn, info, debug, trace, off) nor TARGET=LEVEL"
            )));
        }
    }
    Ok(())
}

/// Sets logging up for this process, once, and the export of traces.
pub fn init(config: &LogConfig, traces: Option<&Traces>) -> Result<LogFilter, TelemetryError> {
    let (filter, handle) = reload::Layer::new(EnvFilter::builder().parse(&config.filter)?);
    // Spans of traces are no part of the log, however much it says.
    let filter = filter.and(filter_fn(|of| of.target() != TARGET));
    let lines = fmt::layer()
        .log_internal_errors(false)
        .with_writer(|| Stderr);
    let lines = match config.format {
        LogFormat::Text => lines.compact().with_ansi(wants_colour()).boxed(),
        LogFormat::Json => lines.json().flatten_event(true).boxed(),
    };
    let mut layers = vec![lines.with_filter(filter).boxed()];
    layers.extend(traces.map(|traces| traces.layer().boxed()));
    tracing_subscriber::registry().with(layers).try_init()?;
    if let Some(traces) = traces {
        traces.begin();
    }
    Ok(LogFilter {
        handle,
        text: Arc::new(Mutex::new(config.filter.clone())),
    })
}

/// Stderr with a full disk, or without a reader, stops no thread that logs: its lines are dropped.
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
