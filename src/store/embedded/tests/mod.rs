//! The promises of the records, for tests and fuzzing, and of the store on a disk that fails.

#[cfg(test)]
mod failing_disk;
#[cfg(test)]
mod faults;
pub(crate) mod fuzz;
