//! Releasing a lock, or an entry in the queue, before the process ends.

use std::time::Duration;

use fermata_client::{LockGuard, QueueEntry, ReleaseError};
use fermata_command::output::say;
use fermata_command::{Failure, Span, exit};
use nix::sys::signal::Signal;
use tokio::time::timeout;

use super::signals::{Signals, finish_after};

/// How long releasing an entry of the queue may hold up the end of the process.
const GIVE_UP_MAX: Duration = Duration::from_secs(2);

/// When a lock ends that is not released.
pub fn unreleased(guard: &LockGuard) -> String {
    match guard.disconnect_grace() {
        Some(grace) => format!("{} after this process", Span::from_duration(grace)),
        None => format!(
            "{} after its last renewal",
            Span::from_duration(guard.ttl())
        ),
    }
}

/// Releases the lock; `after` this signal, where one came. A server that cannot be told is no failure of the command: the lock ends
/// by itself.
pub async fn release(
    guard: LockGuard,
    key: &str,
    after: Option<Signal>,
    signals: &mut Signals,
) -> Result<(), Failure> {
    let ends = unreleased(&guard);
    let released = match after {
        Some(signal) => finish_after(signal, guard.release()).await,
        None => signals.finish_soon(guard.release()).await,
    };
    let why = match released {
        Ok(Ok(())) => return Ok(()),
        Ok(Err(ReleaseError::Lost(lost))) => {
            let words = format!("the lock on {key} was lost before its release: {lost}");
            return Err(Failure::new(exit::LOCK_LOST, words));
        }
        Ok(Err(error)) => error.to_string(),
        Err(signal) => format!("{signal} came before an answer"),
    };
    say(&format!(
        "{key} could not be released, and ends {ends}: {why}"
    ));
    Ok(())
}

/// Releases an entry of the queue. False where it is left to its TTL.
pub async fn give_up(entry: QueueEntry) -> bool {
    matches!(timeout(GIVE_UP_MAX, entry.give_up()).await, Ok(Ok(_)))
}
