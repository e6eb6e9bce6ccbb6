//! Values and rows as this room knows them, whatever the driver calls them.

use std::sync::Arc;

use bytes::Bytes;
use uuid::Uuid;

use crate::store::StoreError;

/// A value that is bound to a statement, or was read.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value {
    /// Bound: the cell stays as it is. (A null would write a tombstone.)
    Unset,
    /// Bound: the cell is to be empty.
    Null,
    Text(String),
    Blob(Bytes),
    BigInt(i64),
    Int(i32),
    TinyInt(i8),
    Boolean(bool),
    Uuid(Uuid),
    /// Milliseconds since 1970.
    Timestamp(i64),
    /// Read only: text by text.
    Map(Vec<(String, String)>),
}

impl Value {
    pub(super) fn text(text: &str) -> Value {
        Value::Text(text.to_owned())
    }

    /// The type's name, for messages: values may be secrets.
    fn kind(&self) -> &'static str {
        match self {
            Value::Unset => "unset",
            Value::Null => "null",
            Value::Text(_) => "text",
            Value::Blob(_) => "blob",
            Value::BigInt(_) => "bigint",
            Value::Int(_) => "int",
            Value::TinyInt(_) => "tinyint",
            Value::Boolean(_) => "boolean",
            Value::Uuid(_) => "uuid",
            Value::Timestamp(_) => "timestamp",
            Value::Map(_) => "map",
        }
    }
}

/// A row that was read; columns by name.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) columns: Arc<[String]>,
    pub(super) values: Vec<Option<Value>>,
}

macro_rules! columns_of {
    ($($name:ident: $variant:ident -> $type:ty,)*) => {
        $(
            /// The value of a column; `None` for null, or where the row has no such column.
            pub(super) fn $name(&mut self, column: &str) -> Result<Option<$type>, StoreError> {
                match self.take(column) {
                    Some(Value::$variant(value)) => Ok(Some(value)),
                    None => Ok(None),
                    Some(other) => Err(StoreError::Damaged(format!(
                        "the column {column} holds {}",
                        other.kind()
                    ))),
                }
            }
        )*
    };
}

impl Row {
    fn take(&mut self, column: &str) -> Option<Value> {
        let at = self.columns.iter().position(|name| name == column)?;
        self.values.get_mut(at).and_then(Option::take)
    }

    columns_of! {
        text: Text -> String,
        blob: Blob -> Bytes,
        bigint: BigInt -> i64,
        int: Int -> i32,
        tinyint: TinyInt -> i8,
        boolean: Boolean -> bool,
        uuid: Uuid -> Uuid,
        timestamp: Timestamp -> i64,
        map: Map -> Vec<(String, String)>,
    }
}

/// What must be there.
pub(super) fn present<T>(value: Option<T>, column: &str) -> Result<T, StoreError> {
    value.ok_or_else(|| StoreError::Damaged(format!("the column {column} is empty")))
}
