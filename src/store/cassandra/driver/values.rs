//! Values and rows, as the driver has them and as this room does.

use std::sync::Arc;

use scylla::response::query_result::QueryResult;
use scylla::value::{CqlTimestamp, CqlValue, MaybeUnset};

use crate::store::cassandra::fault::Fault;
use crate::store::cassandra::value::{Row, Value};

pub(super) fn bound(value: &Value) -> MaybeUnset<CqlValue> {
    MaybeUnset::Set(match value {
        Value::Unset => return MaybeUnset::Unset,
        Value::Text(text) => CqlValue::Text(text.clone()),
        Value::Blob(bytes) => CqlValue::Blob(bytes.clone()),
        Value::BigInt(number) => CqlValue::BigInt(*number),
        Value::Int(number) => CqlValue::Int(*number),
        Value::TinyInt(number) => CqlValue::TinyInt(*number),
        Value::Boolean(truth) => CqlValue::Boolean(*truth),
        Value::Uuid(id) => CqlValue::Uuid(*id),
        Value::Timestamp(ms) => CqlValue::Timestamp(CqlTimestamp(*ms)),
        Value::Map(pairs) => CqlValue::Map(
            pairs
                .iter()
                .map(|(one, other)| (CqlValue::Text(one.clone()), CqlValue::Text(other.clone())))
                .collect(),
        ),
    })
}

pub(super) fn rows(answer: QueryResult) -> Result<Vec<Row>, Fault> {
    if !answer.is_rows() {
        return Ok(Vec::new());
    }
    // It was executed; only the answer cannot be read.
    let unreadable = |error: &dyn std::fmt::Display| {
        Fault::Unknown(format!("an answer cannot be read: {error}"))
    };
    let rows = answer.into_rows_result().map_err(|e| unreadable(&e))?;
    let columns: Arc<[String]> = rows
        .column_specs()
        .iter()
        .map(|column| column.name().to_owned())
        .collect();
    let typed = rows
        .rows::<scylla::value::Row>()
        .map_err(|e| unreadable(&e))?;
    typed
        .map(|row| {
            let row = row.map_err(|e| unreadable(&e))?;
            let values = row
                .columns
                .into_iter()
                .map(|cell| cell.map(read).transpose());
            Ok(Row {
                columns: Arc::clone(&columns),
                values: values.collect::<Result<_, _>>()?,
            })
        })
        .collect()
}

fn read(value: CqlValue) -> Result<Value, Fault> {
    Ok(match value {
        CqlValue::Text(text) | CqlValue::Ascii(text) => Value::Text(text),
        CqlValue::Blob(bytes) => Value::Blob(bytes),
        CqlValue::BigInt(number) => Value::BigInt(number),
        CqlValue::Int(number) => Value::Int(number),
        CqlValue::TinyInt(number) => Value::TinyInt(number),
        CqlValue::Boolean(truth) => Value::Boolean(truth),
        CqlValue::Uuid(id) => Value::Uuid(id),
        CqlValue::Timeuuid(id) => Value::Uuid(id.into()),
        CqlValue::Timestamp(CqlTimestamp(ms)) => Value::Timestamp(ms),
        CqlValue::Map(pairs) => Value::Map(
            pairs
                .into_iter()
                .filter_map(|pair| match pair {
                    (CqlValue::Text(one), CqlValue::Text(other)) => Some((one, other)),
                    _ => None,
                })
                .collect(),
        ),
        _ => {
            return Err(Fault::Unknown(
                "a column has a type that no table of ours has".to_owned(),
            ));
        }
    })
}
