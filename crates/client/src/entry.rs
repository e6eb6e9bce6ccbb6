//! An entry in the queue of a key, until it becomes a lock.

use std::time::Duration;

use tonic::Status;
use uuid::Uuid;

use super::answer::{Created, LockStatus};
use super::call_numbers::CallNumbers;
use super::clock::Moment;
use super::connect::Client;
use super::error::{CreateError, LockError, ReleaseError, WaitError};
use super::fault::Fault;
use super::guard::LockGuard;
use super::last_failure::WaitFailure;
use super::lease::LeaseWatch;
use super::lost::LostReason;
use super::request::LockRequest;
use super::secret_text::Shown;
use super::sent_write::SentWrite;
use super::session::Session;

/// An entry in the queue of a key. Wait for the lock with [`QueueEntry::wait`], or give it up; a dropped entry is
/// released in the background.
///
/// Outside a session nothing but the calls of a wait keeps an entry alive: between two waits it lives no
/// longer than its TTL.
#[must_use = "a dropped entry is released"]
pub struct QueueEntry {
    pub(super) client: Client,
    pub(super) session: Option<Session>,
    /// What was answered about it last.
    pub(super) known: Created,
    /// What it was made of, to be made again.
    pub(super) request: LockRequest,
    request_id: Uuid,
    pub(super) phase: EntryPhase,
    pub(super) wait_failure: WaitFailure,
}

/// Whether there is an entry to wait with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum EntryPhase {
    /// It is this one's to wait with and to give up.
    Taken,
    /// It was lost with the replica that served its key, while it waited. The next wait makes it again.
    LostWhileWaiting,
    /// It has become a lock, or has ended.
    Gone,
}

impl Drop for QueueEntry {
    fn drop(&mut self) {
        if self.phase == EntryPhase::Taken {
            let lock_ref = std::mem::take(&mut self.known.lock_ref);
            let session = self.session.as_ref().map(Session::watch);
            self.client
                .release_in_background(lock_ref, self.known.ttl, session);
        }
    }
}

impl std::fmt::Debug for QueueEntry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("QueueEntry")
            .field("entry", &Shown(&self.known.lock_ref))
            .field("status", &self.known.status)
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
        let made_of = (self.request.clone(), self.session.clone(), self.request_id);
        let lease = self.lease.take();
        self.client.give_back_in_background(made_of, lease);
    }
}

impl Creating {
    /// Takes an entry, within `total`.
    async fn create(
        client: &Client,
        session: Option<&Session>,
        (request, request_id): (&LockRequest, Uuid),
        total: Duration,
    ) -> Result<Created, Status> {
        let mut creating = Creating {
            client: client.clone(),
            request: request.clone(),
            session: session.map_or_else(String::new, |session| session.text().to_owned()),
            request_id,
            lease: session.map(Session::watch),
            open: true,
        };
        let sent = SentWrite::default();
        let created = client
            .create_raw(request, &creating.session, request_id, &sent, total)
            .await;
        // Only then is it unknown whether an entry was taken.
        creating.open = created.as_ref().is_err_and(|status| {
            let fault = Fault::new(status);
            sent.is_in_doubt() || matches!(fault, Fault::Unavailable(_) | Fault::Other(_))
        });
        let created = created?;
        if let Some(session) = session {
            session.lease().extend(created.promise.validity);
        }
        Ok(created)
    }
}

impl QueueEntry {
    pub(super) async fn take(
        client: &Client,
        session: Option<&Session>,
        request: LockRequest,
    ) -> Result<QueueEntry, CreateError> {
        let total = client.options().timeout;
        let end = client.now().after(total);
        let mut request_id = Uuid::new_v4();
        let mut created = Creating::create(client, session, (&request, request_id), total).await;
        // An earlier try made an entry, which ended before a later one found it: another one is taken, once.
        if let Err(status) = &created
            && let Fault::Ended(lost) = Fault::new(status)
            && lost.reason != LostReason::SessionClosed
        {
            request_id = Uuid::new_v4();
            let left = client.now().until(end);
            created = Creating::create(client, session, (&request, request_id), left).await;
        }
        Ok(QueueEntry {
            client: client.clone(),
            session: session.cloned(),
            known: created.map_err(|status| Fault::new(&status))?,
            request,
            request_id,
            phase: EntryPhase::Taken,
            wait_failure: WaitFailure::default(),
        })
    }

    /// Takes another entry by the same request, within `total`.
    pub(super) async fn take_again(&mut self, total: Duration) -> Result<(), Status> {
        // What a try took that is given up is given back, by this id: the next one needs another.
        let request_id = std::mem::replace(&mut self.request_id, Uuid::new_v4());
        let session = self.session.as_ref();
        let made_of = (&self.request, request_id);
        self.known = Creating::create(&self.client, session, made_of, total).await?;
        self.request_id = request_id;
        self.phase = EntryPhase::Taken;
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
        &self.known.lock_ref
    }

    /// The TTL in force.
    pub fn ttl(&self) -> Duration {
        self.known.ttl
    }

    /// Until when it is safe from expiry, as far as its own calls told; a session may know of more.
    pub fn valid_until(&self) -> Moment {
        self.known.valid_until()
    }

    /// How many were ahead in the queue when the server was last heard; 0 once it is held.
    pub fn position(&self) -> u32 {
        match self.known.status {
            LockStatus::Held { .. } => 0,
            LockStatus::Waiting { position } => position,
        }
    }

    /// Says, while a wait goes on, why it does not come through.
    pub fn wait_failure(&self) -> WaitFailure {
        self.wait_failure.clone()
    }

    /// Releases the entry, and waits until the server knows. True if it had ended before.
    pub async fn give_up(mut self) -> Result<bool, ReleaseError> {
        if self.phase != EntryPhase::Taken {
            return Ok(true);
        }
        let lock_ref = &self.known.lock_ref;
        let given_up = self
            .client
            .release_lock(lock_ref, None, &CallNumbers::default())
            .await;
        if !matches!(
            given_up,
            Err(ReleaseError::Unavailable(_)
                | ReleaseError::Limit(_)
                | ReleaseError::Denied(_)
                | ReleaseError::Other(_))
        ) {
            self.phase = EntryPhase::Gone;
        }
        given_up
    }
}
