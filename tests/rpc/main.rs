//! The contract over real sockets: a server on the real engine and the embedded store.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod bad_input;
#[path = "../support/certificates.rs"]
mod certificates;
mod connections;
mod deadlines;
mod disconnects;
mod lever;
#[allow(dead_code, reason = "the tests of the engine go on to break it")]
#[path = "../engine/link.rs"]
mod link;
mod listings;
mod logs;
mod malformed;
mod pair;
mod peer_tls;
mod peers;
mod renewals;
mod section;
mod served;
mod statuses;
mod stopping;
mod streams;
mod world;
