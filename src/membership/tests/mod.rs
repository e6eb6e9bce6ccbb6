//! Replicas on a store that fails, under tokio's paused time.

mod ends;
mod others;
mod random;
mod starts;
mod world;
