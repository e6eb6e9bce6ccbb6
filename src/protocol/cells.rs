//! Short forms for cells.

use std::time::Duration;

use bytes::Bytes;

use crate::engine::EngineError;
use crate::store::{CellChange, StoreError, StoredCell};

/// The store could not do it.
pub fn unavailable(error: &StoreError) -> EngineError {
    EngineError::Unavailable(error.to_string())
}

/// The cell of a column.
pub fn cell<'a>(cells: &'a [StoredCell], column: &str) -> Option<&'a StoredCell> {
    cells.iter().find(|cell| cell.column == column)
}

/// A put.
pub fn put(column: impl Into<String>, value: Bytes, ttl: Option<Duration>) -> CellChange {
    CellChange::Put {
        column: column.into(),
        value,
        ttl,
    }
}

/// A deletion.
pub fn delete(column: impl Into<String>) -> CellChange {
    CellChange::Delete {
        column: column.into(),
    }
}
