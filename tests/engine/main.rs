//! What the engine promises, on the real embedded store.

mod sections;
mod world;
