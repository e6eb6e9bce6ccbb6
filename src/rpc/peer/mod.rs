//! What replicas say to each other over gRPC: the client ([`PeerClient`]), the service ([`PeerRpc`]), the secret
//! that both know, and TLS with certificates on both sides ([`PeerTls`]).
//!
//! No decision about locks is made here; where a call belongs is said in [`super::route`].

mod client;
mod connect;
mod secret;
mod service;
mod tls;

pub use client::{PING_EVERY, PING_TIMEOUT, PeerClient};
pub use connect::{Dial, Wire};
pub use secret::{Secret, SecretError};
pub use service::{PeerRpc, STREAMS_MAX};
pub use tls::{PeerTls, PeerTlsError, PeerTlsFiles};

use uuid::Uuid;

use super::route::There;
use crate::lock::ReplicaId;
use crate::proto::peer;

/// What a message between replicas has beside the message that it carries, in bytes, generously.
pub const AROUND_BYTES_MAX: usize = 64 * 1024;

fn elsewhere<A>(told: &peer::Elsewhere) -> There<A> {
    match Uuid::from_slice(&told.home) {
        Ok(home) => There::Elsewhere {
            home: ReplicaId(home),
            version: told.version,
        },
        Err(_) => There::NotAsked("it named no replica".to_owned()),
    }
}

fn unable<A>(told: peer::Unable) -> There<A> {
    match told.nothing_done {
        true => There::NotAsked(told.why),
        false => There::Unknown(told.why),
    }
}

fn id_bytes(id: Uuid) -> bytes::Bytes {
    bytes::Bytes::copy_from_slice(id.as_bytes())
}
