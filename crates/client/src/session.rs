//! A session: one renewal for many locks.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::clock::Moment;
use super::connect::Client;
use super::entry::QueueEntry;
use super::error::{CreateError, LockError, SessionError};
use super::guard::LockGuard;
use super::lease::{Lease, LeaseState, LeaseWatch};
use super::lost::Lost;
use super::request::{LockRequest, SessionRequest};
use super::secret_text::public_part;

/// An open session, kept alive in the background. Cheap to clone.
///
/// When the last clone, and the last lock taken in it, is dropped the session is closed in the
/// background. Closing it ends all its locks.
#[derive(Clone)]
pub struct Session {
    shared: Arc<SessionShared>,
}

struct SessionShared {
    client: Client,
    lease: Arc<Lease>,
    /// The server said that it has ended.
    closed: AtomicBool,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session")
            .field("id", &self.id())
            .field("state", &self.shared.lease.state())
            .finish_non_exhaustive()
    }
}

impl Drop for SessionShared {
    fn drop(&mut self) {
        let is_known_to_have_ended = match self.lease.state() {
            LeaseState::Live(_) => false,
            LeaseState::Ended(lost) => !lost.is_said_here(),
        };
        if is_known_to_have_ended || self.closed.load(Ordering::Relaxed) {
            return;
        }
        let session = self.lease.session().to_owned();
        self.client.close_in_background(session, self.lease.ttl());
    }
}

impl Client {
    /// Opens a session and keeps it alive. With a disconnect_grace it returns once the server knows the stream whose end
    /// begins it. One that has ended by then, as where answers take longer than its grace, is an error.
    pub async fn open_session(&self, request: SessionRequest) -> Result<Session, SessionError> {
        let opened = self.open_session_raw(&request).await?;
        let lease = Lease::start(self, opened);
        // Closed again by whoever drops this future.
        let session = Session {
            shared: Arc::new(SessionShared {
                client: self.clone(),
                lease: Arc::new(lease),
                closed: AtomicBool::new(false),
            }),
        };
        session.shared.lease.attached().await;
        match session.shared.lease.state() {
            LeaseState::Live(_) => Ok(session),
            LeaseState::Ended(lost) => Err(SessionError::Ended(lost)),
        }
    }
}

impl Session {
    /// Its id, which everybody may know: LockAdmin and the log of the service call it so.
    pub fn id(&self) -> &str {
        public_part(self.text())
    }

    /// The text of it, with which whoever has it acts for it.
    pub fn text(&self) -> &str {
        self.shared.lease.session()
    }

    /// The TTL in force.
    pub fn ttl(&self) -> Duration {
        self.shared.lease.ttl()
    }

    /// How long it lives on once its connection is closed, where that matters.
    pub fn disconnect_grace(&self) -> Option<Duration> {
        self.shared.lease.disconnect_grace()
    }

    /// Until when it is safe from expiry; `None` once it has ended.
    pub fn valid_until(&self) -> Option<Moment> {
        match self.shared.lease.state() {
            LeaseState::Live(validity) => Some(validity.until()),
            LeaseState::Ended(_) => None,
        }
    }

    /// Returns when it has ended, and with it all its locks.
    pub async fn lost(&self) -> Lost {
        self.shared.lease.ended().await
    }

    /// Adds an entry to the queue of a key.
    pub async fn enqueue(
        &self,
        request: impl Into<LockRequest>,
    ) -> Result<QueueEntry, CreateError> {
        QueueEntry::take(&self.shared.client, Some(self), request.into()).await
    }

    /// Locks a key, waiting for it as the request says.
    pub async fn lock(&self, request: impl Into<LockRequest>) -> Result<LockGuard, LockError> {
        QueueEntry::lock(&self.shared.client, Some(self), request.into()).await
    }

    /// Locks a key if that is possible at once.
    pub async fn try_lock(
        &self,
        request: impl Into<LockRequest>,
    ) -> Result<Option<LockGuard>, LockError> {
        QueueEntry::try_lock(&self.shared.client, Some(self), request.into()).await
    }

    /// Closes it and ends all its locks. True if it had ended before. Where the server does not say so, or this future is
    /// dropped, it is tried again in the background, for a TTL.
    pub async fn close(self) -> Result<bool, SessionError> {
        let id = self.text().to_owned();
        self.shared.lease.end(Lost::released_here());
        let closed = self.shared.client.close_session(&id).await;
        if matches!(closed, Ok(_) | Err(SessionError::Ended(_))) {
            self.shared.closed.store(true, Ordering::Relaxed);
        }
        closed
    }

    pub(super) fn lease(&self) -> &Arc<Lease> {
        &self.shared.lease
    }

    /// For what is to learn of its end, and not to keep it alive.
    pub(super) fn watch(&self) -> LeaseWatch {
        self.shared.lease.watch()
    }
}
