//! Reads, of a snapshot or within the writer's transaction.

use std::collections::VecDeque;
use std::ops::Bound;

use redb::{ReadTransaction, ReadableTable};
use uuid::Uuid;

use super::fault::Fault;
use super::record::{LockRow, decode_cell, decode_entry, decode_session};
use super::rows::{
    DATA, ENTRIES, LOCKS, SESSIONS, entries_after, entries_of, key_row, split_entry, split_key,
};
use crate::key::KeyState;
use crate::lock::{Key, KeyId, SessionId, TableName};
use crate::store::{Cell, Listed, SessionRow};

/// The state of a key.
pub(super) fn state(
    locks: &impl ReadableTable<&'static [u8], &'static [u8]>,
    entry_table: &impl ReadableTable<&'static [u8], &'static [u8]>,
    id: &KeyId,
) -> Result<Option<KeyState>, Fault> {
    let key_row = key_row(id);
    let damaged = |error| Fault::row(format_args!("the lock of {id}"), error);
    let Some(row) = locks.get(key_row.as_slice())? else {
        return Ok(None);
    };
    let lock = LockRow::decode(row.value()).map_err(damaged)?;
    let mut entries = VecDeque::new();
    if lock.has_entries() {
        let (from, to) = entries_of(&key_row);
        for entry_row in entry_table.range(from.as_slice()..to.as_slice())? {
            let (row, entry) = entry_row?;
            let Some((_, seq)) = split_entry(row.value()) else {
                return Err(Fault::Row(format!("an entry of {id} has no number")));
            };
            entries.push_back(decode_entry(seq, entry.value()).map_err(damaged)?);
        }
    }
    lock.with_entries(entries).map(Some).map_err(damaged)
}

pub(super) fn load(snapshot: &ReadTransaction, id: &KeyId) -> Result<Option<KeyState>, Fault> {
    let locks = snapshot.open_table(LOCKS)?;
    let entry_table = snapshot.open_table(ENTRIES)?;
    state(&locks, &entry_table, id)
}

pub(super) fn data(snapshot: &ReadTransaction, id: &KeyId) -> Result<Option<Cell>, Fault> {
    let row = snapshot.open_table(DATA)?.get(key_row(id).as_slice())?;
    row.map(|row| decoded_cell(id, row.value())).transpose()
}

/// Keys with a live entry that begin with `prefix`. Goes through the entries, of which keys that nobody wants have none;
/// steps over all but the first of each key.
pub(super) fn live(
    snapshot: &ReadTransaction,
    table: &TableName,
    prefix: &str,
    after: Option<&Key>,
    limit: usize,
) -> Result<Vec<Listed>, Fault> {
    let locks = snapshot.open_table(LOCKS)?;
    let entry_table = snapshot.open_table(ENTRIES)?;
    let (mut from, to) = entries_after(table, prefix, after);
    let mut listed = Vec::new();
    while listed.len() < limit {
        let Some(first) = entry_table.range(from.as_slice()..to.as_slice())?.next() else {
            break;
        };
        let (row, _) = first?;
        let found = split_entry(row.value()).and_then(|(key_row, _)| split_key(key_row));
        let Some(id) = found else {
            return Err(Fault::Row(format!("an entry in {table} has no key")));
        };
        if !id.key.as_str().starts_with(prefix) {
            break;
        }
        let Some(state) = state(&locks, &entry_table, &id)? else {
            return Err(Fault::Row(format!(
                "{id} has entries, but no row of its lock"
            )));
        };
        from = entries_of(&key_row(&id)).1;
        listed.push(Listed { key: id.key, state });
    }
    Ok(listed)
}

pub(super) fn session(
    snapshot: &ReadTransaction,
    id: SessionId,
) -> Result<Option<SessionRow>, Fault> {
    let row = snapshot
        .open_table(SESSIONS)?
        .get(id.0.as_bytes().as_slice())?;
    row.map(|row| decoded_session(id, row.value())).transpose()
}

pub(super) fn sessions(
    snapshot: &ReadTransaction,
    after: Option<SessionId>,
    limit: usize,
) -> Result<Vec<SessionRow>, Fault> {
    let rows = snapshot.open_table(SESSIONS)?;
    let after = after.map(|id| id.0.into_bytes());
    let from = match &after {
        Some(id) => Bound::Excluded(id.as_slice()),
        None => Bound::Unbounded,
    };
    let mut found = Vec::new();
    for row in rows.range::<&[u8]>((from, Bound::Unbounded))?.take(limit) {
        let (key, row) = row?;
        let id = Uuid::from_slice(key.value());
        let id = id.map_err(|_| Fault::Row("a session has no id".to_owned()))?;
        found.push(decoded_session(SessionId(id), row.value())?);
    }
    Ok(found)
}

/// The value in a row.
pub(super) fn decoded_cell(id: &KeyId, row: &[u8]) -> Result<Cell, Fault> {
    decode_cell(row).map_err(|error| Fault::row(format_args!("the value of {id}"), error))
}

/// The session in a row.
pub(super) fn decoded_session(id: SessionId, row: &[u8]) -> Result<SessionRow, Fault> {
    decode_session(id, row).map_err(|error| Fault::row(format_args!("the session {id}"), error))
}
