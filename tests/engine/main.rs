//! What the engine promises, on the real embedded store.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod beliefs;
mod capacity;
mod clients;
mod clock_off;
mod drops;
mod ended_sessions;
mod faults;
mod faulty;
mod held_for;
#[path = "../support/history/mod.rs"]
mod history;
mod keepers;
mod latest;
mod leaving;
mod link;
mod logs;
mod lost_memory;
mod manual_clock;
mod memory;
mod moves;
mod outage;
mod packing;
mod recorded;
mod release_put;
mod replicas;
mod restarts;
mod restored;
#[path = "../support/rng.rs"]
mod rng;
mod sections;
mod sessions;
mod shared;
mod silence;
mod stress;
mod waits;
mod world;
mod write_back;
