//! What replicas say to each other over gRPC: the client ([`PeerClient`]), the service ([`PeerRpc`]), the secret
//! that both know, and TLS with certificates on both sides ([`PeerTls`]).
//!
//! No decision about locks is made here; where a call belongs is said in [`super::route`].

mod client;
mod connect;
mod outcome;
mod secret;
mod shown;
mod tls;

pub use client::{PING_EVERY, PING_TIMEOUT, PeerClient};
pub use connect::{Dial, Wire};
pub use outcome::ForwardOutcome;
pub use secret::{PeerSecret, SecretError};
pub use tls::{PeerTls, PeerTlsFiles};

use uuid::Uuid;

use crate::limits::Limits;
use crate::lock::SessionId;

/// What a message between replicas has beside the message that it carries, in bytes, generously.
const ENVELOPE_BYTES_MAX: usize = 64 * 1024;
/// How large a page may be that they show each other, in bytes: whatever a client's message may be.
const PAGE_BYTES_MAX: usize = 4 * 1024 * 1024;

/// How large a message between replicas may be, in bytes.
pub(super) fn message_bytes_max(limits: &Limits) -> usize {
    let carried = limits.message_bytes_max.saturating_add(ENVELOPE_BYTES_MAX);
    carried.max(PAGE_BYTES_MAX)
}

pub(super) fn id_bytes(id: Uuid) -> bytes::Bytes {
    bytes::Bytes::copy_from_slice(id.as_bytes())
}

/// What is no UUID is no session of this service.
pub(super) fn session_ids(ids: &[bytes::Bytes]) -> Vec<SessionId> {
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
