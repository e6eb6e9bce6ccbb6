//! gRPC.
pub mod codec;
