//! gRPC at the edge: text and numbers in, typed calls on the engine, typed answers out.
//!
//! What lives here: parsing ([`parse`], [`page`]), status codes ([`status`], nowhere else), deadlines ([`deadline`]), the memory
//! of connections ([`budget`]), the three services and their streams, listings of keys ([`locks`]), and the way between replicas:
//! the home of a call ([`route`]), calls to other replicas ([`peer`]), and calls from them ([`peer_service`]). What must not live
//! here: rules of the lock, of sessions or of the store. This folder calls the engine. Of the layers below the engine it knows
//! only types.

mod access_check;
mod acquire;
pub mod answer;
mod backup;
pub mod budget;
pub mod call_layer;
pub mod calls;
pub mod deadline;
#[cfg(any(test, fuzzing))]
#[path = "fuzz_test.rs"]
pub(crate) mod fuzz;
mod keep_alive;
mod listing_turns;
pub mod lock_admin;
pub mod lock_service;
pub mod locks;
pub mod metrics;
pub mod page;
pub mod parse;
mod part_limit;
pub mod peer;
pub mod peer_proto;
pub mod peer_service;
mod pipeline;
mod read;
mod renew_locks;
pub mod route;
pub mod row_lock_service;
pub mod status;
pub mod stopping;
pub mod watch;

pub use access_check::AccessCheck;
