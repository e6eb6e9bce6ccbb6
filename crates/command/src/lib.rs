//! What the commands have in common, those of the server's program and those of the benchmark: which service they talk
//! to, what they print, and what they exit with; and spans of time as people write them, in flags as in settings.
//!
//! What a single command does, and anything of the server, must not live here.

pub mod at_start;
mod environment;
pub mod exit;
pub mod failure;
pub mod ignored;
pub mod output;
pub mod remote;
mod span;
pub mod stdin;
pub mod stdout;

pub use failure::Failure;
pub use remote::Remote;
pub use span::{Span, SpanError};
