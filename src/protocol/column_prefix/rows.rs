//! Rows with lock columns, and what a lockRef is in them.

use std::time::Duration;

use super::rules::{LockColumn, Names, Note, NoteKind, column_value, end_in, seq_of};
use crate::engine::EngineError;
use crate::lock::{EndReason, EndedAs, KeyId, LockRef, Tag};
use crate::protocol::cells::{cell, delete, put};
use crate::protocol::entry::{StoredEntry, StoredRequest};
use crate::protocol::leaderless::{END_AHEAD_US, Parts, ProtocolOptions};
use crate::protocol::queue::LiveEntry;
use crate::store::{CellChange, Columns, Currency, StoredCell};

/// The shortest pause between two tries.
pub const PAUSE_MIN: Duration = Duration::from_millis(20);
/// How long notes stay after the TTL of their lockRef: for repeats of its calls.
const KEPT: Duration = Duration::from_secs(60);

/// The protocol. Cheap to clone.
#[derive(Clone)]
pub struct ColumnPrefix {
    pub(super) parts: Parts,
    pub(super) options: ProtocolOptions,
    pub(super) names: Names,
}

/// A live lockRef.
#[derive(Clone)]
pub struct Live {
    pub place: Place,
    pub note: Note,
    /// When its note was written, in microseconds.
    pub timestamp: u64,
    pub left: Duration,
    /// The time before the row was read, in microseconds since 1970.
    pub read_us: u64,
}

/// Where a lockRef is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Place {
    /// It holds the row.
    Holds,
    /// It has a lock column that must be proven.
    Unsure,
    /// It waits. It was tried just now, with so many others in the row.
    Waits { tried: Option<usize> },
}

impl LiveEntry for Live {
    fn entry(&self) -> &StoredEntry {
        &self.note.entry
    }

    fn left(&self) -> Duration {
        self.left
    }
}

impl Live {
    /// The timestamp of a change that follows what was read. It is not above the promised end: who comes after it writes above.
    pub fn following(&self) -> u64 {
        let timestamp = self.read_us.max(self.timestamp + 1);
        match self.place {
            Place::Holds | Place::Unsure => timestamp.min(self.note.promised_us()),
            Place::Waits { .. } => timestamp,
        }
    }
}

impl ColumnPrefix {
    pub(in crate::protocol) fn new(parts: Parts, options: ProtocolOptions) -> ColumnPrefix {
        let names = Names::new(&options.lock_prefix);
        ColumnPrefix {
            parts,
            options,
            names,
        }
    }

    pub(super) async fn read(
        &self,
        id: &KeyId,
        columns: &Columns,
    ) -> Result<Vec<StoredCell>, EngineError> {
        self.parts.read(id, columns, Currency::Acknowledged).await
    }

    /// The lock columns of a row.
    pub(super) async fn lock_columns(&self, id: &KeyId) -> Result<Vec<LockColumn>, EngineError> {
        let cells = self.read(id, &self.names.locks()).await?;
        Ok(self.names.lock_columns(&cells))
    }

    /// The lock columns of a row with their entries, and its notes.
    pub(super) async fn noted_columns(
        &self,
        id: &KeyId,
    ) -> Result<(Vec<LockColumn>, Vec<StoredCell>), EngineError> {
        let mut columns = self.lock_columns(id).await?;
        let notes = self.read(id, &self.names.notes()).await?;
        let holds = self.names.noted(&notes, NoteKind::Holds);
        for column in &mut columns {
            let of_it = |(_, note): &&(_, Note)| self.names.lock(&note.lock_id) == column.column;
            if let Some((tag, note)) = holds.iter().find(of_it) {
                column.tag = Some(*tag);
                column.entry = Some(note.entry.clone());
            }
        }
        Ok((columns, notes))
    }

    /// A lockRef, live or ended. `more` columns are read at the same moment.
    pub(super) async fn find(
        &self,
        lock_ref: &LockRef,
        more: &[String],
    ) -> Result<(Option<Live>, Vec<StoredCell>), EngineError> {
        let (tag, id, clock) = (lock_ref.tag, lock_ref.key_id(), &self.parts.clock);
        let kinds = [NoteKind::Waits, NoteKind::Holds, NoteKind::Ended];
        let [waits, holds, ended] = kinds.map(|kind| self.names.note(tag, kind));
        let mut lock = self.names.lock(&format!("{tag:?}"));
        // The second time with a lock column of another name.
        for _ in 0..2 {
            let read_us = clock.wall_us();
            let mut names = vec![waits.clone(), holds.clone(), ended.clone(), lock.clone()];
            names.extend_from_slice(more);
            let cells = self.read(&id, &Columns::Named(names)).await?;
            if let Some(ended) = cell(&cells, &ended) {
                let ended = StoredRequest::decoded(&ended.value)?;
                return Err(EngineError::Ended(ended.ended_as()));
            }
            let is_held = cell(&cells, &holds);
            let Some(noted) = is_held.or(cell(&cells, &waits)) else {
                return Ok((None, cells));
            };
            let live = Live {
                place: Place::Waits { tried: None },
                note: Note::decoded(&noted.value)?,
                timestamp: noted.timestamp,
                left: noted.left.unwrap_or_default().saturating_sub(KEPT),
                read_us,
            };
            if is_held.is_none() {
                return Ok((Some(live), cells));
            }
            let own = self.names.lock(&live.note.lock_id);
            if own != lock {
                lock = own;
                continue;
            }
            let now_us = clock.wall_us();
            let left = live.note.promised_us().saturating_sub(now_us);
            let is_own =
                cell(&cells, &lock).is_some_and(|cell| end_in(&cell.value) == live.note.ends_at_us);
            if left == 0 || !is_own {
                return Err(EngineError::Ended(EndedAs::Lost(EndReason::Expired)));
            }
            let place = match now_us <= live.note.sure_by_us {
                true => Place::Holds,
                false => Place::Unsure,
            };
            let left = Duration::from_micros(left);
            return Ok((
                Some(Live {
                    place,
                    left,
                    ..live
                }),
                cells,
            ));
        }
        Err(EngineError::Unavailable(
            "other calls of this lockRef came between".to_owned(),
        ))
    }

