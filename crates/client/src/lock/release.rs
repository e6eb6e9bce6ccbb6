//! Releases in the background: of dropped entries and locks, and after a release without an answer.

use std::time::Duration;

use tonic::Status;
use uuid::Uuid;

use crate::calls::call_numbers::CallNumbers;
use crate::calls::client::{Client, Tries};
use crate::calls::request::LockRequest;
use crate::calls::sent_write::SentWrite;
use crate::clock::sleep_until;
use crate::lease::kept::LeaseWatch;

/// The TTL of an entry that asked for none, by the servers' default.
const TTL_DEFAULT: Duration = Duration::from_secs(30);

impl Client {
    /// Finds the possible entry of a create with an unknown outcome, by the same request, and releases it. Tried until a server
    /// answers, or the entry would have ended by itself.
    pub(super) fn give_back_in_background(
        &self,
        (request, session, request_id): (LockRequest, String, Uuid),
        lease: Option<LeaseWatch>,
    ) {
        let client = self.clone();
        let ttl = request.ttl.unwrap_or(TTL_DEFAULT);
        self.in_background(async move {
            let tries = Tries::Once(client.options().attempt_timeout);
            let sent = SentWrite::default();
            // An entry that this made, or found, is released at once: it holds up those behind it.
            let give_back = || async {
                let created = client.create_raw(&request, &session, request_id, &sent, tries);
                let created = created.await?;
                let released = client.release_once(&created.lock_ref).await;
                Ok((created, released.is_ok()))
            };
            let expired = client.expired(lease.clone(), ttl);
            let background = client.background();
            let given_back = background.until_answered(expired, give_back).await;
            if let Some((created, false)) = given_back {
                client.release_in_background(created.lock_ref, created.ttl, lease);
            }
        });
    }

    /// Releases an entry in the background. Tried until a server answers the outcome, or the entry has ended by itself: with its
    /// session, or without a session after a TTL.
    pub(super) fn release_in_background(
        &self,
        lock_ref: String,
        ttl: Duration,
        session: Option<LeaseWatch>,
    ) {
        let client = self.clone();
        self.in_background(async move {
            let release = || client.release_once(&lock_ref);
            let expired = client.expired(session, ttl);
            client.background().until_answered(expired, release).await;
        });
    }

    async fn release_once(&self, lock_ref: &str) -> Result<bool, Status> {
        let (sent, numbers) = (SentWrite::default(), CallNumbers::default());
        let tries = Tries::Once(self.options().attempt_timeout);
        let released = self.release_raw(lock_ref, None, &sent, &numbers, tries);
        released.await
    }

    /// Returns once an entry has expired: with its session, or after a TTL.
    async fn expired(&self, session: Option<LeaseWatch>, ttl: Duration) {
        match session {
            Some(session) => session.ended().await,
            None => sleep_until(self.clock(), self.now().after(ttl)).await,
        }
    }
}
