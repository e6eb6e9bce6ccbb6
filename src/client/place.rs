//! A place in the queue of a key, until it becomes a lock.

use std::time::Duration;

use uuid::Uuid;

use super::answer::Standing;
use super::clock::Moment;
use super::connect::Client;
use super::error::{CreateError, LockError, ReleaseError, WaitError};
use super::guard::LockGuard;
use super::lease::LeaseWatch;
use super::request::LockRequest;
use super::session::Session;
use super::validity::Validity;

/// A place in the queue of a key. Wait for the lock with [`Place::wait`], or give it up; a dropped place is
/// given up in the background.
///
/// Outside a session nothing but a wait under way keeps a place alive: between two of them it lives no
/// longer than its TTL.
#[must_use = "a dropped place is given up"]
pub struct Place {
    pub(super) client: Client,
    pub(super) session: Option<Session>,
    pub(super) lock_ref: String,
    /// What keeps it alive.
    pub(super) lease_id: String,
    pub(super) ttl: Duration,
    pub(super) standing: Standing,
    pub(super) validity: Validity,
    /// Whether it is this one's to wait with and to give up.
    pub(super) taken: bool,
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.taken {
            let lock_ref = std::mem::take(&mut self.lock_ref);
            let session = self.session.as_ref().map(Session::watch);
            self.client
                .release_in_background(lock_ref, self.ttl, session);
        }
    }
}

impl std::fmt::Debug for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Place")
            .field("lock_ref", &self.lock_ref)
            .field("standing", &self.standing)
            .finish_non_exhaustive()
    }
}

impl Client {
    /// Takes a place in the queue of a key, with a TTL of its own.
    pub async fn place(&self, request: impl Into<LockRequest>) -> Result<Place, CreateError> {
        Place::take(self, None, request.into()).await
    }

    /// Locks a key, waiting for it as the request says.
    pub async fn lock(&self, request: impl Into<LockRequest>) -> Result<LockGuard, LockError> {
        Place::lock(self, None, request.into()).await
    }

    /// Locks a key if that is possible at once.
    pub async fn try_lock(
        &self,
        request: impl Into<LockRequest>,
    ) -> Result<Option<LockGuard>, LockError> {
        Place::try_lock(self, None, request.into()).await
    }
}

/// A create under way. If nobody waits for it any more, or its outcome stays unknown, the place that it may
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

impl Place {
    pub(super) async fn take(
        client: &Client,
        session: Option<&Session>,
        request: LockRequest,
    ) -> Result<Place, CreateError> {
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
        // Only then is it unknown whether a place was taken.
        creating.open = matches!(
            created,
            Err(CreateError::Unavailable(_) | CreateError::Other(_))
        );
        let created = created?;
        if let Some(session) = session {
            session.lease().extend(created.validity);
        }
        Ok(Place {
            client: client.clone(),
            session: session.cloned(),
            lock_ref: created.lock_ref,
            lease_id: created.session,
            ttl: created.ttl,
            standing: created.standing,
            validity: created.validity,
            taken: true,
        })
    }

    /// Takes a place and waits as the request says.
    pub(super) async fn lock(
        client: &Client,
        session: Option<&Session>,
        request: LockRequest,
    ) -> Result<LockGuard, LockError> {
        let wait = request.wait;
        let mut place = Place::take(client, session, request).await?;
        Ok(place.wait(wait).await?)
    }

    /// Takes a place, and gives it up unless it is held at once.
    pub(super) async fn try_lock(
        client: &Client,
        session: Option<&Session>,
        request: LockRequest,
    ) -> Result<Option<LockGuard>, LockError> {
        let mut place = Place::take(client, session, request).await?;
        match place.wait(Some(Duration::ZERO)).await {
            Ok(guard) => Ok(Some(guard)),
            Err(WaitError::TimedOut { .. }) => {
                // If that fails the place expires; there is no lock in either case.
                if let Err(error) = place.give_up().await {
                    tracing::debug!(%error, "a place is left to expire");
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
        match self.standing {
            Standing::Held { .. } => 0,
            Standing::Waiting { position } => position,
        }
    }

    /// Gives the place up, and waits until the server knows. True if it was over before.
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
