//! Requests of this replica, through the store, for a key whose home it cannot call (H4).

use std::sync::Arc;

use super::api::EngineError;
use super::limits::{REQUESTED_FOR, REREAD_EVERY};
use super::peers::Presence;
use super::requests::Requests;
use super::shell::KeyShell;
use crate::key::machine::Call;
use crate::lock::{KeyId, ReplicaId};
use crate::store::{ClusterStore, HandOverRequest, HandOverSubject, KeyStore, Store};

fn no_way() -> EngineError {
    EngineError::Unavailable(
        "the home of this key cannot be called, and has not handed the key over yet".to_owned(),
    )
}

/// Requests keys from their homes, through the store.
pub(super) struct KeyRequests {
    shell: Arc<KeyShell>,
    keys: Arc<dyn KeyStore>,
    cluster: Option<Arc<dyn ClusterStore>>,
    open: Requests,
}

impl KeyRequests {
    pub fn new(shell: Arc<KeyShell>, store: &Store) -> Self {
        KeyRequests {
            shell,
            keys: Arc::clone(&store.keys),
            cluster: store.cluster.clone(),
            open: Requests::default(),
        }
    }

    /// Requests a key, and waits until its home is this replica, or any other than `from`.
    pub async fn request(
        self: &Arc<Self>,
        id: &Arc<KeyId>,
        from: ReplicaId,
    ) -> Result<(), EngineError> {
        let Some(cluster) = &self.cluster else {
            return Err(no_way());
        };
        let (awaited, asked) = self.open.join(id).ok_or_else(no_way)?;
        if let Some(asked) = asked {
            let (requests, id) = (Arc::clone(self), Arc::clone(id));
            let cluster = Arc::clone(cluster);
            tokio::spawn(async move {
                asked.done(requests.ask_for(&*cluster, &id, from).await);
            });
        }
        awaited.outcome().await.unwrap_or_else(|| Err(no_way()))
    }

    async fn ask_for(
        &self,
        cluster: &dyn ClusterStore,
        id: &Arc<KeyId>,
        from: ReplicaId,
    ) -> Result<(), EngineError> {
        let state = self.keys.load(id).await;
        let state = state.map_err(EngineError::of_store)?;
        let home = state.and_then(|state| state.home);
        let Some(home) = home.filter(|home| home.replica == from) else {
            // Another replica was quicker: the next try names it.
            return Ok(());
        };
        // A request is for one term: the key may have come and gone back between two looks.
        let mut asked_in = None;
        let mut term = home.term;
        let until = self.shell.local.clock.boot().saturating_add(REQUESTED_FOR);
        while self.shell.local.clock.boot() < until {
            if asked_in != Some(term) {
                let request = HandOverRequest {
                    home: from,
                    subject: HandOverSubject::Key {
                        key: KeyId::clone(id),
                        term,
                    },
                    to: self.shell.local.id,
                };
                let sent = cluster.request_hand_over(&request).await;
                sent.map_err(EngineError::of_store)?;
                asked_in = Some(term);
            }
            self.shell.local.clock.sleep(REREAD_EVERY).await;
            let adopt = Call::Adopt {
                term: term.saturating_add(1),
            };
            match self.shell.asked(id, adopt).await {
                Ok(_) => {
                    if let Some(cell) = self.shell.keys.find(id) {
                        cell.slot().users.fetched(self.shell.local.clock.boot());
                    }
                    return Ok(());
                }
                Err(EngineError::Elsewhere { home, version }) if home == from => {
                    term = term.max(version);
                }
                // The store did not answer: look again.
                Err(EngineError::Unavailable(_)) => {}
                Err(error) => return Err(error),
            }
            if self.shell.local.presence(from) == Presence::Down {
                return self
                    .shell
                    .asked(id, Call::TakeOver { from })
                    .await
                    .map(drop);
            }
        }
        Err(no_way())
    }
}
