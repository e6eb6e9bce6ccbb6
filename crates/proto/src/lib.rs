//! The contract of Fermata as Rust: the messages and clients that `build.rs` makes of `proto/fermata/v1`. Comments on
//! them are those of the contract.
//!
//! With the feature `server` also the servers, whose [`codec`] tells a caller what is wrong with a message that cannot
//! be decoded, and the descriptors for reflection. What must not live here: what a lock is, and anything of the store.

#[cfg(feature = "server")]
pub mod codec;

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
