//! Conversion of values and rows.

use std::collections::BTreeMap;
use std::sync::Arc;

use scylla::cluster::metadata::ColumnType;
use scylla::response::query_result::QueryResult;
use scylla::serialize::SerializationError;
use scylla::serialize::value::SerializeValue;
use scylla::serialize::writers::{CellWriter, WrittenCellProof};
use scylla::value::{CqlTimestamp, CqlValue, Unset};

use crate::fault::Fault;
use crate::value::{Row, Value};

/// Written from where it lies: a value of a MiB is not copied on its way into the request.
impl SerializeValue for Value {
    fn serialize<'b>(
        &self,
        kind: &ColumnType<'_>,
        writer: CellWriter<'b>,
    ) -> Result<WrittenCellProof<'b>, SerializationError> {
        match self {
            Value::Unset => Unset.serialize(kind, writer),
            Value::Null => Ok(writer.set_null()),
            Value::Text(text) => text.serialize(kind, writer),
            Value::Blob(bytes) => bytes.serialize(kind, writer),
            Value::BigInt(number) => number.serialize(kind, writer),
            Value::Int(number) => number.serialize(kind, writer),
            Value::TinyInt(number) => number.serialize(kind, writer),
            Value::Boolean(truth) => truth.serialize(kind, writer),
            Value::Uuid(id) => id.serialize(kind, writer),
            Value::Timestamp(ms) => CqlTimestamp(*ms).serialize(kind, writer),
            Value::Map(pairs) => {
                let pairs = pairs.iter().map(|(one, other)| (one, other));
                pairs.collect::<BTreeMap<_, _>>().serialize(kind, writer)
            }
        }
    }
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
        CqlValue::Blob(bytes) => Value::Blob(bytes.into()),
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
                "a column has a type that Fermata does not use".to_owned(),
            ));
        }
    })
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use scylla::cluster::metadata::NativeType;

    use super::*;

    #[test]
    fn a_large_value_is_written_from_where_it_lies() {
        let large = Bytes::from(vec![7; 1 << 20]);
        let value = Value::Blob(large.clone());
        let mut request = Vec::new();
        let kind = ColumnType::Native(NativeType::Blob);
        value
            .serialize(&kind, CellWriter::new(&mut request))
            .unwrap();
        assert_eq!(request.split_off(4), large);
    }
}
