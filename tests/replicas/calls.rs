//! The calls of a section, each repeated until it is served or refused.

use std::time::Duration;

use fermata_proto::{
    AcquireLockRequest, AcquireLockResponse, CreateLockRefRequest, CriticalGetRequest,
    CriticalGetResponse, CriticalPutRequest, CriticalPutResponse, LockState, ReleaseLockRequest,
};
use tonic::Status;

use super::sprayed::Sprayed;

/// How long one AcquireLock waits on the server.
const WAIT: Duration = Duration::from_secs(3);

pub fn seconds(span: Duration) -> prost_types::Duration {
    span.try_into().unwrap()
}

impl Sprayed {
    /// An entry in the queue.
    pub async fn create(&self, ask: CreateLockRefRequest) -> Result<String, Status> {
        let create = self.call(ask, Duration::ZERO, |mut client, ask| async move {
            client.create_lock_ref(ask).await
        });
        Ok(create.await?.lock_ref)
    }

    /// Waits for the key, however often it takes.
    pub async fn acquire(&self, lock_ref: &str) -> Result<AcquireLockResponse, Status> {
        let ask = AcquireLockRequest {
            lock_ref: lock_ref.to_owned(),
            wait: Some(seconds(WAIT)),
            ..Default::default()
        };
        loop {
            let acquire = self.call(ask.clone(), WAIT, |mut client, ask| async move {
                client.acquire_lock(ask).await
            });
            let acquired = acquire.await?;
            if acquired.state() == LockState::Held {
                return Ok(acquired);
            }
        }
    }

    pub async fn get(&self, granted: &str) -> Result<CriticalGetResponse, Status> {
        let ask = CriticalGetRequest {
            lock_ref: granted.to_owned(),
            ..Default::default()
        };
        self.call(ask, Duration::ZERO, |mut client, ask| async move {
            client.critical_get(ask).await
        })
        .await
    }

    pub async fn put(&self, granted: &str, value: String) -> Result<CriticalPutResponse, Status> {
        let ask = CriticalPutRequest {
            lock_ref: granted.to_owned(),
            value: value.into_bytes().into(),
            ..Default::default()
        };
        let put = self.call(ask, Duration::ZERO, |mut client, ask| async move {
            client.critical_put(ask).await
        });
        put.await
    }

    pub async fn release(&self, granted: &str) -> Result<(), Status> {
        let ask = ReleaseLockRequest {
            lock_ref: granted.to_owned(),
            ..Default::default()
        };
        let release = self.call(ask, Duration::ZERO, |mut client, ask| async move {
            client.release_lock(ask).await
        });
        release.await.map(drop)
    }
}
