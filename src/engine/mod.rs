//! The engine: runs the machine of each key ([`crate::key::machine`]) on the store, the clocks and the network, keeps
//! sessions, and starts and stops this replica.
//!
//! It takes parsed calls and knows nothing of gRPC. No rule of the lock is here.

mod activity;
mod admin;
mod admission;
mod api;
mod ask;
mod calls;
mod commits;
mod current;
mod drain;
mod following;
mod gauges;
mod hand_over;
mod key_io;
mod key_shares;
mod keys;
mod limits;
mod local;
mod lost;
mod metrics;
mod overload;
mod packing;
mod peers;
mod queue_shares;
mod recover;
mod remembered;
mod replica;
mod reports;
mod request_answered;
mod request_sent;
mod requests;
mod sessions;
mod shell;
mod shown;
mod slot;
mod start;
mod sweep;
mod take_over;
mod tasks;
mod time;
mod users;
mod values;
mod watch;

pub use activity::{BusyKey, Cause, Grants, ReplicaActivity, Turns};
pub use admin::BackupParts;
pub use api::*;
pub use calls::Engine;
pub use packing::Packing;
pub use peers::{NoPeers, Peer, PeerError, Peers, Presence, Ranked};
pub use start::{EngineOptions, REPLICA_TTL};
pub use watch::Watch;
