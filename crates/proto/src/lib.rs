//! The contract of Fermata as Rust: the messages and clients that `build.rs` makes of `proto/fermata/v1`, with the contract's
//! comments.
//!
//! The feature `server` adds the servers and the descriptors for reflection. The [`codec`] of the servers tells a caller why its
//! message cannot be decoded. What must not live here: rules of the lock, and anything of the store.

#[cfg(feature = "server")]
pub mod codec;

/// The metadata with the id of the home of a key, a UUID, in answers about a lock.
pub const HOME_ID: &str = "fermata-home-id";
/// The metadata with the address of the home for clients, `HOST:PORT`.
pub const HOME_ADDRESS: &str = "fermata-home-address";
/// The metadata with the term that the home serves the key in, in decimal.
pub const HOME_TERM: &str = "fermata-home-term";

/// The domain of every google.rpc.ErrorInfo sent by Fermata; a proxy has another one, or none.
pub const DOMAIN: &str = "fermata.dev";

/// The descriptor set of the contract, for reflection.
#[cfg(feature = "server")]
pub const FILE_DESCRIPTOR_SET: &[u8] =
    include_bytes!(concat!(env!("OUT_DIR"), "/fermata_v1.binpb"));

pub use generated::*;

#[allow(missing_docs, clippy::all, clippy::pedantic)]
mod generated {
    tonic::include_proto!("fermata.v1");

    #[cfg(feature = "server")]
    include!(concat!(env!("OUT_DIR"), "/servers/fermata.v1.rs"));
}
