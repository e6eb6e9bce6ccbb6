//! The contract as Rust: the messages, servers and clients generated from `proto/` by `build.rs`.

#![allow(missing_docs, clippy::all, clippy::pedantic)]

tonic::include_proto!("fermata.v1");

/// Clients of the services.
pub mod clients {
    include!(concat!(env!("OUT_DIR"), "/clients/fermata.v1.rs"));
}

/// What the replicas of one service say to each other: no part of the contract.
pub mod peer {
    tonic::include_proto!("fermata.internal.v1");
}

/// The descriptor set of the contract, for reflection.
pub const FILE_DESCRIPTOR_SET: &[u8] =
    include_bytes!(concat!(env!("OUT_DIR"), "/fermata_v1.binpb"));
