//! The promises of the parsers, one function per parser. Given any bytes, the function panics if the parser breaks its promise.
//!
//! This module is for tests and fuzzing only. Random tests, the replay of `tests/fuzz/corpus` and the targets of `cargo fuzz`
//! call the same functions. Each function is defined beside its parser, which may be private.

pub use crate::access::fuzz::access_files;
pub use crate::config::fuzz::configuration;
pub use crate::lock::fuzz::lock_ref;
pub use crate::rpc::fuzz::{page_token, request_fields};
pub use crate::store::cassandra::tests::fuzz::cassandra_rows;
pub use crate::store::embedded::tests::fuzz::records;

#[cfg(test)]
mod tests;
