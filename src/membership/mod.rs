//! The replicas of one service (H2, H8, H12): which exist, which are down, and whether this one may answer.
//!
//! The rules are pure, with times and rows as arguments: [`lease`] judges this replica, [`observation`] the others, and
//! [`ranking`] chooses the home of a key. Around them a shell sends heartbeats, reads rows and swaps states:
//! [`Starter`] announces a replica, [`Membership`] answers the rest of the process.
//!
//! Not here: keys and sessions, whose leases their home judges; and calls to other replicas.

mod declare;
mod hand_overs;
mod lease;
mod observation;
mod peer;
mod published;
mod ranking;
mod rounds;
mod shell;
mod start;
mod stop;
#[cfg(test)]
mod tests;
mod wall_check;
mod within;

pub use hand_overs::{HAND_OVER_REQUESTS_MAX, OpenHandOver};
pub use lease::FencedBy;
pub use peer::{Peer, Presence, Ranked};
pub use published::NotSure;
pub use shell::Membership;
pub use start::{
    InvalidReplicaTtl, Options, REPLICA_TTL, REPLICA_TTL_MAX, REPLICA_TTL_MIN, StartError, Starter,
};
