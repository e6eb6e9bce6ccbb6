//! Rows with lock columns, and what a lockRef is in them.

use std::time::Duration;

use bytes::Bytes;

use super::rules::{LockColumn, MARGIN, Names, Note, NoteKind, column_value, micros, seq_of};
use crate::engine::EngineError;
use crate::lock::{EndReason, EndedAs, KeyId, LockRef, Tag};
use crate::protocol::cells::{cell, delete, put};
use crate::protocol::entry::{StoredEntry, StoredRequest};
use crate::protocol::leaderless::{Parts, ProtocolOptions};
use crate::protocol::queue::LiveEntry;
use crate::store::{CellChange, Columns, StoredCell};

/// The shortest pause between two tries.
pub const PAUSE_MIN: Duration = Duration::from_millis(20);
/// How long notes stay after the TTL of their lockRef: for repeats of its calls.
pub const KEPT: Duration = Duration::from_secs(60);
/// The lead of the end of a lockRef over all that is written for it: less than the notes are kept.
const LEAD: Duration = Duration::from_secs(5);
/// How far the clocks of two replicas may differ.
const SKEW: Duration = Duration::from_secs(1);

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
    /// Before the row was read, by the clock that no sleep stops.
    pub read_at: Duration,
    /// The same, in microseconds since 1970; above the latest change of data.
    pub read_us: u64,
}

/// What was read of a lockRef.
pub struct Found {
    /// `None`: nothing is noted of it.
    pub live: Option<Live>,
    /// All cells that were read.
    pub cells: Vec<StoredCell>,
}

