//! The open requests of this replica for keys, through the store. All calls for one key share one request.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::watch;

use super::api::EngineError;
use crate::lock::KeyId;
use crate::membership::HAND_OVER_REQUESTS_MAX;

type RequestOutcome = Option<Result<(), EngineError>>;
type OpenRequests = HashMap<Arc<KeyId>, watch::Receiver<RequestOutcome>>;

/// The open requests.
#[derive(Debug, Default)]
pub(super) struct Requests(Arc<Mutex<OpenRequests>>);

/// A request that this call has to make.
pub(super) struct OpenRequest {
    open: Arc<Mutex<OpenRequests>>,
    id: Arc<KeyId>,
    outcome: watch::Sender<RequestOutcome>,
}

/// The outcome of a request, for all its callers.
pub(super) struct Awaited(watch::Receiver<RequestOutcome>);

fn locked(open: &Mutex<OpenRequests>) -> MutexGuard<'_, OpenRequests> {
    open.lock()
}

impl Requests {
    /// Joins the request for a key; if there is none, the caller has to make it. `None`: too many are open.
    pub fn join(&self, id: &Arc<KeyId>) -> Option<(Awaited, Option<OpenRequest>)> {
        let mut open = locked(&self.0);
        if let Some(outcome) = open.get(id) {
            return Some((Awaited(outcome.clone()), None));
        }
        if open.len() >= HAND_OVER_REQUESTS_MAX {
            return None;
        }
        let (sender, outcome) = watch::channel(None);
        open.insert(Arc::clone(id), outcome.clone());
        let asked = OpenRequest {
            open: Arc::clone(&self.0),
            id: Arc::clone(id),
            outcome: sender,
        };
        Some((Awaited(outcome), Some(asked)))
    }
}

impl OpenRequest {
    /// Tells all waiting calls. A later call makes a new request.
    pub fn done(self, outcome: Result<(), EngineError>) {
        locked(&self.open).remove(&self.id);
        self.outcome.send_replace(Some(outcome));
    }
}

impl Drop for OpenRequest {
    fn drop(&mut self) {
        let mut open = locked(&self.open);
        // Not a new request after `done`.
        if open
            .get(&self.id)
            .is_some_and(|of| of.same_channel(&self.outcome.subscribe()))
        {
            open.remove(&self.id);
        }
    }
}

impl Awaited {
    /// `None` if the task of the request panicked.
    pub async fn outcome(mut self) -> RequestOutcome {
        let outcome = self.0.wait_for(Option::is_some).await;
        outcome.ok().and_then(|outcome| outcome.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::{Key, TableName};

    fn id() -> Arc<KeyId> {
        Arc::new(KeyId {
            table: TableName::default_table(),
            key: Key::parse("k", 64).unwrap(),
        })
    }

    #[tokio::test]
    async fn calls_for_one_key_share_one_request_until_it_is_done() {
        let requests = Requests::default();
        let (first, asked) = requests.join(&id()).unwrap();
        let (second, none) = requests.join(&id()).unwrap();
        assert!(none.is_none());
        asked.unwrap().done(Ok(()));
        assert_eq!(first.outcome().await, Some(Ok(())));
        assert_eq!(second.outcome().await, Some(Ok(())));
        assert!(requests.join(&id()).unwrap().1.is_some());
    }

    #[tokio::test]
    async fn who_waits_for_a_request_whose_maker_is_gone_learns_so() {
        let requests = Requests::default();
        let (waiting, asked) = requests.join(&id()).unwrap();
        drop(asked);
        assert_eq!(waiting.outcome().await, None);
        assert!(requests.join(&id()).unwrap().1.is_some());
    }
}
