//! Giving an entry, or a lock, back for nobody to wait for.

use std::time::Duration;

use super::clock::sleep_until;
use super::connect::Client;
use super::fault::Fault;
use super::lease::{LeaseEnd, LeaseWatch};
use super::retry::Backoff;
use super::sent_write::SentWrite;

impl Client {
    /// Releases an entry in the background. Tried until the server says what became of it, or the entry has ended by
    /// itself: with its session, or outside of one after a TTL.
    pub(super) fn release_in_background(
        &self,
        lock_ref: String,
        ttl: Duration,
        session: Option<LeaseWatch>,
    ) {
        let client = self.clone();
        Client::in_background(async move {
            tokio::select! {
                biased;
                () = client.release_until_answered(&lock_ref) => {}
                () = client.expired(session, ttl) => tracing::debug!("an entry was left to expire"),
            }
        });
    }

    /// Returns once the entry of a lease has expired, unless its session was closed before.
    async fn expired(&self, session: Option<LeaseWatch>, ttl: Duration) {
        let end = match session {
            Some(session) => session.ended().await,
            None => LeaseEnd::LeftAlone,
        };
        if end == LeaseEnd::LeftAlone {
            sleep_until(self.clock(), self.now().after(ttl)).await;
        }
    }

    async fn release_until_answered(&self, lock_ref: &str) {
        let mut backoff = Backoff::new();
        loop {
            let timeout = self.options().timeout;
            let sent = SentWrite::default();
            let released = self.release_raw(lock_ref, None, &sent, || 0, timeout);
            let Err(status) = released.await else {
                return;
            };
            match Fault::new(&status) {
                Fault::Ended(_) | Fault::NotFound(_) => return,
                Fault::Invalid(error) | Fault::Denied(error) | Fault::Superseded(error) => {
                    tracing::debug!(%error, "an entry is left to expire");
                    return;
                }
                Fault::Limit(error) | Fault::Unavailable(error) | Fault::Other(error) => {
                    tokio::time::sleep(backoff.next(error.retry_after)).await;
                }
            }
        }
    }
}
