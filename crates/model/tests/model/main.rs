//! The real machine of a key under a model checker: two replicas, each with its machine, two or three clients, the row
//! of the key, and its value on three nodes.
//!
//! What stands between them is the model's: compare-and-swaps and writes that are late, of unknown outcome, or land when
//! their sender is long gone; replicas that end, or lose what they knew of the key; sessions that end; hand-overs;
//! answers that are lost; a store that fails for a moment. What a replica does about it is decided by `fermata::key::machine`.
//!
//! Taken for atomic: a QUORUM read of the value (with its repair), a read of the row, an answer that is heard. A replica that others take for down answers nothing any more (H2): that is checked elsewhere, and an event here.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod configurations;
#[path = "../../../../tests/support/figures.rs"]
mod figures;
mod progress;
mod replica;
mod setup;
mod step;
mod truth;
mod world;
