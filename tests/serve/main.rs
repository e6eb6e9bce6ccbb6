//! What `fermata serve` promises as a process: the real binary, real sockets, real signals.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod agent;
mod audit;
#[path = "../replicas/calls.rs"]
mod calls;
#[path = "../support/certificates.rs"]
mod certificates;
mod chart;
mod commands;
mod console;
mod counter;
#[allow(dead_code, reason = "the tests of replicas use more of it")]
#[path = "../replicas/counters.rs"]
mod counters;
mod expressions;
#[allow(dead_code, reason = "the tests of the contract use more of it")]
#[path = "../rpc/frames.rs"]
mod frames;
#[path = "../support/helm.rs"]
mod helm;
#[path = "../support/history/mod.rs"]
mod history;
mod leaderless;
mod liveness;
mod logs;
mod memory;
mod metrics;
mod neighbours;
mod process;
mod readme;
mod revoked;
#[allow(dead_code, reason = "the tests of the project use more of it")]
#[path = "../support/rules.rs"]
mod rules;
mod secured;
#[allow(dead_code, reason = "the tests of replicas use more of it")]
#[path = "../replicas/sprayed.rs"]
mod sprayed;
mod start_stop;
mod tls;
