//! The replicas of one service (H2, H8, H12): who is there, whether this one may answer, and who is down.
//!
//! Pure rules, to which times and rows come as arguments: [`lease`] judges this replica, [`observation`] the others, and
//! [`ranking`] chooses the home of a key. Around them a shell that sends heartbeats, reads rows and swaps states:
//! [`Starter`] announces a replica, [`Membership`] is what the rest of the process asks.
//!
//! What is not here: keys and sessions, whose silences their home judges; and calls to other replicas.

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

pub use hand_overs::OpenHandOver;
pub use lease::FencedBy;
pub use peer::{Peer, Presence, Ranked};
pub use published::NotSure;
pub use shell::Membership;
pub use start::{
    InvalidReplicaTtl, Options, REPLICA_TTL, REPLICA_TTL_MAX, REPLICA_TTL_MIN, StartError, Starter,
};