/// Where a lockRef is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Place {
    /// It holds the row.
    Holds,
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
    /// Whether it holds the row.
    pub fn is_held(&self) -> bool {
        self.place == Place::Holds
    }

    /// The timestamp of a change that follows what was read. It is not above the promised end: who comes after it writes above.
    pub fn following(&self) -> u64 {
        let timestamp = self.read_us.max(self.timestamp + 1);
        match self.place {
            Place::Holds => timestamp.min(self.note.promised_us),
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

    /// The lock columns of a row.
    pub(super) async fn lock_columns(&self, id: &KeyId) -> Result<Vec<LockColumn>, EngineError> {
        let cells = self.parts.acknowledged(id, &self.names.locks()).await?;
        Ok(self.names.lock_columns(&cells))
    }

    /// The lock columns of a row with their entries, one for each lock, and its notes.
    pub(super) async fn noted_columns(
        &self,
        id: &KeyId,
    ) -> Result<(Vec<LockColumn>, Vec<StoredCell>), EngineError> {
        let mut columns = self.lock_columns(id).await?;
        let notes = self.parts.acknowledged(id, &self.names.notes()).await?;
        for (tag, note) in self.names.noted(&notes, NoteKind::Holds) {
            let lock = self.names.lock(tag);
            let second = self.names.second(&note);
            // Both are of one batch. The note of an earlier lock of the same id is kept for a while.
            let Some(lock) = columns.iter().position(|one| one.column == lock) else {
                continue;
            };
            let is_second = |one: &LockColumn| {
                Some(&one.column) == second.as_ref() && one.timestamp == columns[lock].timestamp
            };
            let shown = columns.iter().position(is_second);
            let at = shown.unwrap_or(lock);
            columns[at].tag = Some(tag);
            columns[at].entry = Some(note.entry);
            if shown.is_some() {
                columns.remove(lock);
            }
        }
        Ok((columns, notes))
    }

    /// A lockRef, live or ended. `more` columns are read at the same moment.
    pub(super) async fn find(
        &self,
        lock_ref: &LockRef,
        more: &[String],
    ) -> Result<Found, EngineError> {
        let (tag, clock) = (lock_ref.tag, &self.parts.clock);
        let kinds = [NoteKind::Waits, NoteKind::Holds, NoteKind::Ended];
        let [waits, holds, ended] = kinds.map(|kind| self.names.note(tag, kind));
        let (lock, last) = (self.names.lock(tag), self.names.last());
        let names = [&waits, &holds, &ended, &lock, &last].into_iter();
        let names = Columns::Named(names.chain(more).cloned().collect());
        let began = (clock.boot(), clock.wall_us());
        let cells = self.parts.acknowledged(&lock_ref.key_id(), &names).await?;
        if let Some(ended) = cell(&cells, &ended) {
            let ended = StoredRequest::decoded(&ended.value)?;
            return Err(EngineError::Ended(ended.ended_as()));
        }
        let last_us = cell(&cells, &last).map_or(0, |cell| cell.timestamp + 1);
        let (read_at, read_us) = (began.0, began.1.max(last_us));
        let is_held = cell(&cells, &holds);
        let Some(noted) = is_held.or(cell(&cells, &waits)) else {
            return Ok(Found { live: None, cells });
        };
        let mut live = Live {
            place: Place::Waits { tried: None },
            note: Note::decoded(&noted.value)?,
            timestamp: noted.timestamp,
            left: noted.left.unwrap_or_default().saturating_sub(KEPT),
            read_at,
            read_us,
        };
        if is_held.is_some() {
            let promised_us = live.note.promised_us;
            let is_there = cell(&cells, &lock).is_some();
            if !is_there || began.1 >= promised_us.saturating_add(micros(SKEW)) {
                return Err(EngineError::Ended(EndedAs::Lost(EndReason::Expired)));
            }
            let left = promised_us.saturating_sub(clock.wall_us());
            if left == 0 {
                return Err(EngineError::Unavailable(
                    "the lock is at its end, as far as clocks agree".to_owned(),
                ));
            }
            live.left = Duration::from_micros(left);
            live.place = Place::Holds;
        }
        Ok(Found {
            live: Some(live),
            cells,
        })
    }

    /// The lock columns of a lockRef that holds its row from now on, for its TTL, and the end that may be promised once they are
    /// acknowledged. They are written with the present time, so that of two renewals the one with the later end stays.
    pub(super) fn locks(&self, tag: Tag, note: &Note) -> (Vec<CellChange>, u64) {
        let promised_us = self.parts.clock.wall_us() + micros(note.entry.ttl());
        let value = column_value(promised_us + micros(MARGIN));
        let names = std::iter::once(self.names.lock(tag)).chain(self.names.second(note));
        let locks = names.map(|name| put(name, value.clone(), Some(note.column_ttl())));
        (locks.collect(), promised_us)
    }

    /// Promises a lockRef that it holds its row until then. Its lock columns were acknowledged in time.
    pub(super) async fn promise(
        &self,
        lock_ref: &LockRef,
        live: &mut Live,
        promised_us: u64,
    ) -> Result<(), EngineError> {
        let note = Note {
            promised_us,
            ..live.note.clone()
        };
        let noted = prost::Message::encode_to_vec(&note).into();
        let kept = Some(note.entry.ttl() + KEPT);
        let holds = put(self.names.note(lock_ref.tag, NoteKind::Holds), noted, kept);
        let id = lock_ref.key_id();
        live.timestamp = promised_us - micros(note.entry.ttl());
        self.parts.write_out(&id, &[holds], live.timestamp).await?;
        let left = promised_us.saturating_sub(self.parts.clock.wall_us());
        live.note = note;
        live.place = Place::Holds;
        live.left = Duration::from_micros(left);
        live.read_at = self.parts.clock.boot();
        self.unless_ended(lock_ref, live).await
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

    /// The note of the end of a lockRef.
    pub(super) fn ended_note(
        &self,
        lock_ref: &LockRef,
        live: &Live,
        how: &StoredRequest,
    ) -> CellChange {
        let kept = Some(live.note.entry.ttl() + KEPT);
        let ended = self.names.note(lock_ref.tag, NoteKind::Ended);
        put(ended, how.encoded(), kept)
    }

    /// The cell that tells the timestamp of a change of data.
    pub(super) fn last_change(&self, live: &Live) -> CellChange {
        let kept = Some(live.note.entry.ttl() + KEPT);
        put(self.names.last(), Bytes::new(), kept)
    }

    /// A live lockRef.
    pub(super) async fn found(&self, lock_ref: &LockRef) -> Result<Live, EngineError> {
        if lock_ref.seq != seq_of(lock_ref.tag) {
            return Err(EngineError::NeverIssued);
        }
        let found = self.find(lock_ref, &[]).await?;
        found.live.ok_or(EngineError::Ended(EndedAs::NoLongerKept))
    }

    /// Ends a live lockRef, and notes how.
    pub(super) async fn ended(
        &self,
        lock_ref: &LockRef,
        live: &Live,
        how: &StoredRequest,
    ) -> Result<(), EngineError> {
        let note = self.ended_note(lock_ref, live, how);
        self.removed(lock_ref, live, Some(note)).await
    }

    /// Removes the lock columns of a lockRef, above whatever a renewal or try writes late. The note of its end lives for longer.
    pub(super) async fn removed(
        &self,
        lock_ref: &LockRef,
        live: &Live,
        note: Option<CellChange>,
    ) -> Result<(), EngineError> {
        let id = lock_ref.key_id();
        // First the second column: without the other one it would be that of another program. Another lock may have one of this name.
        if let Some(second) = self.names.second(&live.note) {
            let removes = [delete(second)];
            let timestamp = live.following();
            self.parts.write_out(&id, &removes, timestamp).await?;
        }
        let now_us = self.parts.clock.wall_us();
        let ahead = live.note.promised_us.max(now_us) + micros(LEAD);
        let mut changes = vec![delete(self.names.lock(lock_ref.tag))];
        changes.extend(note);
        let ahead = ahead.max(live.timestamp + 1);
        self.parts.write_out(&id, &changes, ahead).await
    }

    /// After a change of a lockRef: it may have ended meanwhile. Then its lock columns are removed.
    pub(super) async fn unless_ended(
        &self,
        lock_ref: &LockRef,
        live: &Live,
    ) -> Result<(), EngineError> {
        match self.find(lock_ref, &[]).await {
            Err(ended @ EngineError::Ended(_)) => {
                self.removed(lock_ref, live, None).await?;
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
            Place::Waits { .. } => Err(EngineError::NoGrant),
        }
    }
}
