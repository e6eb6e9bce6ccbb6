//! Fermata.
pub mod engine;
pub mod limits;
pub mod lock;
pub mod proto;
pub mod rpc;
pub mod server;
pub mod session;
pub mod store;
