//! Values and rows in the terms of Fermata.

use std::sync::Arc;

use bytes::Bytes;
use uuid::Uuid;

/// A row that is not as its table has them. An operator must look.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ColumnError(String);

/// A value that is bound to a statement, or was read.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Bound: the cell stays as it is. (A null would write a tombstone.)
    Unset,
    /// Bound: the cell is to be empty.
    Null,
    /// Text.
    Text(String),
    /// Bytes.
    Blob(Bytes),
    /// A number of 64 bits.
    BigInt(i64),
    /// Of 32 bits.
    Int(i32),
    /// Of 8 bits.
    TinyInt(i8),
    /// A truth.
    Boolean(bool),
    /// A UUID.
    Uuid(Uuid),
    /// Milliseconds since 1970.
    Timestamp(i64),
    /// Read only: text by text.
    Map(Vec<(String, String)>),
}

impl Value {
    /// A text.
    pub fn text(text: &str) -> Value {
        Value::Text(text.to_owned())
    }
}

/// A row that was read; columns by name.
#[derive(Clone, Debug)]
pub struct Row {
    /// Their names.
    pub columns: Arc<[String]>,
    /// Their values, in the same order; `None` for null.
    pub values: Vec<Option<Value>>,
}

macro_rules! columns_of {
    ($($name:ident: $variant:ident -> $type:ty,)*) => {
        $(
            /// The value of a column; `None` for null, or where the row has no such column.
            pub fn $name(&mut self, column: &str) -> Result<Option<$type>, ColumnError> {
                match self.take(column) {
                    Some(Value::$variant(value)) => Ok(Some(value)),
                    None => Ok(None),
                    // Its value may be a secret.
                    Some(_) => Err(ColumnError(format!(
                        "the column {column} is not a {}",
                        stringify!($name)
                    ))),
                }
            }
        )*
    };
}

impl Row {
    /// The value of a column, which stays there.
    pub(crate) fn get(&self, column: &str) -> Option<&Value> {
        let at = self.columns.iter().position(|name| name == column)?;
        self.values.get(at)?.as_ref()
    }

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
pub fn present<T>(value: Option<T>, column: &str) -> Result<T, ColumnError> {
    value.ok_or_else(|| ColumnError(format!("the column {column} is empty")))
}
