//! Placeholder.
pub use tonic_prost::ProstCodec as RequestCodec;
