//! The signals that a waiting or running command hears.

use std::fs::File;
use std::io;

use nix::sys::signal::Signal;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use super::ignored::is_ignored;

/// What is heard.
const HEARD: [Signal; 6] = [
    Signal::SIGINT,
    Signal::SIGTERM,
    Signal::SIGHUP,
    Signal::SIGQUIT,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
];

/// Hears signals from when it is made, but for those that it was started to ignore: they do not end this process any more.
pub struct Signals {
    heard: mpsc::Receiver<Signal>,
    terminal: Option<File>,
}

impl Signals {
    /// Starts to hear. Must be called inside a Tokio runtime.
    pub fn new() -> io::Result<Signals> {
        let (notify, heard) = mpsc::channel(HEARD.len());
        let heard_here = HEARD
            .into_iter()
            .filter(|number| !is_ignored(*number as i32));
        for number in heard_here.collect::<Vec<_>>() {
            let mut stream = signal(SignalKind::from_raw(number as i32))?;
            let notify = notify.clone();
            tokio::spawn(async move {
                while stream.recv().await.is_some() {
                    if notify.send(number).await.is_err() {
                        return;
                    }
                }
            });
        }
        Ok(Signals {
            heard,
            terminal: File::open("/dev/tty").ok(),
        })
    }

    /// The next one. May be dropped and called again.
    pub async fn next(&mut self) -> Signal {
        match self.heard.recv().await {
            Some(signal) => signal,
            None => std::future::pending().await,
        }
    }

    /// Whether a command that shares this process's group has the signal already. A terminal gives the
    /// signals of its keys (Ctrl-C, Ctrl-\) to its whole foreground process group. Where a signal came from
    /// cannot be seen, so while in the foreground these two are taken to be the terminal's.
    pub fn reached_the_group(&self, signal: Signal) -> bool {
        let of_a_key = matches!(signal, Signal::SIGINT | Signal::SIGQUIT);
        of_a_key
            && self.terminal.as_ref().is_some_and(|terminal| {
                nix::unistd::tcgetpgrp(terminal) == Ok(nix::unistd::getpgrp())
            })
    }
}

/// Whether a signal ends a wait. The others are for the command, and there is none yet.
pub fn ends_a_wait(signal: Signal) -> bool {
    matches!(
        signal,
        Signal::SIGINT | Signal::SIGTERM | Signal::SIGHUP | Signal::SIGQUIT
    )
}
