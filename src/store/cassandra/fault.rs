//! What can become of a request that got no result.

use crate::store::StoreError;

/// Why there is no result, sorted by what may have happened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// Nothing was changed, and nothing will be.
    #[error("{0}")]
    NotStarted(String),
    /// It may have taken effect, or may yet.
    #[error("{0}")]
    Unknown(String),
}

impl From<Fault> for StoreError {
    fn from(fault: Fault) -> StoreError {
        match fault {
            Fault::NotStarted(what) | Fault::Unknown(what) => StoreError::Unavailable(what),
        }
    }
}
