//! The work of the writer, and its effect on the transaction of a batch.
//!
//! Each piece of work reads first and writes after, so that refused work leaves no trace in the batch that it shares. A change
//! of a key is refused unless it follows the stored version (I1).

use redb::{ReadableTable, Table, WriteTransaction};

use super::cell_work::{CellEffect, CellWork};
use super::fault::Fault;
use super::read;
use super::record::{encode_cell, encode_entry, encode_lock, encode_session, version_of};
use super::rows::{CELLS, COMMITS, DATA, ENTRIES, LOCKS, META, SESSIONS, entry_row, key_row};
use crate::key::KeyState;
use crate::lock::{KeyId, SessionId};
use crate::store::diff::Diff;
use crate::store::{Cell, SessionRow};

/// One thing to write.
#[derive(Debug)]
pub(super) enum Work {
    /// Compare-and-swap of a state.
    Swap(SwapRows),
    /// Write of a value.
    Data { id: KeyId, cell: Cell },
    /// Compare-and-swap of a session.
    Session { expected: u32, row: SessionRow },
    /// Forget a closed session.
    Forget(SessionId),
    /// Change cells.
    Cells(CellWork),
    /// Change nothing: done once everything that was asked for before is.
    Settle,
}

/// The rows that a compare-and-swap writes, made before the writer has to.
#[derive(Debug)]
pub(super) struct SwapRows {
    id: KeyId,
    key_row: Vec<u8>,
    expected: u64,
    lock: Vec<u8>,
    written: Vec<(Vec<u8>, Vec<u8>)>,
    ended: Vec<Vec<u8>>,
}

impl SwapRows {
    pub(super) fn between(id: &KeyId, old: &KeyState, new: &KeyState) -> SwapRows {
        let key_row = key_row(id);
        let diff = Diff::between(old, new);
        let written = diff.written.iter();
        let ended = diff.ended.iter();
        SwapRows {
            id: id.clone(),
            expected: old.version,
            lock: encode_lock(new),
            written: written
                .map(|entry| (entry_row(&key_row, entry.seq), encode_entry(entry)))
                .collect(),
            ended: ended.map(|seq| entry_row(&key_row, *seq)).collect(),
            key_row,
        }
    }

    fn bytes(&self) -> usize {
        let written = self.written.iter();
        self.lock.len()
            + written
                .map(|(key, row)| key.len() + row.len())
                .sum::<usize>()
            + self.ended.iter().map(Vec::len).sum::<usize>()
    }
}

/// What a piece of work did to the transaction.
#[derive(Debug)]
pub(super) enum WorkEffect {
    /// It changed something, or found it as it should be: done, once the transaction is committed.
    Done {
        /// It changed something.
        changed: bool,
    },
    /// The row is another one. Nothing was changed.
    Conflict(Met),
    /// A row that it depends on cannot be understood. Nothing was changed.
    Damaged(String),
}

/// The row that a compare-and-swap met.
#[derive(Debug)]
pub(super) enum Met {
    State(Option<KeyState>),
    Session(Option<SessionRow>),
    Cell(Option<bytes::Bytes>),
}

impl WorkEffect {
    pub(super) fn changes(&self) -> bool {
        matches!(self, WorkEffect::Done { changed: true })
    }
}

impl From<CellEffect> for WorkEffect {
    fn from(effect: CellEffect) -> WorkEffect {
        match effect {
            CellEffect::Done { changed } => WorkEffect::Done { changed },
            CellEffect::Conflict(found) => WorkEffect::Conflict(Met::Cell(found)),
        }
    }
}

type Rows<'t> = Table<'t, &'static [u8], &'static [u8]>;

/// The tables of one transaction.
struct Tables<'t> {
    locks: Rows<'t>,
    entries: Rows<'t>,
    data: Rows<'t>,
    sessions: Rows<'t>,
    cells: Rows<'t>,
}

