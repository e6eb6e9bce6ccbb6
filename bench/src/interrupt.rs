//! Ctrl-C: ends a benchmark early, with the report of what was measured.

use fermata_command::ignored::is_ignored;
use nix::sys::signal::Signal;
use tokio::sync::watch;

/// Hears Ctrl-C.
#[derive(Debug)]
pub(super) struct Interrupt {
    times: watch::Receiver<u32>,
}

impl Interrupt {
    /// From here on Ctrl-C does not end the process. Whoever had it ignored hears nothing of it.
    pub(super) fn listen() -> Interrupt {
        let (pressed, times) = watch::channel(0u32);
        let is_heard = !is_ignored(Signal::SIGINT as i32);
        tokio::spawn(async move {
            // Where it cannot be heard, it ends the process as it does by default.
            while is_heard && tokio::signal::ctrl_c().await.is_ok() {
                pressed.send_modify(|times| *times = times.saturating_add(1));
            }
            pressed.closed().await;
        });
        Interrupt { times }
    }

    /// Waits for the next time.
    pub(super) async fn pressed(&mut self) {
        if self.times.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}
