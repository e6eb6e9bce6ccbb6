//! What the tests have for real nodes, real replicas and clients under locks.

#[path = "../../tests/replicas/calls.rs"]
pub mod calls;
#[path = "../../tests/support/cassandra/mod.rs"]
pub mod cassandra;
#[path = "../../tests/replicas/counters.rs"]
pub mod counters;
#[path = "../../tests/support/history/mod.rs"]
pub mod history;
#[path = "../../tests/replicas/network.rs"]
pub mod network;
#[path = "../../tests/replicas/replica.rs"]
pub mod replica;
#[path = "../../tests/support/rng.rs"]
pub mod rng;
#[path = "../../tests/replicas/sprayed.rs"]
pub mod sprayed;
