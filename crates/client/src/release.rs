//! Giving an entry, or a lock, back for nobody to wait for.

use std::time::Duration;

use uuid::Uuid;

use super::answer::Created;
use super::clock::sleep_until;
use super::connect::Client;
use super::fault::Fault;
use super::lease::{LeaseEnd, LeaseWatch};
use super::request::LockRequest;
use super::retry::Backoff;
use super::sent_write::SentWrite;

/// How long an entry without a session lives at most that asked for no TTL of its own, by the servers' default.
const TTL_DEFAULT: Duration = Duration::from_secs(30);

impl Client {
    /// Finds the entry in the background that a create of unknown outcome may have made, by what that was made of, and releases
    /// it. Tried until the server says, or the entry would have ended by itself.
    pub(super) fn give_back_in_background(
        &self,
        (request, session, request_id): (LockRequest, String, Uuid),
        lease: Option<LeaseWatch>,
    ) {
        let client = self.clone();
        let ttl = request.ttl.unwrap_or(TTL_DEFAULT);
        Client::in_background(async move {
            let created = tokio::select! {
                biased;
                created = client.create_until_answered(&request, &session, request_id) => created,
                () = client.expired(lease.clone(), ttl) => None,
            };
            if let Some(created) = created {
                client.release_in_background(created.lock_ref, created.ttl, lease);
            }
        });
    }

    async fn create_until_answered(
        &self,
        request: &LockRequest,
        session: &str,
        request_id: Uuid,
    ) -> Option<Created> {
        let mut backoff = Backoff::new();
        loop {
            let (sent, timeout) = (SentWrite::default(), self.options().timeout);
            let created = self.create_raw(request, session, request_id, &sent, timeout);
            let status = match created.await {
                Ok(created) => return Some(created),
                Err(status) => status,
            };
            match Fault::new(&status) {
                // A limit says nothing of the entry that may be there.
                Fault::Limit(error) | Fault::Unavailable(error) | Fault::Other(error) => {
                    tokio::time::sleep(backoff.next(error.retry_after)).await;
                }
                Fault::Ended(_)
                | Fault::NotFound(_)
                | Fault::Invalid(_)
                | Fault::Denied(_)
                | Fault::Superseded(_) => return None,
            }
        }
    }

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
