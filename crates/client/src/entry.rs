//! An entry in the queue of a key, until it becomes a lock.

use std::time::Duration;

use uuid::Uuid;

use super::answer::LockStatus;
use super::clock::Moment;
use super::connect::Client;
use super::error::{CreateError, LockError, ReleaseError, WaitError};
use super::guard::LockGuard;
use super::lease::LeaseWatch;
use super::request::LockRequest;
use super::session::Session;
use super::validity::Validity;

/// An entry in the queue of a key. Wait for the lock with [`QueueEntry::wait`], or give it up; a dropped entry is
/// released in the background.
///
/// Outside a session nothing but a wait in flight keeps an entry alive: between two of them it lives no
/// longer than its TTL.
#[must_use = "a dropped entry is released"]
pub struct QueueEntry {
    pub(super) client: Client,
    pub(super) session: Option<Session>,
    pub(super) lock_ref: String,
    /// What keeps it alive.
    pub(super) lease_id: String,
    pub(super) ttl: Duration,
    pub(super) status: LockStatus,
    pub(super) validity: Validity,
    /// Whether it survives a crash of the replica that serves its key.
    pub(super) durable: bool,
    /// What it was made of, to be made again where such a crash ended it while it waited.
    made_of: (LockRequest, Uuid),
    /// Whether it is this one's to wait with and to give up.
    pub(super) taken: bool,
}

impl Drop for QueueEntry {
    fn drop(&mut self) {
        if self.taken {
            let lock_ref = std::mem::take(&mut self.lock_ref);
            let session = self.session.as_ref().map(Session::watch);
            self.client
                .release_in_background(lock_ref, self.ttl, session);
        }
    }
}

impl std::fmt::Debug for QueueEntry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("QueueEntry")
            .field("lock_ref", &self.lock_ref)
            .field("status", &self.status)
            .finish_non_exhaustive()
    }
}

impl Client {
    /// Adds an entry to the queue of a key, with a TTL of its own.
    pub async fn enqueue(
        &self,
        request: impl Into<LockRequest>,
    ) -> Result<QueueEntry, CreateError> {
        QueueEntry::take(self, None, request.into()).await
    }

    /// Locks a key, waiting for it as the request says.
    pub async fn lock(&self, request: impl Into<LockRequest>) -> Result<LockGuard, LockError> {
        QueueEntry::lock(self, None, request.into()).await
    }

    /// Locks a key if that is possible at once.
    pub async fn try_lock(
        &self,
        request: impl Into<LockRequest>,
    ) -> Result<Option<LockGuard>, LockError> {
        QueueEntry::try_lock(self, None, request.into()).await
    }
}

/// A create in flight. If nobody waits for it any more, or its outcome stays unknown, the entry that it may
/// have taken is found again by its request_id and given back.
struct Creating {
    client: Client,
    request: LockRequest,
    session: String,
    request_id: Uuid,
    lease: Option<LeaseWatch>,
    open: bool,
}

impl Drop for Creating {
    fn drop(&mut self) {
        if !self.open {
            return;
        }
        let (client, request) = (self.client.clone(), self.request.clone());
        let (session, request_id) = (self.session.clone(), self.request_id);
        let lease = self.lease.take();
        Client::in_background(async move {
            let created = client.create_lock_ref(&request, &session, request_id).await;
            if let Ok(created) = created {
                client.release_in_background(created.lock_ref, created.ttl, lease);
            }
        });
    }
}

impl QueueEntry {
    pub(super) async fn take(
        client: &Client,
        session: Option<&Session>,
        request: LockRequest,
    ) -> Result<QueueEntry, CreateError> {
        let mut creating = Creating {
            client: client.clone(),
            request,
            session: session.map_or_else(String::new, |session| session.id().to_owned()),
            request_id: Uuid::new_v4(),
            lease: session.map(Session::watch),
            open: true,
        };
        let created = client
            .create_lock_ref(&creating.request, &creating.session, creating.request_id)
            .await;
        // Only then is it unknown whether an entry was taken.
        creating.open = matches!(
            created,
            Err(CreateError::Unavailable(_) | CreateError::Other(_))
        );
        let created = created?;
        let made_of = (creating.request.clone(), creating.request_id);
        if let Some(session) = session {
            session.lease().extend(created.promise.validity);
        }
        Ok(QueueEntry {
            client: client.clone(),
            session: session.cloned(),
            lock_ref: created.lock_ref,
            lease_id: created.session,
            ttl: created.ttl,
            status: created.status,
            validity: created.promise.validity,
            durable: created.promise.durable,
            made_of,
            taken: true,
        })
    }

    /// Takes another entry by the same request, where this one was lost with the replica that served its key while it waited.
    pub(super) async fn take_again(&mut self) -> Result<(), CreateError> {
        let (request, request_id) = &self.made_of;
        let session = self.session.as_ref().map_or("", Session::id);
        let created = self
            .client
            .create_lock_ref(request, session, *request_id)
            .await?;
        self.lock_ref = created.lock_ref;
        self.lease_id = created.session;
        self.ttl = created.ttl;
        self.status = created.status;
        self.validity = created.promise.validity;
        self.durable = created.promise.durable;
        self.taken = true;
        Ok(())
    }

    /// Takes an entry and waits as the request says.
    pub(super) async fn lock(
        client: &Client,
        session: Option<&Session>,
        request: LockRequest,
    ) -> Result<LockGuard, LockError> {
        let wait = request.wait;
        let mut entry = QueueEntry::take(client, session, request).await?;
        Ok(entry.wait(wait).await?)
    }

    /// Takes an entry, and gives it up unless it is held at once.
    pub(super) async fn try_lock(
        client: &Client,
        session: Option<&Session>,
        request: LockRequest,
    ) -> Result<Option<LockGuard>, LockError> {
        let mut entry = QueueEntry::take(client, session, request).await?;
        match entry.wait(Some(Duration::ZERO)).await {
            Ok(guard) => Ok(Some(guard)),
            Err(WaitError::TimedOut { .. }) => {
                // If that fails the entry expires; there is no lock in either case.
                if let Err(error) = entry.give_up().await {
                    tracing::debug!(%error, "an entry is left to expire");
                }
                Ok(None)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// The lockRef.
    pub fn lock_ref(&self) -> &str {
        &self.lock_ref
    }

    /// The TTL in force.
    pub fn ttl(&self) -> Duration {
        self.ttl
    }

    /// Until when it is safe from expiry, as far as its own calls told; a session may know of more.
    pub fn valid_until(&self) -> Moment {
        self.validity.until()
    }

    /// How many were ahead in the queue when the server was last heard; 0 once it is held.
    pub fn position(&self) -> u32 {
        match self.status {
            LockStatus::Held { .. } => 0,
            LockStatus::Waiting { position } => position,
        }
    }

    /// Releases the entry, and waits until the server knows. True if it had ended before.
    pub async fn give_up(mut self) -> Result<bool, ReleaseError> {
        if !self.taken {
            return Ok(true);
        }
        let given_up = self.client.release_lock(&self.lock_ref, None, || 0).await;
        self.taken = matches!(
            given_up,
            Err(ReleaseError::Unavailable(_) | ReleaseError::Other(_))
        );
        given_up
    }
}
