//! The signals that end the service, and the one that has it read its files again.

use std::io;
use std::sync::Arc;

use fermata_command::exit;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::Notify;

use crate::cli::end::end;

/// SIGTERM and SIGINT, and SIGHUP, heard from when this is made.
pub struct EndSignals {
    hangup: Signal,
    interrupt: Signal,
    terminate: Signal,
    reload: Arc<Notify>,
}

impl EndSignals {
    /// Hears them from now on.
    pub fn new() -> Result<EndSignals, io::Error> {
        Ok(EndSignals {
            hangup: signal(SignalKind::hangup())?,
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            reload: Arc::new(Notify::new()),
        })
    }

    /// Is notified of each SIGHUP that comes while [`EndSignals::next`] is awaited.
    pub fn reload(&self) -> Arc<Notify> {
        Arc::clone(&self.reload)
    }

    /// The number of the next one that ends the service.
    pub async fn next(&mut self) -> i32 {
        loop {
            tokio::select! {
                biased;
                _ = self.terminate.recv() => return SignalKind::terminate().as_raw_value(),
                _ = self.interrupt.recv() => return SignalKind::interrupt().as_raw_value(),
                Some(()) = self.hangup.recv() => self.reload.notify_one(),
            }
        }
    }
}

/// What was acknowledged is durable, so nothing needs an orderly end.
pub fn end_at_once(signal: i32) -> ! {
    end(i32::from(exit::SIGNAL) + signal)
}
