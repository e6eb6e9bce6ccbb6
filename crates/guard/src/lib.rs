//! Guards against overload: an adaptive limit of calls in flight ([`AdaptiveLimit`]), and fair shares of a scarce resource
//! ([`shares`]). Pure: the time is an argument.

mod adaptive_limit;
pub mod shares;

pub use adaptive_limit::{AdaptiveLimit, BegunAt, LATE_AFTER_LEAST};
