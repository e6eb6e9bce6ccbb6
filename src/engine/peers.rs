//! What the replicas of one service are to each other: who is there, and how they are called.
//!
//! Calls are forwarded by the gRPC edge, which asks here where to; what the engines themselves have to say to
//! each other goes through [`Peers`]. Nothing depends on it for safety: what is lost there is found in the store.

use async_trait::async_trait;

use super::Engine;
use super::api::{EngineError, Renewed};
use crate::lock::{KeyId, LockRef, ReplicaId, Seq, SessionId};

/// Another replica.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Peer {
    /// Its id.
    pub id: ReplicaId,
    /// Where it takes calls of replicas, as `host:port`.
    pub address: String,
}

/// What is known of a replica.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Presence {
    /// It is this one.
    Here,
    /// It beats.
    Live(Peer),
    /// It stopped, or did not beat for a replica TTL: what it was home to may be taken over.
    Down,
    /// It is not known yet whether it is live. Ask again soon.
    Unsure,
}

/// Why another replica gave no answer.
#[derive(Clone, Debug, thiserror::Error)]
pub enum PeerError {
    /// It could not be called; whether it did what was asked is not known.
    #[error("the replica cannot be called: {0}")]
    Unreachable(String),
    /// It refused.
    #[error(transparent)]
    Refused(EngineError),
}

/// How the engine calls other replicas.
#[async_trait]
pub trait Peers: Send + Sync + 'static {
    /// Tells a replica that a key has this version now. Best effort: it may be lost, repeated or late.
    fn hint(&self, to: &Peer, key: &KeyId, version: u64);

    /// A sign of life for a session that the replica keeps; `place` lives by it from now on.
    async fn renew_session(
        &self,
        to: &Peer,
        session: SessionId,
        place: Option<(KeyId, Seq)>,
    ) -> Result<Renewed, PeerError>;
}

/// For a replica that has no others.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoPeers;

#[async_trait]
impl Peers for NoPeers {
    fn hint(&self, _to: &Peer, _key: &KeyId, _version: u64) {}

    async fn renew_session(
        &self,
        to: &Peer,
        _session: SessionId,
        _place: Option<(KeyId, Seq)>,
    ) -> Result<Renewed, PeerError> {
        Err(PeerError::Unreachable(to.address.clone()))
    }
}

impl Engine {
    /// The replica that should serve a key, softly: the same for all who ask, while it lives. `Here`, or `Live`.
    pub fn affinity(&self, _key: &KeyId) -> Presence {
        Presence::Here
    }

    /// What is known of a replica.
    pub fn presence(&self, id: ReplicaId) -> Presence {
        match self.replica() == id {
            true => Presence::Here,
            false => Presence::Down,
        }
    }

    /// Makes this replica the home of a lockRef that `home` has and cannot be asked for: at once where it is
    /// down, else once it consented through the store (I10). Fails where that takes too long, with `Unavailable`,
    /// and with `Elsewhere` where another replica has it meanwhile.
    pub async fn take_over(&self, lock_ref: &LockRef, home: ReplicaId) -> Result<(), EngineError> {
        let _ = (lock_ref, home);
        Err(EngineError::Unavailable(
            "its home cannot be called".to_owned(),
        ))
    }

    /// As [`Engine::take_over`], for a session and the replica that renews it.
    pub async fn take_session(
        &self,
        session: SessionId,
        keeper: ReplicaId,
    ) -> Result<(), EngineError> {
        let _ = (session, keeper);
        Err(EngineError::Unavailable(
            "its replica cannot be called".to_owned(),
        ))
    }

    /// Another replica says that a key has this version now.
    pub fn hinted(&self, key: KeyId, version: u64) {
        let _ = (key, version);
    }

    /// Another replica passes on a sign of life of a session that this one keeps, and a place of its own that
    /// lives by it from now on.
    pub async fn renew_for(
        &self,
        session: SessionId,
        place: Option<(KeyId, Seq)>,
    ) -> Result<Renewed, EngineError> {
        let _ = (session, place);
        Err(EngineError::SessionOver)
    }
}
