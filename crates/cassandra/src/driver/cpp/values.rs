//! Conversion of values and rows.

use std::sync::Arc;

use cassandra_cpp::{
    CassCollection as _, CassResult, Error, LendingIterator as _, Map, Statement, ValueType,
};

use crate::fault::Fault;
use crate::value::{Row, Value};

/// Binds values to the parameters of a statement.
pub(super) fn bind(statement: &mut Statement, values: &[Value]) -> Result<(), Fault> {
    let unbound = |error: Error| Fault::NotStarted(format!("a value cannot be bound: {error}"));
    for (at, value) in values.iter().enumerate() {
        let bound = match value {
            // What is not bound is unset.
            Value::Unset => continue,
            Value::Null => statement.bind_null(at),
            Value::Text(text) => statement.bind_string(at, text),
            Value::Blob(bytes) => statement.bind_bytes(at, bytes.to_vec()),
            Value::BigInt(number) | Value::Timestamp(number) => statement.bind_int64(at, *number),
            Value::Int(number) => statement.bind_int32(at, *number),
            Value::TinyInt(number) => statement.bind_int8(at, *number),
            Value::Boolean(truth) => statement.bind_bool(at, *truth),
            Value::Uuid(id) => statement.bind_uuid(at, (*id).into()),
            Value::Map(pairs) => statement.bind_map(at, map(pairs).map_err(unbound)?),
        };
        bound.map_err(unbound)?;
    }
    Ok(())
}

fn map(pairs: &[(String, String)]) -> Result<Map, Error> {
    let mut map = Map::with_capacity(pairs.len());
    for (one, other) in pairs {
        map.append_string(one)?;
        map.append_string(other)?;
    }
    Ok(map)
}

/// The rows of an answer. It was executed; only what came of it may be unreadable.
pub(super) fn rows(answer: &CassResult) -> Result<Vec<Row>, Fault> {
    let unreadable = |error: Error| Fault::Unknown(format!("an answer cannot be read: {error}"));
    let count = usize::try_from(answer.column_count()).unwrap_or_default();
    let names = (0..count).map(|at| answer.column_name(at).map(str::to_owned));
    let columns: Arc<[String]> = names.collect::<Result<_, _>>().map_err(unreadable)?;
    let kinds: Vec<ValueType> = (0..count).map(|at| answer.column_type(at)).collect();
    let mut rows = Vec::new();
    let mut each = answer.iter();
    while let Some(row) = each.next() {
        let values = kinds.iter().enumerate().map(|(at, kind)| {
            let cell = row.get_column(at).map_err(unreadable)?;
            match cell.is_null() {
                true => Ok(None),
                false => read(&cell, *kind).map(Some),
            }
        });
        rows.push(Row {
            columns: Arc::clone(&columns),
            values: values.collect::<Result<_, _>>()?,
        });
    }
    is_whole(answer, rows.len())?;
    Ok(rows)
}

/// That so many rows are all: the library ends with the first one that it cannot decode.
pub(super) fn is_whole(answer: &CassResult, rows: usize) -> Result<(), Fault> {
    match usize::try_from(answer.row_count()) {
        Ok(count) if count == rows => Ok(()),
        Ok(_) | Err(_) => Err(Fault::Unknown(
            "an answer cannot be read: a row is cut short".to_owned(),
        )),
    }
}

fn read(cell: &cassandra_cpp::Value<'_>, kind: ValueType) -> Result<Value, Fault> {
    let read = match kind {
        ValueType::TEXT | ValueType::VARCHAR | ValueType::ASCII => {
            cell.get_string().map(Value::Text)
        }
        ValueType::BLOB => cell
            .get_bytes()
            .map(|bytes| Value::Blob(bytes.to_vec().into())),
        ValueType::BIGINT => cell.get_i64().map(Value::BigInt),
        ValueType::INT => cell.get_i32().map(Value::Int),
        ValueType::TINY_INT => cell.get_i8().map(Value::TinyInt),
        ValueType::BOOLEAN => cell.get_bool().map(Value::Boolean),
        ValueType::UUID | ValueType::TIMEUUID => cell.get_uuid().map(|id| Value::Uuid(id.into())),
        ValueType::TIMESTAMP => cell.get_i64().map(Value::Timestamp),
        ValueType::MAP => pairs(cell).map(Value::Map),
        _ => {
            return Err(Fault::Unknown(
                "a column has a type that Fermata does not use".to_owned(),
            ));
        }
    };
    read.map_err(|error| Fault::Unknown(format!("an answer cannot be read: {error}")))
}

/// Of a map, what is text by text.
fn pairs(cell: &cassandra_cpp::Value<'_>) -> Result<Vec<(String, String)>, Error> {
    let mut pairs = Vec::new();
    let mut each = cell.get_map()?;
    while let Some((one, other)) = each.next() {
        pairs.push((one.get_string()?, other.get_string()?));
    }
    Ok(pairs)
}
