//! The lock core against a reference model of its own, under chance.
//!
//! What lives here sees the core from outside only. `model` says what must come of a command, kept as a
//! log of all entries that ever were; `op` makes commands, right and wrong ones, from numbers that shrink
//! well. What fails is printed with its smallest case and kept under `tests/proptest-regressions`.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod batch;
mod drain;
mod machine;
mod model;
mod op;
mod replicas;
mod start;
mod step;