    /// The changes by which a lockRef holds its row from now on, for its TTL.
    pub(super) fn holding(&self, tag: Tag, note: &Note) -> [CellChange; 2] {
        let column = self.names.lock(&note.lock_id);
        let noted = prost::Message::encode_to_vec(note).into();
        let kept = Some(note.entry.ttl() + KEPT);
        [
            put(
                column,
                column_value(note.ends_at_us),
                Some(note.column_ttl()),
            ),
            put(self.names.note(tag, NoteKind::Holds), noted, kept),
        ]
    }

    /// Notes that a lockRef waits.
    pub(super) async fn note_waiting(
        &self,
        lock_ref: &LockRef,
        live: &Live,
    ) -> Result<(), EngineError> {
        let waits = self.names.note(lock_ref.tag, NoteKind::Waits);
        let noted = prost::Message::encode_to_vec(&live.note).into();
        let note = put(waits, noted, Some(live.note.entry.ttl() + KEPT));
        let id = lock_ref.key_id();
        self.parts.write_out(&id, &[note], live.following()).await
    }

    /// The changes that end a lockRef.
    pub(super) fn ending(
        &self,
        lock_ref: &LockRef,
        live: &Live,
        how: &StoredRequest,
    ) -> Vec<CellChange> {
        let kept = Some(live.note.entry.ttl() + KEPT);
        let ended = self.names.note(lock_ref.tag, NoteKind::Ended);
        let column = self.names.lock(&live.note.lock_id);
        vec![put(ended, how.encoded(), kept), delete(column)]
    }

    /// A live lockRef.
    pub(super) async fn found(&self, lock_ref: &LockRef) -> Result<Live, EngineError> {
        if lock_ref.seq != seq_of(lock_ref.tag) {
            return Err(EngineError::NeverIssued);
        }
        let (live, _) = self.find(lock_ref, &[]).await?;
        live.ok_or(EngineError::Ended(EndedAs::NoLongerKept))
    }

    /// Ends a live lockRef, and notes how.
    pub(super) async fn ended(
        &self,
        lock_ref: &LockRef,
        live: &Live,
        how: &StoredRequest,
    ) -> Result<(), EngineError> {
        let changes = self.ending(lock_ref, live, how);
        let id = lock_ref.key_id();
        // No other lock has a column of this name: whatever a renewal or try writes late stays hidden.
        let timestamp = match live.note.lock_id == format!("{:?}", lock_ref.tag) {
            true => self.parts.timestamp_after(live.timestamp) + END_AHEAD_US,
            false => live.following(),
        };
        self.parts.write_out(&id, &changes, timestamp).await
    }

    /// After a change of a lockRef: it may have ended meanwhile. Then its lock column is removed.
    pub(super) async fn unless_ended(
        &self,
        lock_ref: &LockRef,
        live: &Live,
    ) -> Result<(), EngineError> {
        match self.find(lock_ref, &[]).await {
            Err(
                ended @ EngineError::Ended(
                    EndedAs::Released | EndedAs::Lost(EndReason::Forced { .. }),
                ),
            ) => {
                let removes = [delete(self.names.lock(&live.note.lock_id))];
                let id = lock_ref.key_id();
                self.parts.write_out(&id, &removes, live.timestamp).await?;
                Err(ended)
            }
            found => found.map(drop),
        }
    }

    /// Fails unless the lockRef holds the row, and values may be guarded without a fence.
    pub(super) fn may_use_value(&self, live: &Live) -> Result<(), EngineError> {
        self.options.may_guard()?;
        match live.place {
            Place::Holds => Ok(()),
            Place::Unsure => Err(unsure()),
            Place::Waits { .. } => Err(EngineError::NoGrant),
        }
    }
}

/// The lock column of a lockRef cannot be proven now.
pub fn unsure() -> EngineError {
    EngineError::Unavailable(
        "the lock was written late, and others try to get the row; repeat the call".to_owned(),
    )
}
