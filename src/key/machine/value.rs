//! The value of a key: stored, read, and after a write. Debug output never shows its bytes.

use bytes::Bytes;

/// A value with its timestamp; `None` marks a deleted value.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Datum {
    /// The value.
    pub value: Option<Bytes>,
    /// A fence and an op (I3), in microseconds.
    pub timestamp: u64,
}

impl std::fmt::Debug for Datum {
    /// Values are never shown: they may be secrets.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Datum")
            .field("bytes", &self.value.as_ref().map(Bytes::len))
            .field("timestamp", &self.timestamp)
            .finish()
    }
}

/// A value, as read.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Value {
    /// `None` if the key has no value.
    pub bytes: Option<Bytes>,
}

impl Value {
    /// The value in a cell of the store.
    pub(super) fn of(datum: Option<Datum>) -> Self {
        Value {
            bytes: datum.and_then(|datum| datum.value),
        }
    }
}

impl std::fmt::Debug for Value {
    /// Values are never shown: they may be secrets.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Value")
            .field("bytes", &self.bytes.as_ref().map(Bytes::len))
            .finish()
    }
}

/// The content of a write: a value, or none.
#[derive(Clone, PartialEq, Eq, Hash)]
pub enum Mutation {
    /// This value.
    Put(Bytes),
    /// No value.
    Delete,
}

impl Mutation {
    /// The value after the write.
    pub(super) fn into_value(self) -> Option<Bytes> {
        match self {
            Mutation::Put(bytes) => Some(bytes),
            Mutation::Delete => None,
        }
    }
}

impl std::fmt::Debug for Mutation {
    /// Values are never shown: they may be secrets.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Mutation::Put(bytes) => write!(f, "Put({} bytes)", bytes.len()),
            Mutation::Delete => f.write_str("Delete"),
        }
    }
}
