//! A session: one renewal for many locks.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::kept::{Lease, LeaseWatch};
use super::state::LeaseState;
use crate::calls::client::{Client, Tries};
use crate::calls::error::SessionError;
use crate::calls::lost::Lost;
use crate::calls::request::SessionRequest;
use crate::clock::{Moment, sleep_until};
use crate::secret_text::public_part;

/// An open session, kept alive in the background. Cheap to clone.
///
/// The session is closed in the background once its last clone and its last lock are dropped. The close ends all its locks.
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
        let (client, ttl) = (self.client.clone(), self.lease.ttl());
        let session = self.lease.session().to_owned();
        self.client.in_background(async move {
            let tries = Tries::Once(client.options().attempt_timeout);
            let expired = sleep_until(client.clock(), client.now().after(ttl));
            let close = || client.close_session_raw(&session, tries);
            client.background().until_answered(expired, close).await;
        });
    }
}

impl Client {
    /// Opens a session and keeps it alive. With a disconnect_grace, returns once the server knows the stream whose end begins the
    /// grace. Fails if the session has ended by then, as when answers take longer than the grace.
    pub async fn open_session(&self, request: SessionRequest) -> Result<Session, SessionError> {
        let opened = self.open_session_raw(&request).await?;
        let lease = Lease::start(self, opened);
        // Closed again where this future is dropped.
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
    /// Its id, as in LockAdmin and the log of the service. The id is not a secret.
    pub fn id(&self) -> &str {
        public_part(self.text())
    }

    /// Its text. Everybody who has it may act for the session.
    pub fn text(&self) -> &str {
        self.shared.lease.session()
    }

    /// The TTL in force.
    pub fn ttl(&self) -> Duration {
        self.shared.lease.ttl()
    }

    /// How long the session lives on after its connection is closed, if it has such a grace.
    pub fn disconnect_grace(&self) -> Option<Duration> {
        self.shared.lease.disconnect_grace()
    }

    /// The session does not expire before this moment; `None` once it has ended.
    pub fn valid_until(&self) -> Option<Moment> {
        match self.shared.lease.state() {
            LeaseState::Live(validity) => Some(validity.until()),
            LeaseState::Ended(_) => None,
        }
    }

    /// Returns when the session has ended, and all its locks with it.
    pub async fn lost(&self) -> Lost {
        self.shared.lease.ended().await
    }

    /// Closes the session and ends all its locks. True if the session had ended before. Without an answer, or if this future is
    /// dropped, the close is tried again in the background, for a TTL.
    pub async fn close(self) -> Result<bool, SessionError> {
        let id = self.text().to_owned();
        self.shared.lease.end(Lost::released_here());
        let closed = self.shared.client.close_session(&id).await;
        if matches!(closed, Ok(_) | Err(SessionError::Ended(_))) {
            self.shared.closed.store(true, Ordering::Relaxed);
        }
        closed
    }

    pub(crate) fn client(&self) -> &Client {
        &self.shared.client
    }

    pub(crate) fn lease(&self) -> &Arc<Lease> {
        &self.shared.lease
    }

    /// Learns of the end of the session, and does not keep the session alive.
    pub(crate) fn watch(&self) -> LeaseWatch {
        self.shared.lease.watch()
    }
}
