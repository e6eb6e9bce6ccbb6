//! The signals that end the service.

use std::io;

use fermata_command::exit;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::cli::end::end;

/// SIGTERM, SIGINT and SIGHUP, heard from when this is made.
pub struct EndSignals {
    hangup: Signal,
    interrupt: Signal,
    terminate: Signal,
}

impl EndSignals {
    /// Hears them from now on.
    pub fn new() -> Result<EndSignals, io::Error> {
        Ok(EndSignals {
            hangup: signal(SignalKind::hangup())?,
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
        })
    }

    /// The number of the next one.
    pub async fn next(&mut self) -> i32 {
        tokio::select! {
            biased;
            _ = self.terminate.recv() => SignalKind::terminate().as_raw_value(),
            _ = self.interrupt.recv() => SignalKind::interrupt().as_raw_value(),
            // The terminal that it was started from is gone.
            _ = self.hangup.recv() => SignalKind::hangup().as_raw_value(),
        }
    }
}

/// What was acknowledged is durable, so nothing needs an orderly end.
pub fn end_at_once(signal: i32) -> ! {
    end(i32::from(exit::SIGNAL) + signal)
}
