//! Locks in one call: makes an entry, with its own TTL or in a session, and waits for the lock.

use std::time::Duration;

use super::entry::QueueEntry;
use super::guard::LockGuard;
use crate::calls::client::Client;
use crate::calls::error::{CreateError, LockError, WaitError};
use crate::calls::request::LockRequest;
use crate::lease::session::Session;

impl Client {
    /// Adds an entry to the queue of a key, with a TTL of its own.
    pub async fn enqueue(
        &self,
        request: impl Into<LockRequest>,
    ) -> Result<QueueEntry, CreateError> {
        QueueEntry::take(self, None, request.into()).await
    }

    /// Locks a key; waits as long as the request allows.
    pub async fn lock(&self, request: impl Into<LockRequest>) -> Result<LockGuard, LockError> {
        lock(self, None, request.into()).await
    }

    /// Locks a key if that is possible at once.
    pub async fn try_lock(
        &self,
        request: impl Into<LockRequest>,
    ) -> Result<Option<LockGuard>, LockError> {
        try_lock(self, None, request.into()).await
    }
}

impl Session {
    /// Adds an entry to the queue of a key.
    pub async fn enqueue(
        &self,
        request: impl Into<LockRequest>,
    ) -> Result<QueueEntry, CreateError> {
        QueueEntry::take(self.client(), Some(self), request.into()).await
    }

    /// Locks a key; waits as long as the request allows.
    pub async fn lock(&self, request: impl Into<LockRequest>) -> Result<LockGuard, LockError> {
        lock(self.client(), Some(self), request.into()).await
    }

    /// Locks a key if that is possible at once.
    pub async fn try_lock(
        &self,
        request: impl Into<LockRequest>,
    ) -> Result<Option<LockGuard>, LockError> {
        try_lock(self.client(), Some(self), request.into()).await
    }
}

/// Makes an entry and waits as long as the request allows.
async fn lock(
    client: &Client,
    session: Option<&Session>,
    request: LockRequest,
) -> Result<LockGuard, LockError> {
    let wait = request.wait;
    let mut entry = QueueEntry::take(client, session, request).await?;
    Ok(entry.wait(wait).await?)
}

/// Makes an entry, and gives it up unless it holds the key at once.
async fn try_lock(
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
                tracing::debug!(%error, "could not release an entry; leaving it to expire");
            }
            Ok(None)
        }
        Err(error) => Err(error.into()),
    }
}
