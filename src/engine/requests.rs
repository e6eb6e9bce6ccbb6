//! Keys that this replica asks for through the store, since it cannot call their home (H4).

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

/// How long a key is waited for.
const REQUESTED_FOR: Duration = Duration::from_secs(5);
/// How often it is looked for meanwhile.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// How many keys may be asked for at once.
const OPEN_MAX: usize = 10_000;

type Outcome = Option<Result<(), EngineError>>;
type Open = HashMap<Arc<KeyId>, watch::Receiver<Outcome>>;

/// The keys that are asked for: all calls for one key share one request.
#[derive(Debug, Default)]
pub(super) struct Requests(Mutex<Open>);

/// Takes a request out of the open ones, whatever ends it.
struct Opened {
    replica: Arc<Replica>,
    id: Arc<KeyId>,
}

impl Drop for Opened {
    fn drop(&mut self) {
        self.replica.requests.open().remove(&self.id);
    }
}

fn no_way() -> EngineError {
    EngineError::Unavailable(
        "the home of this key cannot be called, and has not handed it over yet".to_owned(),
    )
}

impl Requests {
    fn open(&self) -> MutexGuard<'_, Open> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks for a key, and waits until this replica is its home, or somebody else than `from` is.
    pub async fn request(
        &self,
        replica: &Arc<Replica>,
        id: &Arc<KeyId>,
        from: ReplicaId,
    ) -> Result<(), EngineError> {
        let Some(cluster) = &replica.store.cluster else {
            return Err(no_way());
        };
        let mut outcome = {
            let mut open = self.open();
            match open.get(id) {
                Some(outcome) => outcome.clone(),
                None if open.len() >= OPEN_MAX => return Err(no_way()),
                None => {
                    let (sender, outcome) = watch::channel(None);
                    open.insert(Arc::clone(id), outcome.clone());
                    let opened = Opened {
                        replica: Arc::clone(replica),
                        id: Arc::clone(id),
                    };
                    let cluster = Arc::clone(cluster);
                    tokio::spawn(async move {
                        let outcome = ask_for(&opened.replica, &*cluster, &opened.id, from).await;
                        // First, so that who comes after this asks anew.
                        drop(opened);
                        sender.send_replace(Some(outcome));
                    });
                    outcome
                }
            }
        };
        match outcome.wait_for(Option::is_some).await {
            Ok(outcome) => outcome.clone().unwrap_or(Ok(())),
            // Its task panicked.
            Err(_) => Err(no_way()),
        }
    }
}

async fn ask_for(
    replica: &Arc<Replica>,
    cluster: &dyn ClusterStore,
    id: &Arc<KeyId>,
    from: ReplicaId,
) -> Result<(), EngineError> {
    let state = replica.store.keys.load(id).await;
    let state = state.map_err(|error| EngineError::Unavailable(error.to_string()))?;
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
            sent.map_err(|error| EngineError::Unavailable(error.to_string()))?;
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
            Err(error) => return Err(error),
        }
        if replica.membership.presence(from) == Presence::Down {
            return replica.asked(id, Call::TakeOver { from }).await.map(drop);
        }
    }
    Err(no_way())
}
