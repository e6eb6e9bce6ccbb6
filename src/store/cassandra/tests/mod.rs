//! The promises of the rows that are read, for tests and fuzzing.

pub(crate) mod fuzz;
