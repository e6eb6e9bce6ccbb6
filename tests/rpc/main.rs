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
mod listings;
mod logs;
mod malformed;
mod peer_tls;
mod peers;
mod section;
mod served;
mod statuses;
mod stopping;
mod streams;
mod world;
