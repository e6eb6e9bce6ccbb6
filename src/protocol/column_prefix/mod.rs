//! Lock columns beside the data of a row, as in Astyanax: reads and writes by a quorum, and no lightweight transaction.
//!
//! The rules are in [`rules`]. There is no order and no fence: a holder whose TTL has passed may still write.

mod row_locks;
mod rows;
mod rules;
mod tries;

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use tokio::time::sleep;

pub use self::row_locks::{AcquireRow, AcquiredRow, Backoff};
pub use self::rows::ColumnPrefix;
use self::rows::{KEPT, Live, PAUSE_MIN, Place};
pub use self::rules::LockColumn;
use self::rules::{NoteKind, micros, queue, seq_of};
use self::tries::Try;
use super::ProtocolKind;
use super::cells::{delete, put};
use super::entry::{StoredEntry, StoredRequest};
use super::leaderless::Parts;
use super::queue::{Queue, Queueing};
use crate::engine::{CreateCall, EngineError, LockStatus, Mutation, Value};
use crate::lock::{Fence, KeyId, LockRef, Seq};
use crate::store::StoredCell;

/// The column of the guarded value.
const VALUE: &str = "value";
/// The longest random pause of a waiter; it doubles with each try up to this.
const PAUSE_MAX: Duration = Duration::from_secs(1);

const HELD: LockStatus = LockStatus::Held {
    grant: Fence::NONE,
    value: None,
};

fn waiting(others: usize) -> LockStatus {
    LockStatus::Waiting {
        position: others.max(1),
    }
}

#[async_trait]
impl Queueing for ColumnPrefix {
    const KIND: ProtocolKind = ProtocolKind::ColumnPrefix;
    type Live = Live;

    fn may_guard(&self) -> Result<(), EngineError> {
        self.options.may_guard()
    }

    fn parts(&self) -> &Parts {
        &self.parts
    }

    async fn queue(&self, id: &KeyId) -> Result<Queue, EngineError> {
        let columns = self.lock_columns(id).await?;
        Ok(queue(columns, Vec::new(), self.parts.clock.wall_us()))
    }

    async fn shown(&self, id: &KeyId) -> Result<Queue, EngineError> {
        let (columns, notes) = self.noted_columns(id).await?;
        let kinds = [NoteKind::Holds, NoteKind::Ended];
        let [holds, ended] = kinds.map(|kind| self.names.note_tags(&notes, kind));
        let is_over = |cell: &StoredCell| cell.left.is_some_and(|left| left <= KEPT);
        let notes: Vec<StoredCell> = notes.into_iter().filter(|cell| !is_over(cell)).collect();
        let mut waits = self.names.noted(&notes, NoteKind::Waits);
        waits.retain(|(tag, _)| !holds.contains(tag) && !ended.contains(tag));
        Ok(queue(columns, waits, self.parts.clock.wall_us()))
    }

    /// A row without lock columns is free.
    fn is_turn(&self, queue: &Queue, seq: Seq) -> bool {
        queue.entries.is_empty() || queue.position(seq).is_some()
    }

    /// Waiters of one replica learn at once that a row is free. They come one after the other.
    async fn before_try(&self, tries: u32) {
        let longest = PAUSE_MIN.saturating_mul(1 << tries.min(10)).min(PAUSE_MAX);
        sleep(Duration::from_micros(self.parts.ids.below(micros(longest)))).await;
    }

