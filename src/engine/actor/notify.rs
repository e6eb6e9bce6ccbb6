//! Telling other homes what this one changed.
//!
//! A hint that says whose turn it is may be lost: who waits looks. Of an end the home must hear, or it goes on telling
//! a client that keeps itself alive that it still holds; so where it does not answer it is told through its row in the
//! store (I10).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::super::inner::Inner;
use super::super::peers::Presence;
use super::{Actor, Run};
use crate::lock::{EndedAs, KeyId, ReplicaId, State};
use crate::store::{HandOverRequest, HandOverTarget};

/// A home that did not answer by then is told through the store as well: by then, and the time until its next read at
/// what it is asked, a second has not ended yet.
const ANSWERS_WITHIN: Duration = Duration::from_millis(250);

impl Actor {
    /// After a swap of this replica: tells the homes that have something to do now.
    pub(super) fn notify_homes(&self, run: &Run, old: &State) {
        let Some(new) = self.state.as_ref().filter(|_| run.inner.shared) else {
            return;
        };
        // Who is told, and whether an entry of theirs was ended.
        let mut news: BTreeMap<ReplicaId, bool> = BTreeMap::new();
        if let Some(holder) = new.holder()
            && old.grant != new.grant
        {
            news.insert(holder.home, false);
        }
        for entry in old.entries.iter().filter(|e| new.entry(e.seq).is_none()) {
            let ended = new.how_ended(entry.seq) != EndedAs::Released;
            *news.entry(entry.home).or_default() |= ended;
        }
        news.remove(&run.inner.replica);
        for (home, ended) in news {
            let presence = run.inner.members.presence(home);
            match (presence, ended) {
                // One that is down serves nobody.
                (Presence::Local | Presence::Down, _) | (Presence::Unsure, false) => {}
                (Presence::Live(peer), false) => {
                    run.inner.peers.hint(&peer, &self.id, new.version);
                }
                (Presence::Live(_) | Presence::Unsure, true) => {
                    notify_end(&run.inner, &self.id, new.version, home);
                }
            }
        }
    }

    /// The store shows what became of swaps whose outcome was not known: as after a swap.
    pub(super) fn notify_unnotified(&mut self, run: &Run) {
        let now = self.state.as_ref().map_or(0, |state| state.version);
        // What shows no change yet may show one later.
        let shown = |old: &mut Arc<State>| old.version < now;
        if let Some(old) = self.remote_entries.unnotified.take_if(shown) {
            self.notify_homes(run, &old);
        }
    }
}

/// Tells a home of an end until it heard: by a call, else through the store.
fn notify_end(inner: &Arc<Inner>, id: &Arc<KeyId>, version: u64, home: ReplicaId) {
    let Ok(in_flight) = Arc::clone(&inner.telling).try_acquire_owned() else {
        tracing::warn!(key = %id, %home, "too many ended entries at once: a home was not notified of one");
        return;
    };
    let (inner, id) = (Arc::clone(inner), Arc::clone(id));
    tokio::spawn(async move {
        if !answers(&inner, &id, version, home).await {
            write(&inner, &id, version, home).await;
        }
        drop(in_flight);
    });
}

async fn answers(inner: &Inner, id: &KeyId, version: u64, home: ReplicaId) -> bool {
    let Presence::Live(peer) = inner.members.presence(home) else {
        return false;
    };
    tokio::select! {
        biased;
        answered = inner.peers.notify(&peer, id, version) => answered.is_ok(),
        () = inner.clock.sleep(ANSWERS_WITHIN) => false,
    }
}

async fn write(inner: &Inner, id: &KeyId, version: u64, home: ReplicaId) {
    let request = HandOverRequest {
        id: inner.ids.uuid(),
        home,
        target: HandOverTarget::Key {
            key: id.clone(),
            version,
        },
    };
    let mut tries = 0;
    while !*inner.fenced.borrow() && inner.members.presence(home) != Presence::Down {
        match inner.store.request_hand_over(&request).await {
            Ok(()) => return,
            Err(error) => {
                tracing::debug!(key = %id, %home, %error, "could not notify a home of an ended entry yet");
            }
        }
        inner.clock.sleep(inner.backoff(tries)).await;
        tries += 1;
    }
}
