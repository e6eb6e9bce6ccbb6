//! `fermata lock KEY` without a command: the lock is kept, and whoever has the lockRef that is printed may act under it.

use std::pin::pin;

use fermata_client::LockGuard;
use fermata_command::failure::status_of_signal;
use fermata_command::output::Format;
use fermata_command::{Failure, exit, stdout};
use serde_json::json;
use tokio::time::timeout;

use super::leaving::Leaving;
use super::lock::{RELEASE_LOST_MAX, lost_words};
use super::print::print_detached;
use super::signals::{Signals, ends_a_wait};

/// What is printed of a lock that is kept without a command.
pub struct Shown<'a> {
    pub table: &'a str,
    pub key: &'a str,
    pub format: Format,
}

impl Shown<'_> {
    fn text(&self, guard: &LockGuard) -> String {
        match self.format {
            Format::Text => format!("{}\n", guard.lock_ref()),
            Format::Json => {
                let document = json!({
                    "lock_ref": guard.lock_ref(),
                    "fencing_token": guard.fencing_token(),
                    "table": self.table,
                    "key": self.key,
                });
                format!("{document:#}\n")
            }
        }
    }
}

/// Refuses to take a lock that nobody could know of.
pub fn refuse_without_stdout() -> Result<(), Failure> {
    match stdout::open() {
        Ok(_) => Ok(()),
        Err(closed) => Err(Failure::new(
            exit::IO,
            format!("{closed}: without a command the lockRef is printed there"),
        )),
    }
}

/// Keeps the lock without a command, until a signal or its loss.
pub async fn hold(
    guard: LockGuard,
    signals: &mut Signals,
    shown: &Shown<'_>,
    leaving: Leaving<'_>,
) -> Result<u8, Failure> {
    let mut printing = pin!(print_detached(shown.text(&guard)));
    let mut is_printed = false;
    let lost = loop {
        tokio::select! {
            biased;
            lost = guard.lost() => break lost,
            signal = signals.next() => if ends_a_wait(signal) {
                leaving.release(guard, Some(signal), signals).await?;
                return Ok(status_of_signal(signal as i32));
            },
            printed = &mut printing, if !is_printed => match printed {
                Ok(()) => is_printed = true,
                Err(unread) => {
                    leaving.release(guard, None, signals).await?;
                    return Err(unread.into());
                }
            },
        }
    };
    let _ = timeout(RELEASE_LOST_MAX, guard.release()).await;
    Err(Failure::new(exit::LOCK_LOST, lost_words(shown.key, &lost)))
}
