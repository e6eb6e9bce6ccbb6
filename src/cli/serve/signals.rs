//! The signals that end the service, and the one that has it read its files again.

use std::io;

use fermata_command::exit;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

use crate::cli::end::end;
use fermata_command::ignored::is_ignored;

/// SIGTERM and SIGINT, and SIGHUP, heard from when this is made.
pub struct EndSignals {
    hangup: Option<Signal>,
    interrupt: Option<Signal>,
    terminate: Option<Signal>,
    reload: watch::Sender<()>,
    /// As it was at first.
    asked: watch::Receiver<()>,
}

impl EndSignals {
    /// Hears them from now on.
    pub fn new() -> Result<EndSignals, io::Error> {
        let (reload, asked) = watch::channel(());
        Ok(EndSignals {
            hangup: heard(SignalKind::hangup())?,
            interrupt: heard(SignalKind::interrupt())?,
            terminate: heard(SignalKind::terminate())?,
            reload,
            asked,
        })
    }

    /// Changes with each SIGHUP that comes, or came, while [`EndSignals::next`] is awaited.
    pub fn reload(&self) -> watch::Receiver<()> {
        self.asked.clone()
    }

    /// The number of the next one that ends the service.
    pub async fn next(&mut self) -> i32 {
        loop {
            tokio::select! {
                biased;
                () = next(&mut self.terminate) => return SignalKind::terminate().as_raw_value(),
                () = next(&mut self.interrupt) => return SignalKind::interrupt().as_raw_value(),
                () = next(&mut self.hangup) => self.reload.send_replace(()),
            }
        }
    }
}

/// `None` where it was started to ignore it.
fn heard(kind: SignalKind) -> Result<Option<Signal>, io::Error> {
    match is_ignored(kind.as_raw_value()) {
        true => Ok(None),
        false => signal(kind).map(Some),
    }
}

async fn next(heard: &mut Option<Signal>) {
    let came = match heard {
        Some(heard) => heard.recv().await,
        None => None,
    };
    if came.is_none() {
        std::future::pending().await
    }
}

/// What was acknowledged is durable, so nothing needs an orderly end.
pub fn end_at_once(signal: i32) -> ! {
    end(i32::from(exit::SIGNAL) + signal)
}
