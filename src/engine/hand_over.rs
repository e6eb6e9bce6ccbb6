//! Keys that change their home: taken over from replicas that are gone (H3), asked for where their home cannot be called,
//! and handed over when this replica stops (H4).

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;

use super::Engine;
use super::api::EngineError;
use super::peers::{Peer, Presence, Ranked};
use super::replica::Replica;
use super::sessions;
use crate::key::Home;
use crate::key::machine::{Answer, Call};
use crate::lock::{KeyId, ReplicaId, SessionId};
use crate::membership::OpenHandOver;
use crate::store::{HandOverRequest, HandOverSubject};

/// How long a key that was asked for through the store is waited for.
const REQUESTED_FOR: Duration = Duration::from_secs(5);
/// How often it is looked for meanwhile.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// How often a holder that is served is looked at for its end.
const BUSY_LOOK_EVERY: Duration = Duration::from_millis(20);
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
        request(&replica, &id, from).await
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

/// Asks the home of a key for it through the store, and waits for it.
async fn request(
    replica: &Arc<Replica>,
    id: &Arc<KeyId>,
    from: ReplicaId,
) -> Result<(), EngineError> {
    let no_way = || {
        EngineError::Unavailable(
            "the home of this key cannot be called, and has not handed it over yet".to_owned(),
        )
    };
    let Some(cluster) = &replica.store.cluster else {
        return Err(no_way());
    };
    let state = replica.store.keys.load(id).await;
    let state = state.map_err(|error| EngineError::Unavailable(error.to_string()))?;
    let home = state.and_then(|state| state.home);
    let Some(home) = home.filter(|home| home.replica == from) else {
        // Somebody else was quicker: the next try says who.
        return Ok(());
    };
    let request = HandOverRequest {
        home: from,
        subject: HandOverSubject::Key {
            key: KeyId::clone(id),
            term: home.term,
        },
        to: replica.id,
    };
    let sent = cluster.request_hand_over(&request).await;
    sent.map_err(|error| EngineError::Unavailable(error.to_string()))?;
    let until = replica.clock.boot().saturating_add(REQUESTED_FOR);
    let adopt = Call::Adopt {
        term: home.term.saturating_add(1),
    };
    while replica.clock.boot() < until {
        replica.clock.sleep(LOOK_EVERY).await;
        match replica.asked(id, adopt.clone()).await {
            Ok(_) => {
                if let Err(error) = cluster.forget_hand_over_request(&request).await {
                    tracing::debug!(key = %id, %error, "a hand-over request could not be deleted");
                }
                return Ok(());
            }
            Err(EngineError::Elsewhere { home, .. }) if home == from => {}
            Err(error) => return Err(error),
        }
        if replica.membership.presence(from) == Presence::Down {
            return replica.asked(id, Call::TakeOver { from }).await.map(drop);
        }
    }
    Err(no_way())
}

/// Another replica asks for a key, or a session, through the store: it is handed over, a key unless its holder was served
/// a moment ago.
pub(super) async fn answer(replica: &Arc<Replica>, open: OpenHandOver) {
    match open.request.subject.clone() {
        HandOverSubject::Key { key, term } => give_key(replica, open, key, term).await,
        HandOverSubject::Session { session, epoch } => {
            let to = open.request.to;
            match sessions::give(replica, session, epoch, to).await {
                Ok(()) => forget(open).await,
                Err(error) => {
                    tracing::debug!(%session, %error, "a session could not be handed over");
                }
            }
        }
    }
}

async fn forget(open: OpenHandOver) {
    if let Err(error) = open.forget().await {
        tracing::debug!(%error, "a hand-over request could not be deleted");
    }
}

/// A key is given once its holder was not served for a moment, or at the holder's end; one that came with its holder at
/// the holder's end only.
async fn give_key(replica: &Arc<Replica>, open: OpenHandOver, key: KeyId, mut term: u64) {
    let request = &open.request;
    let id = Arc::new(key);
    let until = replica.clock.boot().saturating_add(REQUESTED_FOR);
    let mut first_holder = None;
    loop {
        let known = replica.keys.find(&id).and_then(|cell| {
            let slot = cell.slot();
            let state = slot.machine.state()?;
            let holder = state.holder().map(|holder| holder.seq);
            let at_its_end = *first_holder.get_or_insert(holder) != holder;
            let is_idle = !slot.is_busy(replica.clock.boot());
            let is_due = at_its_end || (is_idle && !slot.machine.has_inherited_holder());
            Some((state.home, is_due))
        });
        match known {
            Some((home, _))
                if home
                    != Some(Home {
                        replica: replica.id,
                        term,
                    }) =>
            {
                return;
            }
            Some((_, true)) => break,
            Some((_, false)) => {}
            // Forgotten, or never heard of (H11): nobody but this replica can give it, so it takes it up again.
            None => {
                let from = replica.id;
                match replica.asked(&id, Call::TakeOver { from }).await {
                    Ok(Answer::Home(home)) if home.term == term.saturating_add(1) => {
                        term = home.term;
                    }
                    // It is another's by now: the request means nothing any more.
                    Err(EngineError::Elsewhere { .. }) => return forget(open).await,
                    Ok(_) | Err(_) => return,
                }
            }
        }
        if replica.clock.boot() >= until {
            // While it stands the request comes again.
            return;
        }
        replica.clock.sleep(BUSY_LOOK_EVERY).await;
    }
    match replica.membership.presence(request.to) {
        Presence::Live(_) => {}
        Presence::Local | Presence::Silent | Presence::Down | Presence::Unsure => return,
    }
    match replica.asked(&id, Call::HandOver { to: request.to }).await {
        Ok(_) => {
            tracing::info!(key = %id, to = %request.to, "handed a key over that was asked for");
            forget(open).await;
        }
        Err(error) => tracing::debug!(key = %id, %error, "a key could not be handed over"),
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
