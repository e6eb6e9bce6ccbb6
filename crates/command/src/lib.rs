//! Shared by the commands of `fermata` and of the benchmark: client options, output, exit statuses, and spans of time in flags and
//! settings.
//!
//! Work of a single command, and code of the server, must not live here.

mod environment;
pub mod exit;
pub mod failure;
pub mod ignored;
pub mod output;
pub mod remote;
mod span;

pub use failure::Failure;
pub use remote::Remote;
pub use span::{Span, SpanError};
