//! Asking for a key through the store, where its home cannot be called (H4): all calls for one key share one request.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;

use super::api::EngineError;
use super::peers::Presence;
use super::replica::Replica;
use crate::key::machine::Call;
use crate::lock::{KeyId, ReplicaId};
use crate::store::{ClusterStore, HandOverRequest, HandOverSubject};

/// How long a key is waited for: until a home that crashed when it was asked is known to be down.
const REQUESTED_FOR: Duration = Duration::from_secs(7);
/// How often it is looked for meanwhile.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// How many keys may be asked for at once: as many as a home works at.
const OPEN_MAX: usize = 500;

type Outcome = Option<Result<(), EngineError>>;
type Open = HashMap<Arc<KeyId>, watch::Receiver<Outcome>>;

/// The requests that are open.
#[derive(Debug, Default)]
pub(super) struct Requests(Arc<Mutex<Open>>);

/// A request that this call is to make.
pub(super) struct OpenRequest {
    open: Arc<Mutex<Open>>,
    id: Arc<KeyId>,
    outcome: watch::Sender<Outcome>,
}

/// What becomes of a request, whoever made it.
pub(super) struct Awaited(watch::Receiver<Outcome>);

fn locked(open: &Mutex<Open>) -> MutexGuard<'_, Open> {
    open.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Requests {
    /// Joins the request for a key; where there is none, the caller has to make it. `None`: too many are open.
    pub fn join(&self, id: &Arc<KeyId>) -> Option<(Awaited, Option<OpenRequest>)> {
        let mut open = locked(&self.0);
        if let Some(outcome) = open.get(id) {
            return Some((Awaited(outcome.clone()), None));
        }
        if open.len() >= OPEN_MAX {
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
    /// Tells all who wait. Who comes after this asks anew.
    pub fn done(self, outcome: Result<(), EngineError>) {
        locked(&self.open).remove(&self.id);
        self.outcome.send_replace(Some(outcome));
    }
}

impl Drop for OpenRequest {
    fn drop(&mut self) {
        let mut open = locked(&self.open);
        // Not that of who came after `done`.
        if open
            .get(&self.id)
            .is_some_and(|of| of.same_channel(&self.outcome.subscribe()))
        {
            open.remove(&self.id);
        }
    }
}

impl Awaited {
    /// `None` where whoever made the request panicked.
    pub async fn outcome(mut self) -> Outcome {
        let outcome = self.0.wait_for(Option::is_some).await;
        outcome.ok().and_then(|outcome| outcome.clone())
    }
}

fn no_way() -> EngineError {
    EngineError::Unavailable(
        "the home of this key cannot be called, and has not handed it over yet".to_owned(),
    )
}

/// Asks for a key, and waits until this replica is its home, or somebody else than `from` is.
pub(super) async fn request(
    replica: &Arc<Replica>,
    id: &Arc<KeyId>,
    from: ReplicaId,
) -> Result<(), EngineError> {
    let Some(cluster) = &replica.store.cluster else {
        return Err(no_way());
    };
    let (awaited, asked) = replica.requests.join(id).ok_or_else(no_way)?;
    if let Some(asked) = asked {
        let (replica, id) = (Arc::clone(replica), Arc::clone(id));
        let cluster = Arc::clone(cluster);
        tokio::spawn(async move {
            asked.done(ask_for(&replica, &*cluster, &id, from).await);
        });
    }
    awaited.outcome().await.unwrap_or_else(|| Err(no_way()))
}

async fn ask_for(
    replica: &Arc<Replica>,
    cluster: &dyn ClusterStore,
    id: &Arc<KeyId>,
    from: ReplicaId,
) -> Result<(), EngineError> {
    let state = replica.store.keys.load(id).await;
    let state = state.map_err(EngineError::of_store)?;
    let home = state.and_then(|state| state.home);
    let Some(home) = home.filter(|home| home.replica == from) else {
        // Somebody else was quicker: the next try says who.
        return Ok(());
    };
    // A request is for one term: the key may have been here and gone back before this looked.
    let mut asked_in = None;
    let mut term = home.term;
    let until = replica.clock.boot().saturating_add(REQUESTED_FOR);
    while replica.clock.boot() < until {
        if asked_in != Some(term) {
            let request = HandOverRequest {
                home: from,
                subject: HandOverSubject::Key {
                    key: KeyId::clone(id),
                    term,
                },
                to: replica.id,
            };
            let sent = cluster.request_hand_over(&request).await;
            sent.map_err(EngineError::of_store)?;
            asked_in = Some(term);
        }
        replica.clock.sleep(LOOK_EVERY).await;
        let adopt = Call::Adopt {
            term: term.saturating_add(1),
        };
        match replica.asked(id, adopt).await {
            Ok(_) => return Ok(()),
            Err(EngineError::Elsewhere { home, version }) if home == from => {
                term = term.max(version);
            }
            // The store answered nothing: it is looked for again.
            Err(EngineError::Unavailable(_)) => {}
            Err(error) => return Err(error),
        }
        if replica.membership.presence(from) == Presence::Down {
            return replica.asked(id, Call::TakeOver { from }).await.map(drop);
        }
    }
    Err(no_way())
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
