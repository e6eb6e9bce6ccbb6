//! What the command line promises, with the real binary against a real `fermata serve`, in a
//! pseudo-terminal where a person would sit at one; and the Rust client against the same server.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod backup;
mod balancer;
mod explain;
mod json;
mod library;
mod lock;
mod loss;
mod printed;
mod schema;
mod signals;
mod terminal;
mod token;
mod top;
mod two_shells;
mod values;
mod world;
