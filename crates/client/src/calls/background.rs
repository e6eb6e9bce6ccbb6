//! Work without a waiting caller: releases of dropped locks, entries and sessions. Few attempts run at once, so thousands of
//! dropped locks do not delay the calls for held ones.

use std::time::Duration;

use tokio::sync::Semaphore;
use tonic::Status;

use super::fault::Fault;
use crate::transport::retry::Backoff;

/// The attempts at once: a quarter of the calls that a Pipeline takes.
const ATTEMPTS_MAX: usize = 256;

/// The pause after a refusal for missing rights: somebody has to change a rule first.
const DENIED_PAUSE: Duration = Duration::from_secs(30);

/// Room for work in the background.
pub(crate) struct Background(Semaphore);

impl Default for Background {
    fn default() -> Background {
        Background(Semaphore::new(ATTEMPTS_MAX))
    }
}

impl Background {
    /// Repeats a call about an entry, or a session, until it is answered. `None`: the entry or session does not exist, has
    /// expired, or cannot be asked about. The pauses between two attempts take no room.
    pub(crate) async fn until_answered<T, F>(
        &self,
        expired: impl Future<Output = ()>,
        call: impl Fn() -> F,
    ) -> Option<T>
    where
        F: Future<Output = Result<T, Status>>,
    {
        let answered = async {
            let mut backoff = Backoff::new();
            loop {
                // (Nobody closes it.) First come, first served.
                let room = self.0.acquire().await.ok();
                let called = call().await;
                drop(room);
                let status = match called {
                    Ok(answer) => return Some(answer),
                    Err(status) => status,
                };
                match Fault::new(&status) {
                    Fault::Ended(_) | Fault::NotFound(_) => return None,
                    Fault::Invalid(error) | Fault::Superseded(error) | Fault::Overtaken(error) => {
                        tracing::debug!(%error, "a call in the background was refused; leaving its entry or session to expire");
                        return None;
                    }
                    // A limit, a rule, or a proxy may deny a release for a while. An entry in a session would be held for as
                    // long as that lives.
                    Fault::Denied(error) => {
                        tokio::time::sleep(backoff.next(error.retry_after.or(Some(DENIED_PAUSE))))
                            .await;
                    }
                    Fault::Limit(error) | Fault::Unavailable(error) | Fault::Other(error) => {
                        tokio::time::sleep(backoff.next(error.retry_after)).await;
                    }
                }
            }
        };
        tokio::select! {
            biased;
            answered = answered => answered,
            () = expired => None,
        }
    }
}
