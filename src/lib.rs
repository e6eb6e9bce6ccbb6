//! Fermata.
pub mod client;
pub mod engine;
pub mod limits;
pub mod lock;
pub mod proto;
pub mod rpc;
pub mod store;
