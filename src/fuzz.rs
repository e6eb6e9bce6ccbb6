//! What the parsers promise, one function a parser: given any bytes, it panics where the promise is broken.
//!
//! This room is there for tests and fuzzing only. The tests by chance, the replay of what is kept in `tests/fuzz/corpus`
//! and the targets of `cargo fuzz` all call these, so what one of them finds holds for all. Each function stands
//! beside its parser, which may be private.

pub use crate::access::fuzz::access_files;
pub use crate::config::fuzz::configuration;
pub use crate::lock::fuzz::lock_ref;
pub use crate::rpc::fuzz::{page_token, request_fields};
pub use crate::store::cassandra::tests::fuzz::cassandra_rows;
pub use crate::store::embedded::tests::fuzz::records;

#[cfg(test)]
mod tests;
