//! The release of a lock, or of an entry in the queue, before the process ends.

use fermata_client::{LockGuard, Lost, QueueEntry, ReleaseError};
use fermata_command::output::{one_line, say};
use fermata_command::{Failure, Span, exit};
use nix::sys::signal::Signal;
use tokio::time::timeout;

use super::signals::{END_WITHIN, Signals, finish_after};

/// The end of a lock without a release.
pub fn unreleased(guard: &LockGuard) -> String {
    match guard.disconnect_grace() {
        Some(grace) => format!("{} after this process", Span::from_duration(grace)),
        None => format!(
            "{} after its last renewal",
            Span::from_duration(guard.ttl())
        ),
    }
}

/// Releases the lock; `after` is a signal that came before. Without an answer of a server the command does not fail: the lock
/// expires.
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
            return Err(Failure::new(exit::FAILED, words));
        }
        Ok(Err(error)) => error.to_string(),
        Err(signal) => format!("{signal} came before an answer"),
    };
    say(&format!(
        "the lock on {key} could not be released, and ends {ends}: {why}"
    ));
    Ok(())
}

/// Releases a lost lock, which may exist still. A server may not answer.
pub async fn release_lost(guard: LockGuard) {
    let _ = timeout(END_WITHIN, guard.release()).await;
}

/// The message about a lost lock.
pub fn lost_words(key: &str, lost: &Lost) -> String {
    format!("lost the lock on {key}: {}", one_line(&lost.to_string()))
}

/// Releases an entry of the queue. False if it is left to its TTL.
pub async fn give_up(entry: QueueEntry) -> bool {
    matches!(timeout(END_WITHIN, entry.give_up()).await, Ok(Ok(_)))
}
