//! Keys that change their home: taken over from replicas that are gone (H3), asked for where their home cannot be called,
//! and handed over when this replica stops (H4).

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;

use super::api::EngineError;
use super::peers::{Peer, Presence, Ranked};
use super::replica::Replica;
use super::sessions;
use super::{Engine, asking};
use crate::key::Home;
use crate::key::machine::{Answer, Call};
use crate::lock::{KeyId, ReplicaId, SessionId};

/// How many keys are handed over at once when this replica stops.
const AT_ONCE: usize = 64;
/// How long that may take in all: what is left is taken over by the others, at once as well.
const HAND_OVERS_MAX: Duration = Duration::from_secs(5);

impl Engine {
    /// What is known of a replica.
    pub fn presence(&self, id: ReplicaId) -> Presence {
        self.current()
            .map_or(Presence::Unsure, |replica| replica.membership.presence(id))
    }

    /// The replica that a key without a home goes to, and that a key is looked for at first.
    pub fn affinity(&self, id: &KeyId) -> Presence {
        let ranked = |replica: Arc<Replica>| replica.membership.ranked(id, &replica.zone);
        match self.current().map(ranked) {
            Ok(Ranked::Remote(peer)) => Presence::Live(peer),
            Ok(Ranked::Local) | Err(_) => Presence::Local,
        }
    }

    /// Makes this replica the home of a key whose home is down or has stopped; asks for it through the store where the
    /// home is live and could not be called.
    pub async fn take_over(&self, id: &KeyId, from: ReplicaId) -> Result<(), EngineError> {
        let replica = self.current()?;
        let id = self.id_of(id.clone())?;
        if from == replica.id || replica.is_down(from).await? {
            return replica.asked(&id, Call::TakeOver { from }).await.map(drop);
        }
        asking::request(&replica, &id, from).await
    }

    /// Makes this replica the keeper of a session whose keeper is down.
    pub async fn take_session(
        &self,
        session: SessionId,
        from: ReplicaId,
    ) -> Result<(), EngineError> {
        let replica = self.current()?;
        sessions::take_over(&replica, session, from).await
    }

    /// Another replica says that it handed a key to this one.
    pub fn handed_over(&self, id: KeyId, term: u64) -> Result<(), EngineError> {
        let replica = self.current()?;
        let id = self.id_of(id)?;
        tokio::spawn(async move {
            if let Err(error) = replica.asked(&id, Call::Adopt { term }).await {
                tracing::debug!(key = %id, %error, "a key that was handed over is not served yet");
            }
        });
        Ok(())
    }
}

/// Hands the keys with live entries over to the replicas that are ranked next, before this one stops.
pub(super) async fn hand_over_all(replica: &Arc<Replica>) {
    let keys: Vec<Arc<KeyId>> = replica
        .keys
        .all()
        .filter(|cell| {
            let slot = cell.slot();
            let state = slot.machine.state();
            state.is_some_and(|state| !state.entries.is_empty())
        })
        .map(|cell| Arc::clone(&cell.id))
        .collect();
    let all = futures_util::stream::iter(keys)
        .for_each_concurrent(AT_ONCE, |id| hand_over_one(replica, id));
    tokio::select! {
        biased;
        () = all => {}
        () = replica.clock.sleep(HAND_OVERS_MAX) => {
            tracing::warn!("not all keys were handed over in time; the other replicas take them over");
        }
    }
}

async fn hand_over_one(replica: &Arc<Replica>, id: Arc<KeyId>) {
    let Some(peer) = replica.membership.next_ranked(&id, &replica.zone) else {
        return;
    };
    let answered = replica.ask(&id, Call::HandOver { to: peer.id }, None);
    let Ok(mut asking) = answered else {
        return;
    };
    match asking.answer().await {
        Ok(Answer::HandedOver(home)) => tell(replica, &peer, &id, home),
        Ok(_) => {}
        Err(error) => tracing::debug!(key = %id, ?error, "a key could not be handed over"),
    }
}

fn tell(replica: &Replica, peer: &Peer, id: &KeyId, home: Home) {
    if home.replica == peer.id {
        replica.peers.handed_over(peer, id, home.term);
    }
}
