//! What every store promises, and what each one promises beyond that.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod cassandra;
#[path = "../support/certificates.rs"]
mod certificates;
mod contract;
mod embedded;
mod protocols;
mod world;
