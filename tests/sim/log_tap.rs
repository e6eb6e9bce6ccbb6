//! What replicas and clients log is in the trace as well; and some of it must never be said.

use std::fmt::{self, Write as _};
use std::sync::Arc;

use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::subscriber::DefaultGuard;
use tracing::{Event, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::{Context, SubscriberExt as _};
use tracing_subscriber::util::SubscriberInitExt as _;

use super::log::Log;

/// No fault around the service makes one of its tasks do this.
const NEVER: &str = "a panic lost the state of a key";

struct LogTap(Arc<Log>);

/// From now on what this thread logs is heard, for as long as the guard is there.
pub fn listen(log: &Arc<Log>) -> DefaultGuard {
    let log_tap = LogTap(Arc::clone(log)).with_filter(LevelFilter::INFO);
    tracing_subscriber::registry().with(log_tap).set_default()
}

impl<S: Subscriber> Layer<S> for LogTap {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let metadata = event.metadata();
        if !metadata.target().starts_with("fermata") {
            return;
        }
        let mut line = Line::default();
        event.record(&mut line);
        let line = format!("{}{}", line.message, line.fields);
        self.0.note(metadata.level(), &line);
        if line.contains(NEVER) {
            self.0.violation(format_args!("somebody logs: {line}"));
        }
    }
}

#[derive(Default)]
struct Line {
    message: String,
    fields: String,
}

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // Writing to a text does not fail.
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.fields, " {name}={value:?}"),
        };
    }
}
