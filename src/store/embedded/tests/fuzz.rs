//! What the records of this store promise: whatever bytes there are, they are an error or something that reads back the
//! same once it is written, and never anything where the format is another one.

use std::fmt::Debug;

use uuid::Uuid;

use super::super::format::{FORMAT_KNOWN, Format, FormatError};
use super::super::record::{
    LockRow, RecordError, decode_cell, decode_entry, decode_session, encode_cell, encode_entry,
    encode_lock, encode_session, version_of,
};
use super::super::rows::{entry_row, key_row, split_entry, split_key};
use crate::key::KeyState;
use crate::lock::{Seq, SessionId};

/// One record. The first byte says of which kind; of a state the record of the key comes first, then those of its
/// entries with their seq before them, each with its length in two bytes before it.
pub fn records(bytes: &[u8]) {
    let Some((kind, row)) = bytes.split_first() else {
        return;
    };
    match kind % 5 {
        0 => reads_back(row, decode_state, encode_state),
        1 => reads_back(row, |row| decoded(row, decode_cell), encode_cell),
        2 => {
            let decode = |row: &[u8]| decode_session(SessionId(Uuid::nil()), row);
            reads_back(row, |row| decoded(row, decode), encode_session);
        }
        3 => keys(row),
        _ => format(row),
    }
}

fn reads_back<T: PartialEq + Debug>(
    row: &[u8],
    decode: impl Fn(&[u8]) -> Result<T, RecordError>,
    encode: impl Fn(&T) -> Vec<u8>,
) {
    let Ok(read) = decode(row) else {
        return;
    };
    let written = encode(&read);
    assert_eq!(decode(&written).as_ref(), Ok(&read));
    // Written once more it stays as it is.
    assert_eq!(decode(&written).map(|read| encode(&read)), Ok(written));
}

/// The state of a key from all of its rows.
fn decode_state(rows: &[u8]) -> Result<KeyState, RecordError> {
    let (lock, mut rest) = part(rows);
    let row = decoded(lock, LockRow::decode)?;
    let mut entries = Vec::new();
    while row.has_entries() && !rest.is_empty() {
        let (entry_row, others) = part(rest);
        rest = others;
        let (seq, entry_row) = entry_row.split_first_chunk().unwrap_or((&[0; 8], &[]));
        let seq = Seq(u64::from_be_bytes(*seq));
        entries.push(decoded(entry_row, |row| decode_entry(seq, row))?);
    }
    let state = row.with_entries(entries.into())?;
    assert_eq!(state.check(), Ok(()));
    assert_eq!(version_of(lock), Ok(state.version));
    Ok(state)
}

/// Nothing is read out of a record of another format, or of none.
fn decoded<T>(
    row: &[u8],
    decode: impl Fn(&[u8]) -> Result<T, RecordError>,
) -> Result<T, RecordError> {
    let read = decode(row);
    assert!(read.is_err() || row.first() == Some(&FORMAT_KNOWN));
    read
}

fn encode_state(state: &KeyState) -> Vec<u8> {
    let mut rows = Vec::new();
    push_part(&mut rows, &encode_lock(state));
    for entry in &state.entries {
        let mut entry_row = entry.seq.0.to_be_bytes().to_vec();
        entry_row.extend(encode_entry(entry));
        push_part(&mut rows, &entry_row);
    }
    rows
}

fn push_part(rows: &mut Vec<u8>, part: &[u8]) {
    rows.extend(u16::try_from(part.len()).unwrap_or(u16::MAX).to_be_bytes());
    rows.extend(part);
}

/// The next part, and what follows it. The last one may be shorter than it says.
fn part(rows: &[u8]) -> (&[u8], &[u8]) {
    let (bytes, rest) = rows.split_first_chunk().unwrap_or((&[0; 2], &[]));
    rest.split_at(rest.len().min(u16::from_be_bytes(*bytes).into()))
}

/// The keys of rows: what comes apart goes together again.
fn keys(row: &[u8]) {
    if let Some(id) = split_key(row) {
        assert_eq!(key_row(&id), row);
        let entry_row = entry_row(row, Seq::LAST);
        assert_eq!(split_entry(&entry_row), Some((row, Seq::LAST)));
    }
    if let Some((key, seq)) = split_entry(row) {
        assert_eq!(entry_row(key, seq), row);
    }
}

fn format(row: &[u8]) {
    let Ok(text) = std::str::from_utf8(row) else {
        return;
    };
    match text.parse::<Format>() {
        Ok(format) => assert_eq!(format.to_string(), text),
        Err(FormatError::Other(number)) => assert_ne!(number, FORMAT_KNOWN),
        Err(FormatError::Garbled) => {}
    }
}

#[cfg(test)]
mod tests;
