//! The checker of histories, on histories that were made up: good ones, bad ones, and ones made by chance.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod bad;
mod chance;
mod good;
#[path = "../support/history/mod.rs"]
mod history;
mod reference;
#[path = "../support/rng.rs"]
mod rng;
mod written;
