//! The open hand-over requests, from their read to their answer (H4).

use std::collections::BTreeSet;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;

use super::within::within;
use crate::clock::Clock;
use crate::store::{ClusterStore, HandOverRequest, HandOverSubject, StoreError};

/// Hand-over requests in work at once, at a home or at the replica that asks.
pub const HAND_OVER_REQUESTS_MAX: usize = 500;

type OpenSubjects = Arc<Mutex<BTreeSet<HandOverSubject>>>;

fn locked(open: &OpenSubjects) -> MutexGuard<'_, BTreeSet<HandOverSubject>> {
    open.lock()
}

/// A hand-over request to this replica. While it is kept, the same key is not requested again in the same term. Once dropped, it
/// comes again with the next read, unless it was forgotten.
pub struct OpenHandOver {
    /// The request.
    pub request: HandOverRequest,
    store: Arc<dyn ClusterStore>,
    clock: Arc<dyn Clock>,
    open: OpenSubjects,
}

impl OpenHandOver {
    /// Deletes the request: the key was handed over, or the request is obsolete. If this fails, the request comes again.
    pub async fn forget(self) -> Result<(), StoreError> {
        let forgotten = self.store.forget_hand_over_request(&self.request);
        within(&*self.clock, forgotten).await
    }
}

impl std::fmt::Debug for OpenHandOver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("OpenHandOver").field(&self.request).finish()
    }
}

impl Drop for OpenHandOver {
    fn drop(&mut self) {
        locked(&self.open).remove(&self.request.subject);
    }
}

/// Passes each request on, once at a time.
pub(super) struct HandOvers {
    store: Arc<dyn ClusterStore>,
    clock: Arc<dyn Clock>,
    open: OpenSubjects,
    sender: mpsc::Sender<OpenHandOver>,
}

impl HandOvers {
    pub fn new(
        store: Arc<dyn ClusterStore>,
        clock: Arc<dyn Clock>,
        sender: mpsc::Sender<OpenHandOver>,
    ) -> Self {
        HandOvers {
            store,
            clock,
            open: OpenSubjects::default(),
            sender,
        }
    }

    /// Takes the requests of a read. Those without room come again with the next read.
    pub fn saw(&self, requests: Vec<HandOverRequest>) {
        for request in requests {
            let is_first = {
                let mut open = locked(&self.open);
                open.len() < HAND_OVER_REQUESTS_MAX && open.insert(request.subject.clone())
            };
            if !is_first {
                continue;
            }
            let opened = OpenHandOver {
                request,
                store: Arc::clone(&self.store),
                clock: Arc::clone(&self.clock),
                open: Arc::clone(&self.open),
            };
            match self.sender.try_send(opened) {
                Ok(()) => {}
                Err(TrySendError::Full(_) | TrySendError::Closed(_)) => return,
            }
        }
    }
}
