//! Fermata.
pub mod cli;
pub mod config;
pub mod engine;
pub mod limits;
pub mod lock;
pub mod proto;
pub mod rpc;
pub mod server;
pub mod session;
pub mod store;
pub mod telemetry;
