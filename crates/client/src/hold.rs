//! From an entry that is held to the guard of its lock, with a promise of which enough is left.

use std::sync::Arc;
use std::time::Duration;

use tonic::Status;

use super::answer::{LockStatus, Renewed};
use super::entry::{EntryPhase, QueueEntry};
use super::guard::LockGuard;
use super::lease::{Lease, LeaseState};
use super::session::Session;
use super::validity::{Promise, Validity};
use super::wait::WaitBroken;

/// A lock that is not durable, and was promised less than this, is asked about again before it is believed in.
const MEMORY_LEFT_MIN: Duration = Duration::from_millis(500);

impl QueueEntry {
    /// Makes a guard of an entry that is held; `None` if it turns out that it waits.
    pub(super) async fn hold(&mut self) -> Result<Option<LockGuard>, WaitBroken> {
        self.freshen().await?;
        let LockStatus::Held { fencing_token } = self.known.status else {
            return Ok(None);
        };
        let promise = self.known.promise;
        let has_ended = promise.validity.has_ended(self.client.now());
        let lease = match &self.session {
            Some(session) => match session.lease().state() {
                LeaseState::Live(_) => Some(Arc::clone(session.lease())),
                LeaseState::Ended(lost) => return Err(WaitBroken::Ended(lost)),
            },
            None => None,
        };
        // A session is renewed by itself, and a durable lock is as safe as that.
        if has_ended && (lease.is_none() || !promise.durable) {
            return Err(WaitBroken::Call(Status::deadline_exceeded(
                "the answer came after the end of what it promised",
            )));
        }
        let lease = lease.unwrap_or_else(|| {
            let opened = Renewed {
                session: self.known.session.clone(),
                ttl: self.known.ttl,
                disconnect_grace: None,
                validity: promise.validity,
            };
            Arc::new(Lease::start(&self.client, opened))
        });
        self.phase = EntryPhase::Gone;
        Ok(Some(LockGuard::new(
            &self.client,
            self.session.clone(),
            lease,
            (self.known.lock_ref.clone(), fencing_token),
            promise,
            self.known.value.clone(),
        )))
    }

    /// Asks again where the lock is not durable, and little or nothing is left of what was promised: it counts from when the call
    /// was sent, which may have waited for long. (What lives by its lease is renewed soon enough.)
    async fn freshen(&mut self) -> Result<(), WaitBroken> {
        let grace = self.session.as_ref().and_then(Session::disconnect_grace);
        let now = self.client.now();
        let full = Validity::promised(now, grace.unwrap_or(self.known.ttl)).left(now);
        let Promise { validity, durable } = self.known.promise;
        let least = MEMORY_LEFT_MIN.min(full / 2).max(validity.span() / 2);
        if !durable && validity.left(now) < least {
            let acquired = self.ask().await?;
            self.note(acquired);
        }
        Ok(())
    }
}
