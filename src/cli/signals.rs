//! Signals, except those that were ignored when this process started.

use std::fs::File;
use std::io;
use std::pin::pin;
use std::time::Duration;

use fermata_command::ignored::is_ignored;
use nix::sys::signal::Signal;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::timeout;

const OF_COMMANDS: [Signal; 6] = [
    Signal::SIGINT,
    Signal::SIGTERM,
    Signal::SIGHUP,
    Signal::SIGQUIT,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
];

/// How long a release, or processes after SIGKILL, may delay the end of a command.
pub const END_WITHIN: Duration = Duration::from_secs(2);

/// Receives signals instead of their default action. Signals that this process was started to ignore stay ignored.
pub struct Signals {
    heard: mpsc::Receiver<Signal>,
}

impl Signals {
    /// Receives the signals of a waiting or running command. Must be called inside a Tokio runtime.
    pub fn new() -> io::Result<Signals> {
        Signals::of(&OF_COMMANDS)
    }

    /// Receives these signals. Must be called inside a Tokio runtime.
    pub fn of(signals: &[Signal]) -> io::Result<Signals> {
        let (notify, heard) = mpsc::channel(OF_COMMANDS.len());
        for &number in signals {
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
        Ok(Signals { heard })
    }

    /// The next signal. May be dropped and called again.
    pub async fn next(&mut self) -> Signal {
        match self.heard.recv().await {
            Some(signal) => signal,
            None => std::future::pending().await,
        }
    }

    /// The next signal that ends a wait; other signals are for a command. May be dropped and called again.
    pub async fn next_end(&mut self) -> Signal {
        loop {
            let signal = self.next().await;
            if !matches!(signal, Signal::SIGUSR1 | Signal::SIGUSR2) {
                return signal;
            }
        }
    }

    /// The output of `work`, or the signal that came [`END_WITHIN`] before its end.
    pub async fn finish_soon<T>(&mut self, work: impl Future<Output = T>) -> Result<T, Signal> {
        let mut work = pin!(work);
        let signal = tokio::select! {
            biased;
            done = &mut work => return Ok(done),
            signal = self.next_end() => signal,
        };
        finish_after(signal, work).await
    }

    /// Whether the command has the signal already. A terminal sends the signals of its keys (Ctrl-C, Ctrl-\) to its
    /// whole foreground process group. The sender is unknown: these two count as the terminal's in the foreground.
    pub fn reached_the_group(signal: Signal) -> bool {
        let of_a_key = matches!(signal, Signal::SIGINT | Signal::SIGQUIT);
        of_a_key
            && File::open("/dev/tty").is_ok_and(|terminal| {
                nix::unistd::tcgetpgrp(terminal) == Ok(nix::unistd::getpgrp())
            })
    }
}

/// The output of `work`, or the signal that came before if the work takes longer than [`END_WITHIN`].
pub async fn finish_after<T>(signal: Signal, work: impl Future<Output = T>) -> Result<T, Signal> {
    timeout(END_WITHIN, work).await.map_err(|_| signal)
}
