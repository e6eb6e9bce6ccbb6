//! The contents of rows: a byte with the format, then one protobuf message.
//!
//! Decoding refuses other formats and damaged messages. It skips unknown fields: a later version may have written them. The
//! keys of rows are in `rows`.

mod cell;
mod data;
mod lock;
mod session;

use prost::Message;

use super::format::FORMAT_KNOWN;

pub(super) use cell::{CellRecord, decode_cell_record, encode_cell_record};
pub(super) use data::{decode_cell, encode_cell};
pub(super) use lock::{LockRow, decode_entry, encode_entry, encode_lock, version_of};
pub(super) use session::{decode_session, encode_session};

/// Why a row is none that this program can use.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(super) struct RecordError(String);

impl RecordError {
    fn new(what: impl Into<String>) -> RecordError {
        RecordError(what.into())
    }
}

fn encode(message: &impl Message) -> Vec<u8> {
    let mut row = Vec::with_capacity(1 + message.encoded_len());
    row.push(FORMAT_KNOWN);
    // A Vec grows, so there is always room.
    message.encode_raw(&mut row);
    row
}

fn decode<M: Message + Default>(row: &[u8]) -> Result<M, RecordError> {
    match row.split_first() {
        Some((&FORMAT_KNOWN, message)) => {
            M::decode(message).map_err(|error| RecordError::new(error.to_string()))
        }
        Some((format, _)) => Err(RecordError::new(format!(
            "its format is {format}, which this program does not know"
        ))),
        None => Err(RecordError::new("it is empty")),
    }
}

fn uuid(bytes: &[u8], field: &str) -> Result<uuid::Uuid, RecordError> {
    uuid::Uuid::from_slice(bytes)
        .map_err(|_| RecordError::new(format!("its {field} is not a UUID")))
}
