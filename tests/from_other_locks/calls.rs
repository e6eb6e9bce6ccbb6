//! The calls of the service as MUSIC names them, one request each.

use fermata_client::{CallNumbers, Client, LockRequest, LockStatus};
use uuid::Uuid;

/// The lockRef of a new entry.
pub async fn create_lock_ref(client: &Client, table: &str, key: &str) -> String {
    let request = LockRequest::new(key).table(table);
    let created = client.create_lock_ref(&request, "", Uuid::new_v4()).await;
    created.unwrap().lock_ref
}

/// The lockRef with its grant, and the token, if the entry is the first.
pub async fn acquire_lock(client: &Client, lock_ref: &str) -> Option<(String, u64)> {
    let acquired = client.acquire_lock(lock_ref).await.unwrap();
    match acquired.status {
        LockStatus::Held { fencing_token } => Some((acquired.lock_ref, fencing_token)),
        LockStatus::Waiting { .. } => None,
    }
}

/// Whether it had been released before.
pub async fn release_lock(client: &Client, lock_ref: &str) -> bool {
    let numbers = CallNumbers::default();
    let released = client.release_lock(lock_ref, None, &numbers);
    released.await.unwrap()
}