/// Does all the work in the transaction and counts the commit that will follow if anything was changed.
/// An error leaves a transaction that must be given up.
pub(super) fn apply(
    transaction: &WriteTransaction,
    batch: &[Work],
    effects: &mut Vec<WorkEffect>,
) -> Result<(), Fault> {
    let mut tables = Tables {
        locks: transaction.open_table(LOCKS)?,
        entries: transaction.open_table(ENTRIES)?,
        data: transaction.open_table(DATA)?,
        sessions: transaction.open_table(SESSIONS)?,
        cells: transaction.open_table(CELLS)?,
    };
    for work in batch {
        let effect = match work {
            Work::Swap(rows) => tables.swap(rows),
            Work::Data { id, cell } => tables.write(id, cell),
            Work::Session { expected, row } => tables.swap_session(*expected, row),
            Work::Forget(id) => tables.forget(*id),
            Work::Cells(cells) => cells.apply(&mut tables.cells).map(WorkEffect::from),
            Work::Settle => Ok(WorkEffect::Done { changed: false }),
        };
        effects.push(match effect {
            Ok(effect) => effect,
            Err(Fault::Row(what)) => WorkEffect::Damaged(what),
            Err(fault @ Fault::File(_)) => return Err(fault),
        });
    }
    if effects.iter().any(WorkEffect::changes) {
        let mut meta = transaction.open_table(META)?;
        let commits = meta.get(COMMITS)?.map_or(0, |commits| commits.value());
        meta.insert(COMMITS, commits + 1)?;
    }
    Ok(())
}

impl Tables<'_> {
    fn swap(&mut self, rows: &SwapRows) -> Result<WorkEffect, Fault> {
        let key_row = rows.key_row.as_slice();
        let found = match self.locks.get(key_row)? {
            Some(row) => version_of(row.value())
                .map_err(|error| Fault::row(format_args!("the lock row of {}", rows.id), error))?,
            None => 0,
        };
        if found != rows.expected {
            let state = read::state(&self.locks, &self.entries, &rows.id)?;
            return Ok(WorkEffect::Conflict(Met::State(state)));
        }
        self.locks.insert(key_row, rows.lock.as_slice())?;
        for (key, row) in &rows.written {
            self.entries.insert(key.as_slice(), row.as_slice())?;
        }
        for key in &rows.ended {
            self.entries.remove(key.as_slice())?;
        }
        Ok(WorkEffect::Done { changed: true })
    }

    fn write(&mut self, id: &KeyId, cell: &Cell) -> Result<WorkEffect, Fault> {
        let key_row = key_row(id);
        let stays = match self.data.get(key_row.as_slice())? {
            Some(row) => rank(&read::decoded_cell(id, row.value())?) >= rank(cell),
            None => false,
        };
        if !stays {
            self.data
                .insert(key_row.as_slice(), encode_cell(cell).as_slice())?;
        }
        Ok(WorkEffect::Done { changed: !stays })
    }

    fn session(&self, id: SessionId) -> Result<Option<SessionRow>, Fault> {
        let row = self.sessions.get(id.0.as_bytes().as_slice())?;
        row.map(|row| read::decoded_session(id, row.value()))
            .transpose()
    }

    fn swap_session(&mut self, expected: u32, row: &SessionRow) -> Result<WorkEffect, Fault> {
        let present = self.session(row.id)?;
        if present.as_ref().map_or(0, |session| session.epoch) != expected {
            return Ok(WorkEffect::Conflict(Met::Session(present)));
        }
        let id = row.id.0;
        self.sessions
            .insert(id.as_bytes().as_slice(), encode_session(row).as_slice())?;
        Ok(WorkEffect::Done { changed: true })
    }

    fn forget(&mut self, id: SessionId) -> Result<WorkEffect, Fault> {
        let closed = self.session(id)?.is_some_and(|session| !session.open);
        if closed {
            self.sessions.remove(id.0.as_bytes().as_slice())?;
        }
        Ok(WorkEffect::Done { changed: closed })
    }
}

/// What wins of two cells: the later, then a deletion, then the larger value.
fn rank(cell: &Cell) -> (u64, bool, Option<&[u8]>) {
    (cell.timestamp, cell.value.is_none(), cell.value.as_deref())
}

impl Work {
    /// About how many bytes it writes.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Work::Swap(rows) => rows.bytes(),
            Work::Data { cell, .. } => cell.value.as_ref().map_or(0, bytes::Bytes::len),
            Work::Session { row, .. } => row.identity.len() + row.owner.len(),
            Work::Cells(cells) => cells.bytes(),
            Work::Forget(_) | Work::Settle => 0,
        }
    }
}
