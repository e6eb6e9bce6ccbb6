//! Work that no caller waits for: releases of what was dropped. A process that drops thousands of locks at once does not stand in
//! the way of those that it holds.

use tokio::sync::{Semaphore, SemaphorePermit, watch};
use tonic::Status;

use super::fault::Fault;
use crate::transport::retry::Backoff;

/// The attempts at once: a quarter of the calls that a Pipeline takes.
const ATTEMPTS_MAX: usize = 256;

/// Room for work in the background.
pub(crate) struct Background {
    attempts: Semaphore,
    /// The number of works that are not done.
    undone: watch::Sender<usize>,
}

impl Default for Background {
    fn default() -> Background {
        Background {
            attempts: Semaphore::new(ATTEMPTS_MAX),
            undone: watch::Sender::new(0),
        }
    }
}

/// One work that is not done, until this is dropped.
pub(crate) struct Undone(watch::Sender<usize>);

impl Drop for Undone {
    fn drop(&mut self) {
        self.0.send_modify(|undone| *undone -= 1);
    }
}

impl Background {
    /// Counts one work.
    pub(crate) fn begin(&self) -> Undone {
        self.undone.send_modify(|undone| *undone += 1);
        Undone(self.undone.clone())
    }

    /// Returns once all work is done.
    pub(crate) async fn done(&self) {
        let mut undone = self.undone.subscribe();
        // (It lives as long as this.)
        let _ = undone.wait_for(|undone| *undone == 0).await;
    }

    /// Room for one attempt, without the pauses between attempts; first come, first served.
    pub(crate) async fn turn(&self) -> Option<SemaphorePermit<'_>> {
        // (Nobody closes it.)
        self.attempts.acquire().await.ok()
    }
}

/// Repeats a call about an entry until it is answered. `None`: there is no such entry, or it cannot be asked about.
pub(crate) async fn until_answered<T, F>(call: impl Fn() -> F) -> Option<T>
where
    F: Future<Output = Result<T, Status>>,
{
    let mut backoff = Backoff::new();
    loop {
        let status = match call().await {
            Ok(answer) => return Some(answer),
            Err(status) => status,
        };
        match Fault::new(&status) {
            Fault::Ended(_) | Fault::NotFound(_) => return None,
            Fault::Invalid(error) | Fault::Superseded(error) | Fault::Overtaken(error) => {
                tracing::debug!(%error, "an entry is left to expire");
                return None;
            }
            // A limit, a rule, or a proxy may deny a release for a while. An entry in a session would be held for as long as that
            // lives.
            Fault::Limit(error)
            | Fault::Denied(error)
            | Fault::Unavailable(error)
            | Fault::Other(error) => {
                tokio::time::sleep(backoff.next(error.retry_after)).await;
            }
        }
    }
}
