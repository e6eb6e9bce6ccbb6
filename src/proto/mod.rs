//! The contract as Rust: the messages, servers and clients generated from `proto/` by `build.rs`.

#![allow(missing_docs, clippy::all, clippy::pedantic)]

tonic::include_proto!("fermata.v1");

/// Clients of the services.
pub mod clients {
    include!(concat!(env!("OUT_DIR"), "/clients/fermata.v1.rs"));
}

/// The descriptor set of the contract, for reflection.
pub const FILE_DESCRIPTOR_SET: &[u8] =
    include_bytes!(concat!(env!("OUT_DIR"), "/fermata_v1.binpb"));
