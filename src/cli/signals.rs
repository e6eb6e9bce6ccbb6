//! The signals that a waiting or running command hears.

use std::fs::File;
use std::io;
use std::pin::pin;
use std::time::Duration;

use fermata_command::ignored::is_ignored;
use nix::sys::signal::Signal;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::timeout;

const HEARD: [Signal; 6] = [
    Signal::SIGINT,
    Signal::SIGTERM,
    Signal::SIGHUP,
    Signal::SIGQUIT,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
];

/// How long a release may hold up the end of the process after a signal.
const AFTER_SIGNAL_MAX: Duration = Duration::from_secs(2);

/// Hears signals from when it is made, but for those that this process was started to ignore. They do not end the process any more.
pub struct Signals {
    heard: mpsc::Receiver<Signal>,
    terminal: Option<File>,
}

impl Signals {
    /// Starts to hear. Must be called inside a Tokio runtime.
    pub fn new() -> io::Result<Signals> {
        let (notify, heard) = mpsc::channel(HEARD.len());
        for number in HEARD {
            if is_ignored(number as i32) {
                continue;
            }
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

    /// The next one that ends a wait. May be dropped and called again.
    pub async fn next_end(&mut self) -> Signal {
        loop {
            let signal = self.next().await;
            if ends_a_wait(signal) {
                return signal;
            }
        }
    }

    /// The output of `work`; the signal, where one came and the work was not done 2 s later.
    pub async fn finish_soon<T>(&mut self, work: impl Future<Output = T>) -> Result<T, Signal> {
        let mut work = pin!(work);
        let signal = tokio::select! {
            biased;
            done = &mut work => return Ok(done),
            signal = self.next_end() => signal,
        };
        finish_after(signal, work).await
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

/// The output of `work`; the signal that came before, where the work is not done within 2 s.
pub async fn finish_after<T>(signal: Signal, work: impl Future<Output = T>) -> Result<T, Signal> {
    timeout(AFTER_SIGNAL_MAX, work).await.map_err(|_| signal)
}

/// Whether a signal ends a wait. The others are for the command, and there is none yet.
pub fn ends_a_wait(signal: Signal) -> bool {
    matches!(
        signal,
        Signal::SIGINT | Signal::SIGTERM | Signal::SIGHUP | Signal::SIGQUIT
    )
}
