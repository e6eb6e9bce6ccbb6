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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_value_and_a_deleted_one_are_two_things() {
        for value in [None, Some(Bytes::new()), Some(Bytes::from_static(b"v\0"))] {
            let cell = Cell {
                value,
                timestamp: u64::MAX,
            };
            assert_eq!(decode_cell(&encode_cell(&cell)), Ok(cell));
        }
        assert!(decode_cell(&[]).is_err());
        assert!(decode_cell(&[1, 8, 1]).is_err());
        assert!(decode_cell(&[2, 0x12, 200]).is_err());
    }
}
