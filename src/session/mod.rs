//! Liveness rules, pure: when a lease has ended, and how much of the past an observer may count.
//!
//! This module knows no clock: every time is an argument, read from one machine's CLOCK_BOOTTIME by
//! the caller (I9). It imports nothing of ours.

mod lease;
mod observer;

pub use lease::Lease;
pub use observer::{Observed, Observer};
