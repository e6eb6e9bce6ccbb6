//! The guarded value in its cell.

use bytes::{BufMut as _, Bytes, BytesMut};

use crate::engine::{Mutation, Value};

/// The column of the value.
pub const VALUE: &str = "value";

/// A value in its cell. A deleted value leaves a marker: without one an earlier write could come after it.
pub fn value_cell(mutation: &Mutation) -> Bytes {
    match mutation {
        Mutation::Delete => Bytes::from_static(&[0]),
        Mutation::Put(value) => {
            let mut cell = BytesMut::with_capacity(1 + value.len());
            cell.put_u8(1);
            cell.put_slice(value);
            cell.freeze()
        }
    }
}

/// The value in a cell.
pub fn value_in(cell: Option<&Bytes>) -> Value {
    let is_value = |cell: &&Bytes| cell.first() == Some(&1);
    Value {
        bytes: cell.filter(is_value).map(|cell| cell.slice(1..)),
    }
}
