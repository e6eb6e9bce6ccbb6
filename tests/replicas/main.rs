//! What several replicas of `fermata serve --store cassandra` promise together: real processes, three real nodes
//! of Cassandra, real faults.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod agents;
mod calls;
#[path = "../support/certificates.rs"]
mod certificates;
#[path = "../support/collector.rs"]
mod collector;
#[allow(dead_code, reason = "the soak uses more of it")]
mod counters;
mod disconnects;
#[path = "../support/driver.rs"]
mod driver;
mod fault_free;
mod faults;
mod forced;
mod hammered;
#[path = "../support/history/mod.rs"]
mod history;
mod kills;
mod leaderless;
mod lossy;
mod moving;
#[allow(dead_code, reason = "the soak uses more of it")]
mod network;
#[path = "../support/cql_proxy.rs"]
mod proxy;
#[allow(dead_code, reason = "the soak uses more of it")]
mod replica;
mod restored;
#[allow(dead_code, reason = "the soak uses more of it")]
mod sprayed;
mod stand_still;
mod start;
#[path = "../support/cassandra/mod.rs"]
mod support;
mod traces;
mod unreachable;
mod world;
