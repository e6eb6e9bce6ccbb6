//! From an entry that is held to the guard of its lock, with a promise that is still worth something.

use std::sync::Arc;

use tonic::Status;

use super::entry::{EntryPhase, QueueEntry, WaitBroken};
use super::guard::LockGuard;
use crate::calls::answer::{LockStatus, Renewed};
use crate::lease::kept::Lease;
use crate::lease::state::LeaseState;

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

    /// Asks again where the lock is not durable, and more than half of its promise has passed: that counts from the sending of a
    /// call that may have waited for long. (A lock that lives by its lease is renewed soon enough.)
    async fn freshen(&mut self) -> Result<(), WaitBroken> {
        let promise = self.known.promise;
        let left = promise.validity.left(self.client.now());
        if !promise.durable && left < promise.validity.span() / 2 {
            let acquired = self.ask().await?;
            self.note(acquired);
        }
        Ok(())
    }
}
