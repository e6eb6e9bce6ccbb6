//! The contract over real sockets: a server on the real engine and the embedded store.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod access;
mod access_by_call;
mod access_rules;
mod ask;
mod bad_input;
mod both_ways;
mod budgets;
mod capabilities;
#[path = "../support/certificates.rs"]
mod certificates;
mod connections;
mod deadlines;
mod disconnects;
mod each_call;
mod end_session;
mod frames;
mod lever;
#[allow(dead_code, reason = "the engine's tests use more of it")]
#[path = "../engine/link.rs"]
mod link;
mod listings;
mod logs;
mod malformed;
mod overload;
mod pair;
mod peer_tls;
mod peers;
mod pipeline;
mod renewals;
mod retained;
mod says;
mod section;
mod served;
mod shown;
mod statuses;
mod stopping;
mod streams;
mod world;
