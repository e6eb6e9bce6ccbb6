//! The real lock core under a model checker.
//!
//! One key, two replicas, two or three clients and three data nodes. Everything between them is the model's:
//! messages that come late or never, swaps and writes of unknown outcome, clients and replicas that crash, entries that
//! are evicted and taken over at any moment. What a swap makes of the lock is decided by `fermata::lock::decide`.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod action;
mod adopt;
mod beliefs;
mod canonical;
mod clock_steps;
mod clocks;
mod committed;
mod data;
#[path = "../support/figures.rs"]
mod figures;
mod homes;
mod replica;
mod search;
mod setup;
mod step;
mod truth;
mod words;
mod world;

mod configurations;
mod rules;
