//! The signals that a waiting or running command hears.

use std::fs::File;
use std::io;
use std::pin::pin;
use std::time::Duration;

use nix::sys::signal::Signal;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};

use fermata_command::ignored::is_ignored;

/// What is heard.
const HEARD: [Signal; 6] = [
    Signal::SIGINT,
    Signal::SIGTERM,
    Signal::SIGHUP,
    Signal::SIGQUIT,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
];

/// How long what ends a command may go on after a signal.
pub const AFTER_SIGNAL_MAX: Duration = Duration::from_secs(2);

/// What comes sooner after a signal is no second one: `timeout` sends its own to its child, and to the group of that; others send
/// two different ones. It is the time from hearing one to hearing the next: a process that was stopped meanwhile hears both at once.
const ECHO_MAX: Duration = Duration::from_millis(200);

/// Whether a signal that comes so long after another one is no second one.
pub fn is_echo(after: Duration) -> bool {
    after < ECHO_MAX
}

/// Hears signals from when it is made, but for those that it was started to ignore: they do not end this process any more.
pub struct Signals {
    heard: mpsc::Receiver<(Signal, Instant)>,
    /// When the last one came that ends a wait, echoes aside.
    last_end: Option<Instant>,
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
                    if notify.send((number, Instant::now())).await.is_err() {
                        return;
                    }
                }
            });
        }
        Ok(Signals {
            heard,
            last_end: None,
            terminal: File::open("/dev/tty").ok(),
        })
    }

    /// The next one. May be dropped and called again.
    pub async fn next(&mut self) -> Signal {
        let Some((signal, at)) = self.heard.recv().await else {
            return std::future::pending().await;
        };
        if ends_a_wait(signal) {
            self.last_end = Some(at);
        }
        signal
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

    /// The next one that ends a wait, and did not come together with the one before. May be dropped and called again.
    pub async fn next_insisting(&mut self) -> Signal {
        loop {
            let before = self.last_end;
            let signal = self.next_end().await;
            let both = before.zip(self.last_end);
            if both.is_none_or(|(before, at)| !is_echo(at.saturating_duration_since(before))) {
                return signal;
            }
            self.last_end = before;
        }
    }

    /// What `work` gives, unless a signal comes and it is not done within two seconds of that, or not before a second one: then
    /// the first one. (Not at once: a Ctrl-C that ended the command may be heard here only after that end.)
    pub async fn finish_soon<T>(&mut self, work: impl Future<Output = T>) -> Result<T, Signal> {
        let mut work = pin!(work);
        let first = tokio::select! {
            biased;
            done = &mut work => return Ok(done),
            signal = self.next_end() => signal,
        };
        self.finish_after(first, work).await
    }

    /// The same once the first signal has come: right after it.
    pub async fn finish_after<T>(
        &mut self,
        first: Signal,
        work: impl Future<Output = T>,
    ) -> Result<T, Signal> {
        tokio::select! {
            biased;
            done = timeout(AFTER_SIGNAL_MAX, work) => done.map_err(|_| first),
            _ = self.next_insisting() => Err(first),
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

#[cfg(test)]
mod tests {
    use std::future::pending;

    use tokio::time::sleep;

    use super::*;

    /// Hears what is sent here.
    fn signals() -> (mpsc::Sender<(Signal, Instant)>, Signals) {
        let (notify, heard) = mpsc::channel(HEARD.len());
        let signals = Signals {
            heard,
            last_end: None,
            terminal: None,
        };
        (notify, signals)
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_done_soon_after_a_signal_is_done() {
        let (notify, mut signals) = signals();
        let work = || async {
            sleep(Duration::from_secs(1)).await;
            7
        };
        assert_eq!(signals.finish_soon(work()).await, Ok(7));
        notify.send((Signal::SIGINT, Instant::now())).await.unwrap();
        assert_eq!(signals.finish_soon(work()).await, Ok(7));
    }

    #[tokio::test(start_paused = true)]
    async fn what_takes_longer_is_left_after_a_while_or_at_a_second_signal() {
        let later = Duration::from_secs(1);
        for (second, left_after) in [
            (None, AFTER_SIGNAL_MAX),
            (Some((Signal::SIGINT, later)), later),
            // The same one once more.
            (
                Some((Signal::SIGTERM, Duration::from_millis(50))),
                AFTER_SIGNAL_MAX,
            ),
            // That one is for a command.
            (Some((Signal::SIGUSR1, later)), AFTER_SIGNAL_MAX),
        ] {
            let (notify, mut signals) = signals();
            notify
                .send((Signal::SIGTERM, Instant::now()))
                .await
                .unwrap();
            let start = Instant::now();
            let sending = async {
                if let Some((signal, after)) = second {
                    sleep(after).await;
                    notify.send((signal, Instant::now())).await.unwrap();
                }
                pending::<()>().await;
            };
            let left = tokio::select! {
                left = signals.finish_soon(pending::<()>()) => left,
                () = sending => unreachable!(),
            };
            assert_eq!(left, Err(Signal::SIGTERM));
            let took = start.elapsed();
            let soon = left_after + Duration::from_millis(10);
            assert!((left_after..soon).contains(&took), "{second:?}: {took:?}");
        }
    }
}
