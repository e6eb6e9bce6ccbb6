//! Ctrl-C: ends a run of sections early, with its report.

use fermata_command::ignored::is_ignored;
use nix::sys::signal::Signal;
use tokio::sync::watch;

/// Counts Ctrl-C, which does not end the process any more.
#[derive(Debug, Clone)]
pub(super) struct Interrupt(watch::Receiver<u32>);

impl Interrupt {
    /// A process that was started with SIGINT ignored goes on ignoring it.
    pub(super) fn listen() -> Interrupt {
        let (pressed, times) = watch::channel(0);
        if !is_ignored(Signal::SIGINT as i32) {
            tokio::spawn(async move {
                while tokio::signal::ctrl_c().await.is_ok() {
                    pressed.send_modify(|times| *times += 1);
                }
            });
        }
        Interrupt(times)
    }

    pub(super) fn is_pressed(&self) -> bool {
        *self.0.borrow() > 0
    }

    /// Waits until it was pressed this often.
    pub(super) async fn pressed(&mut self, times: u32) {
        if self.0.wait_for(|pressed| *pressed >= times).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}
