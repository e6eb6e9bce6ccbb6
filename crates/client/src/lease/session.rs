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
    /// Opens a session and keeps it alive. With a disconnect_grace it returns once the server knows the stream whose end
    /// begins the grace. A session that has ended by then is an error, as where answers take longer than its grace.
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
    /// Its id, by which LockAdmin and the log of the service name it. It is no secret.
    pub fn id(&self) -> &str {
        public_part(self.text())
    }

    /// Its text, which lets its bearer act for the session.
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

    pub(crate) fn client(&self) -> &Client {
        &self.shared.client
    }

    pub(crate) fn lease(&self) -> &Arc<Lease> {
        &self.shared.lease
    }

    /// Learns of its end, and does not keep it alive.
    pub(crate) fn watch(&self) -> LeaseWatch {
        self.shared.lease.watch()
    }
}
