//! Keys and sessions that come to this replica: from replicas that are gone (H3), on its request from a home that it cannot call, and by
//! hand-over (H4).

use super::api::EngineError;
use super::calls::Engine;
use super::peers::{Presence, Ranked};
use super::sessions;
use crate::key::machine::Call;
use crate::lock::{KeyId, NameHash, ReplicaId, SessionId};

impl Engine {
    /// The presence of a replica.
    pub fn presence(&self, id: ReplicaId) -> Presence {
        self.current()
            .map_or(Presence::Unsure, |replica| replica.local.presence(id))
    }

    /// Notes that a replica announced its stop: it becomes the home of no more keys.
    pub fn note_leaving(&self, id: ReplicaId) {
        if let Ok(replica) = self.current() {
            replica.local.membership.note_leaving(id);
        }
    }

    /// The first replica to ask for a key, and the right home for a key without one (H8).
    pub fn ranked(&self, key: NameHash) -> Presence {
        let Ok(replica) = self.current() else {
            return Presence::Local;
        };
        match replica.local.ranked(key) {
            Ranked::Remote(peer) => Presence::Live(peer),
            Ranked::Local => Presence::Local,
        }
    }

    /// Makes this replica the home of a key whose home is down or has stopped; requests the key through the store if the home
    /// is live but cannot be called.
    pub async fn take_over(&self, id: &KeyId, from: ReplicaId) -> Result<(), EngineError> {
        let replica = self.current()?;
        let id = self.id_of(id.clone())?;
        let local = &replica.local;
        if from == local.id || local.declare_down(from).await? {
            let asked = replica.shell.asked(&id, Call::TakeOver { from }).await;
            return asked.map(drop);
        }
        replica.requests.request(&id, from).await
    }

    /// Makes this replica the keeper of a session whose keeper is down; requests it from a live one through the store.
    pub async fn take_session(
        &self,
        session: SessionId,
        from: ReplicaId,
    ) -> Result<(), EngineError> {
        let replica = self.current()?;
        sessions::take_over(&replica.sessions, session, from).await
    }

    /// Another replica handed a session to this one. If this message is lost, the next call for the session finds its row, or
    /// the sweep does.
    pub fn session_given(&self, session: SessionId) {
        if let Ok(replica) = self.current() {
            replica.sessions.read_behind(session);
        }
    }

    /// Another replica handed a key to this one.
    pub fn handed_over(&self, id: KeyId, term: u64) -> Result<(), EngineError> {
        let replica = self.current()?;
        let id = self.id_of(id)?;
        tokio::spawn(async move {
            if let Err(error) = replica.shell.asked(&id, Call::Adopt { term }).await {
                tracing::debug!(key = %id, %error, "could not serve a handed-over key yet");
            }
        });
        Ok(())
    }
}
