//! The value of a key.

use bytes::Bytes;

use super::{RecordError, decode, encode};
use crate::store::Cell;

#[derive(Clone, PartialEq, prost::Message)]
struct CellRow {
    #[prost(uint64, tag = "1")]
    timestamp: u64,
    /// Absent: the marker of a deleted value.
    #[prost(bytes = "bytes", optional, tag = "2")]
    value: Option<Bytes>,
}

pub(in crate::store::embedded) fn encode_cell(cell: &Cell) -> Vec<u8> {
    encode(&CellRow {
        timestamp: cell.timestamp,
        value: cell.value.clone(),
    })
}

pub(in crate::store::embedded) fn decode_cell(row: &[u8]) -> Result<Cell, RecordError> {
    let CellRow { timestamp, value } = decode(row)?;
    Ok(Cell { value, timestamp })
}
