//! The messages of the protocol between replicas, its client and its server, as `build.rs` makes them of
//! `proto/fermata/internal/v1`. They are not part of the contract.
#![allow(missing_docs, clippy::all, clippy::pedantic)]

tonic::include_proto!("fermata.internal.v1");

/// The descriptors of it.
pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/peer.binpb"));
