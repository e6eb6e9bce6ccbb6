//! The last failure of calls that are repeated, for callers that show it.

use std::sync::Arc;

use parking_lot::Mutex;

use super::fault::ServerError;

/// The failure of the last attempt; nothing once a later one succeeded.
#[derive(Default)]
pub(crate) struct LastFailure(Mutex<Option<ServerError>>);

impl LastFailure {
    pub(crate) fn note(&self, error: ServerError) {
        *self.0.lock() = Some(error);
    }

    pub(crate) fn forget(&self) {
        *self.0.lock() = None;
    }

    pub(crate) fn get(&self) -> Option<ServerError> {
        self.0.lock().clone()
    }
}

/// Why a wait for a lock makes no progress, while it goes on. Cheap to clone.
#[derive(Clone, Default)]
pub struct WaitFailure(pub(crate) Arc<LastFailure>);

impl WaitFailure {
    /// The failure of its last call; `None` while it is answered.
    pub fn get(&self) -> Option<ServerError> {
        self.0.get()
    }
}

impl std::fmt::Debug for WaitFailure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("WaitFailure").field(&self.get()).finish()
    }
}
