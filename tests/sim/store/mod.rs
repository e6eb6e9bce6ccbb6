//! A store that replicas share as they share Cassandra, in memory and in virtual time. States of keys are rows on three
//! nodes, read and changed by the real store's statements: a change may be committed and have reached one node, and reads
//! repair in parts. A value has three copies, of which two make a majority, and each copy learns of a write when it does.
//! Sessions and what replicas share change by compare-and-swap, one after the other. What goes wrong with an operation the
//! seed says.

mod cluster;
mod fate;
mod keys;
mod link;
mod operations;

pub use cluster::Cluster;
pub use fate::Weather;
pub use link::{Ambush, StoreLink};
