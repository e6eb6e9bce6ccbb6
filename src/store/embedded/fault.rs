//! Faults of the open file.

use super::record::RecordError;

/// Why something could not be read or written.
#[derive(Debug)]
pub(super) enum Fault {
    /// The file, the disk below it or the library above it: nothing it says can be relied on until it
    /// was closed and opened again.
    File(String),
    /// One row cannot be understood. The rest is as good as before.
    Row(String),
}

impl Fault {
    /// A row of `what` that cannot be understood.
    pub(super) fn row(what: impl std::fmt::Display, error: RecordError) -> Fault {
        Fault::Row(format!("{what}: {error}"))
    }
}

macro_rules! fault_of_the_file {
    ($($error:ty),*) => {$(
        impl From<$error> for Fault {
            fn from(error: $error) -> Fault {
                Fault::File(error.to_string())
            }
        }
    )*};
}

fault_of_the_file!(
    redb::StorageError,
    redb::TableError,
    redb::TransactionError,
    redb::CommitError,
    redb::SetDurabilityError
);
