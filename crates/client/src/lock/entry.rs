//! An entry in the queue of a key, until it becomes a lock.

use std::time::Duration;

use tonic::Status;
use uuid::Uuid;

use crate::calls::answer::{Acquired, Created, LockStatus};
use crate::calls::call_numbers::CallNumbers;
use crate::calls::client::{Client, Tries};
use crate::calls::error::{CreateError, ReleaseError};
use crate::calls::fault::{Fault, WaitFailure};
use crate::calls::lost::Lost;
use crate::calls::request::LockRequest;
use crate::calls::sent_write::SentWrite;
use crate::clock::Moment;
use crate::lease::kept::LeaseWatch;
use crate::lease::session::Session;
use crate::secret_text::Shown;

/// An entry in the queue of a key. Wait for the lock with [`QueueEntry::wait`], or give it up; a dropped entry is
/// released in the background.
///
/// Without a session only the calls of a wait keep an entry alive: between two waits it lives no longer than its TTL.
#[must_use = "a dropped entry is released"]
pub struct QueueEntry {
    pub(crate) client: Client,
    pub(crate) session: Option<Session>,
    /// The last answer about it.
    pub(crate) known: Created,
    /// The request of the entry, for making it again.
    pub(crate) request: LockRequest,
    request_id: Uuid,
    pub(crate) phase: EntryPhase,
    pub(crate) wait_failure: WaitFailure,
}

/// The phase of the entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum EntryPhase {
    /// The entry exists.
    Taken,
    /// The entry was lost with the replica that served its key, while it waited. The next wait makes it again.
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

/// A create in flight. If it is dropped, or its outcome stays unknown, its possible entry is found again by the request_id and
/// released.
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
    /// Makes an entry, within `total`.
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
            .create_raw(
                request,
                &creating.session,
                request_id,
                &sent,
                Tries::For(total),
            )
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
    pub(crate) async fn take(
        client: &Client,
        session: Option<&Session>,
        request: LockRequest,
    ) -> Result<QueueEntry, CreateError> {
        let total = client.options().timeout;
        let request_id = Uuid::new_v4();
        let created = Creating::create(client, session, (&request, request_id), total).await;
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

    /// Makes another entry by the same request, within `total`.
    pub(crate) async fn take_again(&mut self, total: Duration) -> Result<(), Status> {
        // The entry of a try that is given up is given back by its id. The next try needs another one.
        let request_id = std::mem::replace(&mut self.request_id, Uuid::new_v4());
        let session = self.session.as_ref();
        let made_of = (&self.request, request_id);
        self.known = Creating::create(&self.client, session, made_of, total).await?;
        self.request_id = request_id;
        self.phase = EntryPhase::Taken;
        Ok(())
    }

    /// One call that does not wait.
    pub(super) async fn ask(&self) -> Result<Acquired, WaitBroken> {
        let tries = Tries::Once(self.attempt_max());
        let read_value = self.request.read_value;
        let asked = self
            .client
            .acquire_raw(&self.known.lock_ref, read_value, tries);
        tokio::select! {
            biased;
            lost = session_ended(self.session.as_ref()) => Err(WaitBroken::Ended(lost)),
            answered = asked => answered.map_err(WaitBroken::Call),
        }
    }

    /// The time limit of a call that does not wait, and of a wait beyond its own time. So a silently broken connection is noticed
    /// within the TTL.
    pub(super) fn attempt_max(&self) -> Duration {
        let attempt_timeout = self.client.options().attempt_timeout;
        attempt_timeout.min(self.known.ttl / 4)
    }

    /// Notes an answer.
    pub(super) fn note(&mut self, acquired: Acquired) {
        self.wait_failure.0.forget();
        self.known.lock_ref = acquired.lock_ref;
        self.known.status = acquired.status;
        self.known.promise = acquired.promise;
        self.known.value = acquired.value;
        if let Some(session) = &self.session {
            session.lease().extend(acquired.promise.validity);
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

    /// By the answers about it, the entry does not expire before this moment; its session may last longer.
    pub fn valid_until(&self) -> Moment {
        self.known.valid_until()
    }

    /// The number of entries ahead in the queue, by the last answer; 0 once the lock is held.
    pub fn position(&self) -> u32 {
        match self.known.status {
            LockStatus::Held { .. } => 0,
            LockStatus::Waiting { position } => position,
        }
    }

    /// Shows why a wait in progress is stuck.
    pub fn wait_failure(&self) -> WaitFailure {
        self.wait_failure.clone()
    }

    /// Releases the entry, and waits for the answer. True if the entry had ended before.
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

/// Why a call about an entry has no answer.
pub(super) enum WaitBroken {
    /// The call failed.
    Call(Status),
    /// The entry has ended.
    Ended(Lost),
}

/// Returns when the session has ended; never without one.
pub(super) async fn session_ended(session: Option<&Session>) -> Lost {
    match session {
        Some(session) => session.lost().await,
        None => std::future::pending().await,
    }
}
