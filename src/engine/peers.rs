//! Calls of the engine to other replicas.
//!
//! The gRPC edge forwards the calls of clients, and asks here for the address. The engines' own messages go through [`Peers`].
//! Safety depends on none of these messages: a replica also finds their content in the store.

use async_trait::async_trait;

use super::api::{EngineError, Renewed};
use crate::lock::{KeyId, ReplicaId, SessionId};
pub use crate::membership::{Peer, Presence, Ranked};

/// Why another replica gave no answer.
#[derive(Clone, Debug, thiserror::Error)]
pub enum PeerError {
    /// It could not be called; the outcome is unknown.
    #[error("the replica cannot be called: {0}")]
    Unreachable(String),
    /// It refused.
    #[error(transparent)]
    Refused(EngineError),
}

/// The engine's calls to other replicas.
#[async_trait]
pub trait Peers: Send + Sync + 'static {
    /// Tells a replica that a key was handed to it in this term (H4). Best effort: it may be lost, repeated or late.
    fn handed_over(&self, to: &Peer, key: &KeyId, term: u64);

    /// Tells a replica that a session was handed to it. Best effort as well.
    fn session_given(&self, to: &Peer, session: SessionId);

    /// Tells a replica that sessions have ended, and waits a while for the end of their entries there. Returns the sessions
    /// with entries left.
    async fn sessions_ended(
        &self,
        to: &Peer,
        sessions: &[SessionId],
    ) -> Result<Vec<SessionId>, PeerError>;

    /// Tells a replica that replica `id` is about to stop, and waits until it knows.
    async fn leaving(&self, to: &Peer, id: ReplicaId) -> Result<(), PeerError>;

    /// Renews a session that the replica keeps.
    async fn renew_session(&self, to: &Peer, session: SessionId) -> Result<Renewed, PeerError>;
}

/// For a replica without others.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoPeers;

#[async_trait]
impl Peers for NoPeers {
    fn handed_over(&self, _to: &Peer, _key: &KeyId, _term: u64) {}

    fn session_given(&self, _to: &Peer, _session: SessionId) {}

    async fn sessions_ended(
        &self,
        to: &Peer,
        _sessions: &[SessionId],
    ) -> Result<Vec<SessionId>, PeerError> {
        Err(PeerError::Unreachable(to.address.clone()))
    }

    async fn leaving(&self, to: &Peer, _id: ReplicaId) -> Result<(), PeerError> {
        Err(PeerError::Unreachable(to.address.clone()))
    }

    async fn renew_session(&self, to: &Peer, _session: SessionId) -> Result<Renewed, PeerError> {
        Err(PeerError::Unreachable(to.address.clone()))
    }
}
