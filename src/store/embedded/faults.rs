//! A disk that fails on demand, for tests.
use redb::backends::FileBackend;
use std::fs::File;
#[derive(Clone, Debug)]
pub(super) struct Faults;
impl Faults {
    pub(super) fn over(&self, file: File) -> Result<FileBackend, redb::DatabaseError> {
        FileBackend::new(file)
    }
}