    async fn enter(
        &self,
        call: &CreateCall,
        entry: StoredEntry,
    ) -> Result<(Seq, Live, bool), EngineError> {
        let seq = seq_of(call.tag);
        let lock_ref = super::queue::lock_ref(&call.id, seq, call.tag);
        let once = Try::new(&lock_ref, entry);
        let (live, busy) = match self.tried(once.clone()).await? {
            Ok(held) => return Ok((seq, held.live, held.was_known)),
            Err(busy) => (busy.known.clone(), busy),
        };
        let place = Place::Waits {
            tried: Some(busy.others),
        };
        if let Some(live) = live {
            return Ok((seq, Live { place, ..live }, true));
        }
        let live = Live {
            place,
            left: once.note.entry.ttl(),
            note: once.note,
            timestamp: 0,
            read_at: self.parts.clock.boot(),
            read_us: self.parts.clock.wall_us(),
        };
        self.note_waiting(&lock_ref, &live).await?;
        Ok((seq, live, false))
    }

    async fn live(&self, lock_ref: &LockRef) -> Result<Live, EngineError> {
        self.found(lock_ref).await
    }

    async fn renew(&self, lock_ref: &LockRef, live: &mut Live) -> Result<(), EngineError> {
        let (ttl, clock) = (live.note.entry.ttl(), &self.parts.clock);
        if live.left > ttl * 3 / 4 {
            return Ok(());
        }
        if live.place != Place::Holds {
            self.note_waiting(lock_ref, live).await?;
            live.left = ttl;
            return Ok(());
        }
        let id = lock_ref.key_id();
        let (changes, promised_us) = self.locks(lock_ref.tag, &live.note);
        let timestamp = promised_us - micros(ttl);
        self.parts.write_out(&id, &changes, timestamp).await?;
        if clock.boot().saturating_sub(live.read_at) >= live.left {
            // Others may have passed the promise. The lock column ends by itself.
            return Err(EngineError::Unavailable(
                "the store was too slow to renew the lock".to_owned(),
            ));
        }
        self.promise(lock_ref, live, promised_us).await
    }

    /// One that waits tries again, unless it did just now.
    async fn status(&self, lock_ref: &LockRef, live: &mut Live) -> Result<LockStatus, EngineError> {
        match live.place {
            Place::Holds => return Ok(HELD),
            Place::Waits { tried: Some(ahead) } => return Ok(waiting(ahead)),
            Place::Waits { tried: None } => {}
        }
        match self.tried(Try::again(lock_ref, live)).await? {
            Err(busy) => Ok(waiting(busy.others)),
            Ok(held) => {
                *live = held.live;
                Ok(HELD)
            }
        }
    }

    async fn request(&self, lock_ref: &LockRef) -> Result<Option<StoredRequest>, EngineError> {
        let ended = self.names.note(lock_ref.tag, NoteKind::Ended);
        let note = self.parts.read_one(&lock_ref.key_id(), &ended).await?;
        note.map(|cell| StoredRequest::decoded(&cell.value))
            .transpose()
    }

    async fn end(
        &self,
        lock_ref: &LockRef,
        live: Live,
        how: StoredRequest,
    ) -> Result<bool, EngineError> {
        self.ended(lock_ref, &live, &how).await?;
        Ok(live.is_held())
    }

    async fn value(&self, id: &KeyId) -> Result<Value, EngineError> {
        let cell = self.parts.read_one(id, VALUE).await?;
        Ok(Value {
            bytes: cell.map(|cell| cell.value),
        })
    }

    async fn get(
        &self,
        lock_ref: &LockRef,
        live: &mut Live,
        _call_no: u64,
    ) -> Result<Value, EngineError> {
        self.may_use_value(live)?;
        self.value(&lock_ref.key_id()).await
    }

    async fn write(
        &self,
        lock_ref: &LockRef,
        _live: &mut Live,
        mutation: &Mutation,
        _call_no: u64,
        _is_release: bool,
    ) -> Result<(), EngineError> {
        let change = match mutation {
            Mutation::Put(value) => put(VALUE, Bytes::clone(value), None),
            Mutation::Delete => delete(VALUE),
        };
        let value = [VALUE.to_owned()];
        let (before, timestamp) = self.before_change(lock_ref, &value).await?;
        let changes = [change, self.last_change(&before)];
        self.changed(lock_ref, &before, &changes, timestamp).await
    }
}
