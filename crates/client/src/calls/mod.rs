//! The second layer: the single calls of the contract, repeated if a repeat can help. Nothing is kept alive here.
//! [`LockGuard`](crate::LockGuard) and [`Session`](crate::Session) are made of these calls. Use the calls directly for a lockRef
//! from another process.

pub(crate) mod admin;
pub(crate) mod answer;
pub(crate) mod background;
pub(crate) mod call_numbers;
pub(crate) mod client;
mod entry;
pub(crate) mod error;
pub(crate) mod fault;
pub(crate) mod homes;
pub(crate) mod lost;
mod pass_on;
pub(crate) mod request;
pub(crate) mod sent_write;
mod session;
pub(crate) mod validity;
mod value;
pub(crate) mod wire;
