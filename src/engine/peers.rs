//! What the replicas of one service are to each other: who is there, and how they are called.
//!
//! Calls are forwarded by the gRPC edge, which asks here where to; what the engines themselves have to say to
//! each other goes through [`Peers`]. Nothing depends on it for safety: what is lost there is found in the store.

use async_trait::async_trait;

use super::api::{EngineError, Renewed};
use crate::lock::{KeyId, ReplicaId, SessionId};

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
    Local,
    /// It sends heartbeats.
    Live(Peer),
    /// It stopped, or sent no heartbeat for a replica TTL: what it was home to may be taken over.
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

    /// As [`Peers::hint`], and whether it was heard.
    async fn notify(&self, to: &Peer, key: &KeyId, version: u64) -> Result<(), PeerError>;

    /// Tells a replica that a session has ended. Best effort as well.
    fn session_ended(&self, to: &Peer, session: SessionId);

    /// A renewal for a session that the replica keeps.
    async fn renew_session(&self, to: &Peer, session: SessionId) -> Result<Renewed, PeerError>;
}

/// For a replica that has no others.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoPeers;

#[async_trait]
impl Peers for NoPeers {
    fn hint(&self, _to: &Peer, _key: &KeyId, _version: u64) {}

    async fn notify(&self, to: &Peer, _key: &KeyId, _version: u64) -> Result<(), PeerError> {
        Err(PeerError::Unreachable(to.address.clone()))
    }

    fn session_ended(&self, _to: &Peer, _session: SessionId) {}

    async fn renew_session(&self, to: &Peer, _session: SessionId) -> Result<Renewed, PeerError> {
        Err(PeerError::Unreachable(to.address.clone()))
    }
}
