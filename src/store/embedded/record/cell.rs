//! A cell, for protocols that keep nothing in memory.

use bytes::Bytes;

use super::{RecordError, decode, encode};

/// Its contents. Its column is in the row's key.
#[derive(Clone, PartialEq, prost::Message)]
pub(in crate::store::embedded) struct CellRecord {
    /// When it was written, in microseconds.
    #[prost(uint64, tag = "1")]
    pub timestamp: u64,
    /// Absent: the marker of a deleted cell.
    #[prost(bytes = "bytes", optional, tag = "2")]
    pub value: Option<Bytes>,
    /// Its end, in microseconds since 1970; absent: it stays.
    #[prost(uint64, optional, tag = "3")]
    pub ends_at_us: Option<u64>,
}

impl CellRecord {
    pub(in crate::store::embedded) fn has_ended(&self, now_us: u64) -> bool {
        self.ends_at_us.is_some_and(|at| at <= now_us)
    }

    /// What wins of two: the later, then a deletion, then the larger value, then the longer life.
    pub(in crate::store::embedded) fn rank(&self) -> (u64, bool, Option<&[u8]>, u64) {
        let ends_at_us = self.ends_at_us.unwrap_or(u64::MAX);
        let value = self.value.as_deref();
        (self.timestamp, value.is_none(), value, ends_at_us)
    }
}

pub(in crate::store::embedded) fn encode_cell_record(cell: &CellRecord) -> Vec<u8> {
    encode(cell)
}

pub(in crate::store::embedded) fn decode_cell_record(
    row: &[u8],
) -> Result<CellRecord, RecordError> {
    decode(row)
}
