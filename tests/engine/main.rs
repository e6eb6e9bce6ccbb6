//! What the engine promises, on the real embedded store.

mod drops;
mod faults;
mod faulty;
mod lost_memory;
mod manual_clock;
mod memory;
mod rng;
mod sections;
mod sessions;
mod stress;
mod waits;
mod world;
