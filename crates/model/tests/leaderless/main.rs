//! The leaderless protocols `music` and `bakery` under a model checker: two or three clients at one key.
//!
//! The calls are those of the service itself ([`fermata::protocol`]). Each call runs up to its next step at the store; the
//! model keeps the answers that the call got, and runs it again with one answer more. So no step and no rule is written twice.
//!
//! What stands between them is the model's: writes and swaps of unknown outcome, calls that are cut or that go on unheard,
//! clients that crash, cells that expire.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod call;
mod cells;
#[path = "../../../../tests/support/figures.rs"]
mod figures;
mod off;
#[path = "../model/progress.rs"]
mod progress;
mod searches;
mod setup;
mod step;
mod world;
