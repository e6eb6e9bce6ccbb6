//! The way to other replicas over gRPC: the client ([`PeerClient`]), the secret of the service ([`PeerSecret`]), and TLS with
//! certificates on both sides ([`PeerTls`]).
//!
//! No decision about locks is made here; [`super::route`] chooses the home of a call.

mod client;
mod connect;
mod outcome;
mod secret;
mod shown;
mod tls;

pub use client::{PING_EVERY, PeerClient};
pub use connect::{Dial, Wire};
pub use outcome::{ForwardOutcome, refused};
pub use secret::{PeerSecret, SecretError};
pub use tls::{PeerTls, PeerTlsFiles};

use uuid::Uuid;

use crate::limits::Limits;
use crate::lock::SessionId;

/// How large a message between replicas may be beyond one of a client, in bytes: the pages that they show each other fit in.
const BEYOND_MESSAGE_BYTES: usize = 4 * 1024 * 1024;

/// How large a message between replicas may be, in bytes.
pub(super) fn message_bytes_max(limits: &Limits) -> usize {
    limits
        .message_bytes_max
        .saturating_add(BEYOND_MESSAGE_BYTES)
}

pub(super) fn id_bytes(id: Uuid) -> bytes::Bytes {
    bytes::Bytes::copy_from_slice(id.as_bytes())
}

/// A text that is not a UUID is no session of this service.
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
