//! Keeps too much from being done at once: a limit that adapts to how fast answers come ([`AdaptiveLimit`]), and fair shares
//! of what is scarce ([`shares`]). Pure: the time is an argument.

mod adaptive_limit;
pub mod shares;

pub use adaptive_limit::{AdaptiveLimit, BegunAt, LATE_AFTER_LEAST};
