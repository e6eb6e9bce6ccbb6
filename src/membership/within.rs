//! The time limit of a request to the store.

use std::time::Duration;

use crate::clock::Clock;
use crate::store::StoreError;

/// A longer request to the store is given up; it may have taken effect or not.
pub(super) const GIVEN_UP_AFTER: Duration = Duration::from_secs(2);

/// Bounds a request to the store.
pub(super) async fn within<T>(
    clock: &dyn Clock,
    work: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, StoreError> {
    tokio::select! {
        biased;
        done = work => done,
        () = clock.sleep(GIVEN_UP_AFTER) => {
            Err(StoreError::Unavailable("no answer in time".to_owned()))
        }
    }
}
