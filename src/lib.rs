//! Fermata.
pub mod lock;
pub mod store;
