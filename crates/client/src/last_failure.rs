//! What went wrong last, for whoever asks why nothing comes.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::fault::ServerError;

/// What the last attempt failed with, of what its owner says; nothing once a later one succeeded.
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

/// Why a wait for a lock does not come through, while it goes on: for whoever shows how it goes. Cheap to clone.
#[derive(Clone, Default)]
pub struct WaitFailure(pub(super) Arc<LastFailure>);

impl WaitFailure {
    /// What its last call failed with; `None` while it is answered.
    pub fn get(&self) -> Option<ServerError> {
        self.0.get()
    }
}

impl std::fmt::Debug for WaitFailure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("WaitFailure").field(&self.get()).finish()
    }
}
