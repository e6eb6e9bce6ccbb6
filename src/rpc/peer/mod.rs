//! What replicas say to each other over gRPC: the client ([`PeerClient`]), the service ([`PeerRpc`]), the secret
//! that both know, and TLS with certificates on both sides ([`PeerTls`]).
//!
//! No decision about locks is made here; where a call belongs is said in [`super::route`].

mod client;
mod connect;
mod secret;
mod service;
mod shown;
mod tls;

pub use client::{PING_EVERY, PING_TIMEOUT, PeerClient};
pub use connect::{Dial, Wire};
pub use secret::{PeerSecret, SecretError};
pub use service::{PeerRpc, STREAMS_MAX};
pub use tls::{PeerTls, PeerTlsFiles};

use uuid::Uuid;

use super::route::ForwardOutcome;
use crate::limits::Limits;
use crate::lock::{ReplicaId, SessionId};

/// What a message between replicas has beside the message that it carries, in bytes, generously.
const ENVELOPE_BYTES_MAX: usize = 64 * 1024;
/// How large a page may be that they show each other, in bytes: whatever a client's message may be.
const PAGE_BYTES_MAX: usize = 4 * 1024 * 1024;

/// How large a message between replicas may be, in bytes.
fn message_bytes_max(limits: &Limits) -> usize {
    let carried = limits.message_bytes_max.saturating_add(ENVELOPE_BYTES_MAX);
    carried.max(PAGE_BYTES_MAX)
}

/// The messages and both sides: no part of the contract.
#[allow(missing_docs, clippy::all, clippy::pedantic)]
pub mod proto {
    tonic::include_proto!("fermata.internal.v1");
}

fn elsewhere<A>(answer: &proto::Elsewhere) -> ForwardOutcome<A> {
    match Uuid::from_slice(&answer.home) {
        Ok(home) => ForwardOutcome::Elsewhere {
            home: ReplicaId(home),
            version: answer.version,
        },
        Err(_) => ForwardOutcome::NotAsked("the answer names no replica".to_owned()),
    }
}

fn unable<A>(answer: proto::Unable) -> ForwardOutcome<A> {
    match answer.nothing_done {
        true => ForwardOutcome::NotAsked(answer.why),
        false => ForwardOutcome::Unknown(answer.why),
    }
}

fn id_bytes(id: Uuid) -> bytes::Bytes {
    bytes::Bytes::copy_from_slice(id.as_bytes())
}

/// What is no UUID is no session of this service.
fn session_ids(ids: &[bytes::Bytes]) -> Vec<SessionId> {
    let ids = ids.iter().filter_map(|id| Uuid::from_slice(id).ok());
    ids.map(SessionId).collect()
}

#[cfg(test)]
pub(crate) mod for_tests {
    /// A certificate that signs itself, and its key, as text.
    pub fn certificate() -> (String, String) {
        let key = rcgen::KeyPair::generate().unwrap();
        let certificate = rcgen::CertificateParams::default();
        let certificate = certificate.self_signed(&key).unwrap();
        (certificate.pem(), key.serialize_pem())
    }
}
