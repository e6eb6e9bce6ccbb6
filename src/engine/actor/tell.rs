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
use crate::lock::{KeyId, Over, ReplicaId, State};
use crate::store::{Question, Subject};

/// A home that did not answer by then is told through the store as well: by then, and the time until its next look at
/// what it is asked, a second is not over yet.
const ANSWERS_WITHIN: Duration = Duration::from_millis(250);

impl Actor {
    /// After a swap of this replica: tells the homes that have something to do now.
    pub(super) fn tell_others(&self, run: &Run, old: &State) {
        let Some(new) = self.state.as_ref().filter(|_| run.inner.shared) else {
            return;
        };
        // Who is told, and whether a place of theirs was ended.
        let mut news: BTreeMap<ReplicaId, bool> = BTreeMap::new();
        if let Some(holder) = new.holder()
            && old.grant != new.grant
        {
            news.insert(holder.home, false);
        }
        for entry in old.entries.iter().filter(|e| new.entry(e.seq).is_none()) {
            let ended = new.over(entry.seq) != Over::Released;
            *news.entry(entry.home).or_default() |= ended;
        }
        news.remove(&run.inner.replica);
        for (home, ended) in news {
            let presence = run.inner.members.presence(home);
            match (presence, ended) {
                // One that is down serves nobody.
                (Presence::Here | Presence::Down, _) | (Presence::Unsure, false) => {}
                (Presence::Live(peer), false) => {
                    run.inner.peers.hint(&peer, &self.id, new.version);
                }
                (Presence::Live(_) | Presence::Unsure, true) => {
                    tell_end(&run.inner, &self.id, new.version, home);
                }
            }
        }
    }

    /// The store shows what became of swaps whose outcome was not known: as after a swap.
    pub(super) fn tell_untold(&mut self, run: &Run) {
        let now = self.state.as_ref().map_or(0, |state| state.version);
        // What shows no change yet may show one later.
        let shown = |old: &mut Arc<State>| old.version < now;
        if let Some(old) = self.others.untold.take_if(shown) {
            self.tell_others(run, &old);
        }
    }
}

/// Tells a home of an end until it heard: by a call, else through the store.
fn tell_end(inner: &Arc<Inner>, id: &Arc<KeyId>, version: u64, home: ReplicaId) {
    let Ok(under_way) = Arc::clone(&inner.telling).try_acquire_owned() else {
        tracing::warn!(key = %id, %home, "too many ends at once: a home was not told of one");
        return;
    };
    let (inner, id) = (Arc::clone(inner), Arc::clone(id));
    tokio::spawn(async move {
        if !answers(&inner, &id, version, home).await {
            write(&inner, &id, version, home).await;
        }
        drop(under_way);
    });
}

async fn answers(inner: &Inner, id: &KeyId, version: u64, home: ReplicaId) -> bool {
    let Presence::Live(peer) = inner.members.presence(home) else {
        return false;
    };
    tokio::select! {
        biased;
        told = inner.peers.tell(&peer, id, version) => told.is_ok(),
        () = inner.clock.sleep(ANSWERS_WITHIN) => false,
    }
}

async fn write(inner: &Inner, id: &KeyId, version: u64, home: ReplicaId) {
    let question = Question {
        id: inner.ids.uuid(),
        home,
        about: Subject::Key {
            key: id.clone(),
            version,
        },
    };
    let mut tries = 0;
    while !*inner.dead.borrow() && inner.members.presence(home) != Presence::Down {
        match inner.store.ask_replica(&question).await {
            Ok(()) => return,
            Err(error) => {
                tracing::debug!(key = %id, %home, %error, "a home could not be told of an end yet");
            }
        }
        inner.clock.sleep(inner.backoff(tries)).await;
        tries += 1;
    }
}
