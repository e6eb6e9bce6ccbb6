//! `fermata lock KEY` without a command: keeps the lock until a signal or its loss. Others act with the printed lockRef.

use fermata_client::LockGuard;
use fermata_command::failure::status_of_signal;
use fermata_command::output::{Format, print_text};
use fermata_command::{Failure, exit};
use serde_json::json;

use super::leaving::{lost_words, release, release_lost};
use super::signals::Signals;

/// Prints the lockRef, and keeps the lock.
pub async fn hold(
    guard: LockGuard,
    (table, key): (&str, &str),
    format: Format,
    signals: &mut Signals,
) -> Result<u8, Failure> {
    let text = match format {
        Format::Text => format!("{}\n", guard.lock_ref()),
        Format::Json => {
            let document = json!({
                "lock_ref": guard.lock_ref(),
                "fencing_token": guard.fencing_token(),
                "table": table,
                "key": key,
            });
            format!("{document:#}\n")
        }
    };
    if let Err(unread) = print_text(&text) {
        release(guard, key, None, signals).await?;
        return Err(unread.into());
    }
    let lost = tokio::select! {
        biased;
        lost = guard.lost() => lost,
        signal = signals.next_end() => {
            release(guard, key, Some(signal), signals).await?;
            return Ok(status_of_signal(signal as i32));
        }
    };
    release_lost(guard).await;
    Err(Failure::new(exit::FAILED, lost_words(key, &lost)))
}
