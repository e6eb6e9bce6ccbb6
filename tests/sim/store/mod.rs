//! A store that replicas share as they share Cassandra, in memory and in virtual time: states and sessions change by
//! compare-and-swap, one after the other; a value has three copies, of which two make a majority, and each copy
//! learns of a write when it does. What goes wrong with an operation the seed says.

mod cluster;
mod fate;
mod link;
mod operations;

pub use cluster::Cluster;
pub use fate::Weather;
pub use link::{Ambush, StoreLink};
