//! What went wrong last, for whoever asks why nothing comes.

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::fault::ServerError;

/// What the last attempt of one kind failed with; nothing once a later one of that kind succeeded.
#[derive(Default)]
pub(super) struct LastFailure(Mutex<Option<ServerError>>);

impl LastFailure {
    fn lock(&self) -> MutexGuard<'_, Option<ServerError>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn note(&self, error: ServerError) {
        *self.lock() = Some(error);
    }

    pub(super) fn forget(&self) {
        *self.lock() = None;
    }

    pub(super) fn get(&self) -> Option<ServerError> {
        self.lock().clone()
    }
}
