//! What users of other locks on Cassandra know, done with this service: one file for each lock. The steps of the original are told
//! beside the calls that take their place. [from-other-locks.md](../../docs/from-other-locks.md) has the tables.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod astyanax;
mod boynux;
mod calls;
mod libqtcassandra;
mod music;
#[allow(dead_code, reason = "the tests of the binary use more of it")]
#[path = "../serve/process.rs"]
mod process;
mod served;
mod wiki;
