//! Giving an entry, a lock, or a session back for nobody to wait for.

use std::time::Duration;

use tonic::Status;
use uuid::Uuid;

use super::clock::sleep_until;
use super::connect::Client;
use super::fault::{Fault, ServerError};
use super::lease::{LeaseEnd, LeaseWatch};
use super::request::LockRequest;
use super::retry::Backoff;

/// A release that no rule allows is tried again after this, each time doubled, …
const NOT_ALLOWED_AGAIN_AFTER: Duration = Duration::from_secs(1);
/// … up to this: each one is a line in the audit log of a server.
const NOT_ALLOWED_AGAIN_AFTER_MAX: Duration = Duration::from_secs(60);

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
        self.in_background(async move {
            let timeout = client.options().attempt_timeout;
            let (asked, request, session) = (&client, &request, &session);
            let create = || async move {
                let mut turn = asked.background().turn().await;
                let create = asked.create_once(request, session, request_id, timeout);
                let created = turn.attempt(create).await?;
                Ok((turn, created))
            };
            let created = tokio::select! {
                biased;
                created = until_answered(create) => created,
                () = client.expired(lease.clone(), ttl) => None,
            };
            if let Some((mut turn, created)) = created {
                // In the same turn: an entry that this made, or found, holds up those behind it until it is released.
                let release = client.release_once(&created.lock_ref, timeout);
                if turn.attempt(release).await.is_err() {
                    client.release_in_background(created.lock_ref, created.ttl, lease);
                }
            }
        });
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
        self.in_background(async move {
            let timeout = client.options().attempt_timeout;
            let (asked, lock_ref) = (&client, &lock_ref);
            // One attempt a turn: nobody else waits for the pauses between them.
            let release = || async move {
                let mut turn = asked.background().turn().await;
                let release = asked.release_once(lock_ref, timeout);
                turn.attempt(release).await
            };
            tokio::select! {
                biased;
                _ = until_answered(release) => {}
                () = client.expired(session, ttl) => tracing::debug!("an entry was left to expire"),
            }
        });
    }

    /// Closes a session in the background. Tried until the server says what became of it, or it has expired.
    pub(super) fn close_in_background(&self, session: String, ttl: Duration) {
        let client = self.clone();
        self.in_background(async move {
            let timeout = client.options().attempt_timeout;
            let (asked, session) = (&client, &session);
            let close = || async move {
                let mut turn = asked.background().turn().await;
                let close = asked.close_session_once(session, timeout);
                turn.attempt(close).await
            };
            tokio::select! {
                biased;
                _ = until_answered(close) => {}
                () = client.expired(None, ttl) => tracing::debug!("a session was left to expire"),
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
}

/// Repeats a call about an entry until it is answered; `None` where it is answered that there is no such entry, or that it
/// cannot be asked about.
async fn until_answered<T, F>(call: impl Fn() -> F) -> Option<T>
where
    F: Future<Output = Result<T, Status>>,
{
    let mut backoff = Backoff::new();
    let mut not_allowed_pause = NOT_ALLOWED_AGAIN_AFTER;
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
            // A rule was taken away, for a moment maybe: an entry in a session would be held for as long as that lives.
            Fault::Denied(error) if error.reason == ServerError::NOT_ALLOWED => {
                tokio::time::sleep(not_allowed_pause).await;
                not_allowed_pause = (not_allowed_pause * 2).min(NOT_ALLOWED_AGAIN_AFTER_MAX);
            }
            // A limit says nothing of the entry that may be there; nor does a proxy that denies a call.
            Fault::Limit(error)
            | Fault::Denied(error)
            | Fault::Unavailable(error)
            | Fault::Other(error) => {
                tokio::time::sleep(backoff.next(error.retry_after)).await;
            }
        }
    }
}
