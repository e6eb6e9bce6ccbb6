//! Liveness rules, pure: the end of a lease, and the past that an observer may count.
//!
//! This module knows no clock: every time is an argument, which the caller reads from one machine's CLOCK_BOOTTIME (I9). It imports
//! nothing of ours.

mod lease;
mod observer;

pub use lease::Lease;
pub use observer::{Observed, Observer};
