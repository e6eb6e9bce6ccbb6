//! What rows that are read promise: whatever is in their columns, they are an error or something that is whole; and a
//! state that is whole reads back the same from the rows that would be written of it.

use std::sync::Arc;

use fermata_cassandra::{Row, Value};
use uuid::Uuid;

use super::super::codec::{self, First};
use super::super::skip;
use super::super::statements::{
    HAND_OVER_REQUEST_COLUMNS, REPLICA_COLUMNS, ROW_COLUMNS, SESSION_COLUMNS, SHARED_COLUMNS,
};
use super::super::{hand_over_requests, replicas, sessions};
use crate::key::KeyState;
use crate::lock::{ReplicaId, Seq};
use crate::store::StoreError;

/// Rows of one kind, which the first byte says. Each column is a byte that says what is there (0 for nothing), and
/// that. Of a state the row below its entries comes first, then its entries, newest first.
pub fn cassandra_rows(bytes: &[u8]) {
    let mut input = Input(bytes);
    match input.byte() % 4 {
        0 => state(input),
        1 => {
            let _ = sessions::decode_session(input.row(&SESSION_COLUMNS));
        }
        2 => {
            let _ = replicas::decode(input.row(&REPLICA_COLUMNS));
        }
        _ => {
            let row = input.row(&HAND_OVER_REQUEST_COLUMNS[1..]);
            let _ = hand_over_requests::decode(ReplicaId(Uuid::nil()), row);
        }
    }
}

fn state(mut input: Input<'_>) {
    let first = input.row(&[&SHARED_COLUMNS[..], &ROW_COLUMNS[..]].concat());
    let Ok(first) = First::decode(first) else {
        return;
    };
    let mut entries = Vec::new();
    while !input.0.is_empty() {
        entries.push(input.row(&ROW_COLUMNS));
    }
    // No bytes by chance have the right digest.
    let Ok(state) = first.joined(entries) else {
        return;
    };
    assert_eq!(state.check(), Ok(()));
    assert_eq!(written_and_read(&state), Ok(state));
}

/// A state from the rows that it would be written as.
fn written_and_read(state: &KeyState) -> Result<KeyState, String> {
    let (first, entries) = rows(state).map_err(|error| error.to_string())?;
    let read = First::decode(first).and_then(|first| first.with_entries(entries));
    read.map_err(|error| error.to_string())
}

fn rows(state: &KeyState) -> Result<(Row, Vec<Row>), StoreError> {
    let runs = skip::long_runs(state);
    let mut first = codec::shared(state)?;
    first.extend(codec::below(&state.ended, &runs));
    let first = row(&[&SHARED_COLUMNS[..], &ROW_COLUMNS[..]].concat(), first);
    let mut entries = vec![row(&ROW_COLUMNS, codec::above())];
    let mut below = state.next.0;
    for entry in state.entries.iter().rev() {
        for seq in (entry.seq.0 + 1..below).rev() {
            match runs.iter().find(|run| run.contains(seq)) {
                Some(_) => break,
                None => entries.push(row(&ROW_COLUMNS, codec::ended(Seq(seq))?)),
            }
        }
        entries.push(row(&ROW_COLUMNS, codec::live(entry)?));
        below = entry.seq.0;
    }
    Ok((first, entries))
}

fn row(columns: &[&str], values: Vec<Value>) -> Row {
    let set = |value| (!matches!(value, Value::Unset | Value::Null)).then_some(value);
    Row {
        columns: columns
            .iter()
            .map(|name| (*name).to_owned())
            .collect::<Arc<[_]>>(),
        values: values.into_iter().map(set).collect(),
    }
}

struct Input<'a>(&'a [u8]);

impl Input<'_> {
    /// The next bytes; what the input lacks is 0.
    fn take<const BYTES: usize>(&mut self) -> [u8; BYTES] {
        let mut taken = [0; BYTES];
        let (given, rest) = self.0.split_at(self.0.len().min(BYTES));
        taken[..given.len()].copy_from_slice(given);
        self.0 = rest;
        taken
    }

    fn byte(&mut self) -> u8 {
        u8::from_be_bytes(self.take())
    }

    /// As many as the next byte says.
    fn bytes(&mut self) -> Vec<u8> {
        let count = usize::from(self.byte()).min(self.0.len());
        let (bytes, rest) = self.0.split_at(count);
        self.0 = rest;
        bytes.to_vec()
    }

    fn row(&mut self, columns: &[&str]) -> Row {
        let values = columns.iter().map(|column| match self.byte() {
            0 => Value::Unset,
            u8::MAX => Value::Map(Vec::new()),
            // That of a program, where all others are of states.
            _ if *column == "version" && columns == REPLICA_COLUMNS => self.text(),
            _ => self.value(column),
        });
        row(columns, values.collect())
    }

    /// Of the type that the column has.
    fn value(&mut self, column: &str) -> Value {
        match column {
            "format" | "mode" => Value::TinyInt(i8::from_be_bytes(self.take())),
            "version" | "term" | "next" | "head" | "grant" | "fence" | "seq_end" | "fence_end"
            | "volatile_end" | "kept" | "digest" | "seq" | "heartbeat" => {
                Value::BigInt(i64::from_be_bytes(self.take()))
            }
            "width" | "first_left" | "ttl" | "epoch" | "disconnect_grace" | "state" => {
                Value::Int(i32::from_be_bytes(self.take()))
            }
            "unsynced" | "open" => Value::Boolean(self.byte() & 1 == 1),
            "created_at" | "started_at" => Value::Timestamp(i64::from_be_bytes(self.take())),
            "session" | "home" | "replica" | "id" | "to" => {
                Value::Uuid(Uuid::from_bytes(self.take()))
            }
            "tag" => Value::Blob(self.take::<16>().to_vec().into()),
            "ended" | "skip" => Value::Blob(self.bytes().into()),
            _ => self.text(),
        }
    }

    fn text(&mut self) -> Value {
        Value::Text(String::from_utf8_lossy(&self.bytes()).into_owned())
    }
}

#[cfg(test)]
mod tests;
