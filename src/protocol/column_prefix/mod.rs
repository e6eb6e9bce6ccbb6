//! Lock columns beside the data of a row, as in Astyanax: reads and writes by a quorum, and no lightweight transaction.
//!
//! The rules are in [`rules`]. There is no order and no fence: a holder whose TTL has passed may still write.

mod row_locks;
mod rules;

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use tokio::time::{sleep, timeout};

pub use self::row_locks::{AcquireRow, AcquiredRow, Backoff};
pub use self::rules::LockColumn;
use self::rules::{
    ATTEMPT_TTL, ATTEMPTS, Names, Verdict, column_ttl, column_value, queue, seq_of, verdict,
};
use super::ProtocolKind;
use super::cells::{cell, delete, put};
use super::entry::{StoredEntry, StoredRequest};
use super::leaderless::{END_AHEAD_US, Parts, ProtocolOptions};
use super::queue::{LiveEntry, Queue, Queueing};
use crate::engine::{CreateCall, EngineError, LockStatus, Mutation, Value};
use crate::lock::{EndReason, EndedAs, Fence, KeyId, LockRef, Seq, Tag};
use crate::store::{CellChange, Columns, Currency, StoredCell};

/// The column of the guarded value.
const VALUE: &str = "value";
/// How long the end of a lockRef is noted: for repeats of its calls.
const ENDED_KEPT: Duration = Duration::from_secs(60);
/// The longest time of a try.
const TRY_MAX: Duration = Duration::from_secs(3 * ATTEMPT_TTL.as_secs());
/// The longest random pause of a waiter before its first try; it doubles with each one …
const PAUSE_MIN: Duration = Duration::from_millis(20);
/// … up to this.
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// The protocol. Cheap to clone.
#[derive(Clone)]
pub struct ColumnPrefix {
    parts: Parts,
    options: ProtocolOptions,
    names: Names,
}

/// A live lockRef.
pub struct Live {
    place: Place,
    entry: StoredEntry,
    /// When its cell was written, in microseconds.
    timestamp: u64,
    left: Duration,
    /// When that was read, by the clock that no sleep stops.
    read_at: Duration,
}

/// Where a lockRef is.
#[derive(Clone, PartialEq)]
enum Place {
    /// It holds the row by this column.
    Row(String),
    /// It waits for so many others in the row; for none: it may try.
    Waits { ahead: usize },
}

impl LiveEntry for Live {
    fn entry(&self) -> &StoredEntry {
        &self.entry
    }

    fn left(&self) -> Duration {
        self.left
    }
}

/// One try to hold a row.
#[derive(Clone)]
struct Try {
    id: KeyId,
    tag: Tag,
    entry: StoredEntry,
    /// The id of the lock column; by default the tag.
    lock_id: Option<String>,
    fail_on_stale: bool,
    /// The whole row is read.
    reads_row: bool,
    /// It has waited, and has a note of that.
    has_waited: bool,
}

impl Try {
    fn new(id: KeyId, tag: Tag, entry: StoredEntry) -> Try {
        Try {
            id,
            tag,
            entry,
            lock_id: None,
            fail_on_stale: false,
            reads_row: false,
            has_waited: false,
        }
    }
}

/// What came of a try.
enum Tried {
    /// It holds the row, which was read like this.
    Holds(Live, Vec<StoredCell>),
    /// Its lockRef holds the row, by another call.
    Held(Live),
    /// This many others are in the row.
    Busy(usize),
}

impl ColumnPrefix {
    pub(super) fn new(parts: Parts, options: ProtocolOptions) -> ColumnPrefix {
        let names = Names::new(&options.lock_prefix);
        ColumnPrefix {
            parts,
            options,
            names,
        }
    }

    async fn read(&self, id: &KeyId, columns: &Columns) -> Result<Vec<StoredCell>, EngineError> {
        self.parts.read(id, columns, Currency::Acknowledged).await
    }

    /// The lock columns of a row.
    async fn lock_columns(&self, id: &KeyId) -> Result<Vec<LockColumn>, EngineError> {
        let cells = self.read(id, &self.names.locks()).await?;
        Ok(self.names.lock_columns(&cells))
    }

    /// A lockRef with this lock column, unless its promise has ended.
    fn holder(&self, column: LockColumn, read_at: Duration) -> Result<Live, EngineError> {
        let left = column.left(self.parts.clock.wall_us());
        match left.is_zero() {
            true => Err(EngineError::Ended(EndedAs::Lost(EndReason::Expired))),
            false => Ok(Live {
                left,
                place: Place::Row(column.column),
                entry: column.entry.unwrap_or_default(),
                timestamp: column.timestamp,
                read_at,
            }),
        }
    }

    /// Tries to hold a row. Goes on if its caller is gone: an attempt would block others.
    async fn tried(&self, once: Try) -> Result<Tried, EngineError> {
        let protocol = self.clone();
        let trying = async move { timeout(TRY_MAX, protocol.try_here(&once)).await };
        match tokio::spawn(trying).await {
            Ok(Ok(tried)) => tried,
            Ok(Err(_)) | Err(_) => Err(EngineError::Unavailable(
                "the store did not answer in time".to_owned(),
            )),
        }
    }

    async fn try_here(&self, once: &Try) -> Result<Tried, EngineError> {
        let (id, tag, clock) = (&once.id, once.tag, &self.parts.clock);
        let began = clock.boot();
        let attempt = self.names.attempt(tag, self.parts.ids.below(ATTEMPTS));
        let timestamp = clock.wall_us();
        let value = column_value(timestamp, ATTEMPT_TTL, &once.entry);
        let life = Some(column_ttl(ATTEMPT_TTL, &StoredEntry::default()));
        let write = put(attempt.clone(), value, life);
        self.parts.write_out(id, &[write], timestamp).await?;
        let columns = match once.reads_row {
            true => Columns::all(),
            false => self.names.locks(),
        };
        let read = self.read(id, &columns).await;
        let judged = read.and_then(|cells| Ok((self.judged(once, &attempt, &cells)?, cells)));
        let timestamp = self.parts.timestamp_after(timestamp);
        let remove = delete(attempt);
        let (stale, cells) = match judged {
            Ok((Verdict::Alone(stale), cells)) => (stale, cells),
            other => {
                self.parts.write_out(id, &[remove], timestamp).await?;
                return match other?.0 {
                    Verdict::Holds(column) => Ok(Tried::Held(self.holder(column, began)?)),
                    Verdict::Busy(others) => Ok(Tried::Busy(others)),
                    Verdict::Alone(_) => Ok(Tried::Busy(1)),
                };
            }
        };
        let ttl = once.entry.ttl();
        let lock_id = once.lock_id.clone();
        let column = self
            .names
            .lock(&lock_id.unwrap_or_else(|| format!("{tag:?}")));
        let value = column_value(timestamp, ttl, &once.entry);
        let life = Some(column_ttl(ttl, &once.entry));
        let held_from = clock.boot();
        let changes = [put(column.clone(), value.clone(), life), remove];
        self.parts.write_out(id, &changes, timestamp).await?;
        // Once the attempt has ended others do not see it. A deletion under a clock that is ahead may hide a column of this name.
        let is_late = clock.boot().saturating_sub(began) >= ATTEMPT_TTL;
        let is_seen = match once.lock_id {
            Some(_) => {
                let seen = self.parts.read_one(id, &column).await?;
                seen.is_some_and(|cell| cell.value == value)
            }
            None => true,
        };
        if is_late || !is_seen {
            let removes = [delete(column)];
            self.parts.write_out(id, &removes, timestamp + 1).await?;
            return Ok(Tried::Busy(1));
        }
        let live = Live {
            place: Place::Row(column),
            entry: once.entry.clone(),
            timestamp,
            left: ttl,
            read_at: held_from,
        };
        if once.has_waited {
            // It may have been released meanwhile.
            let lock_ref = super::queue::lock_ref(id, seq_of(tag), tag);
            if let Err(error) = self.noted(&lock_ref).await {
                return Err(self.removed(&lock_ref, &live, error).await);
            }
            // Its note must never bring it back.
            let removes = [delete(self.names.waits(tag))];
            let ahead = self.parts.timestamp_after(0) + END_AHEAD_US;
            self.parts.write_out(id, &removes, ahead).await?;
        }
        self.remove_stale(id, &stale).await;
        Ok(Tried::Holds(live, cells))
    }

    /// What the row says to an attempt.
    fn judged(
        &self,
        once: &Try,
        attempt: &str,
        cells: &[StoredCell],
    ) -> Result<Verdict, EngineError> {
        let bytes: usize = cells.iter().map(StoredCell::bytes).sum();
        if once.reads_row && bytes > self.parts.limits.message_bytes_max {
            return Err(EngineError::Exhausted {
                what: "message_bytes_max",
                limit: self.parts.limits.message_bytes_max as u64,
            });
        }
        let columns = self.names.lock_columns(cells);
        let verdict = verdict(columns, attempt, once.tag, self.parts.clock.wall_us());
        if let (Verdict::Alone(stale), true) = (&verdict, once.fail_on_stale)
            && let Some(column) = stale.first()
        {
            let column = column.column.clone();
            return Err(EngineError::StaleLock { column });
        }
        Ok(verdict)
    }

    /// Removes stale columns as they were seen: each under its own timestamp, so that one which was written anew stays.
    async fn remove_stale(&self, id: &KeyId, stale: &[LockColumn]) {
        for column in stale {
            let removes = delete(column.column.clone());
            if let Err(error) = self.parts.write_one(id, removes, column.timestamp).await {
                // The next holder tries again.
                tracing::debug!(%id, %error, "a stale lock column stays");
            }
        }
    }

    /// The notes of a lockRef: how it ended, or that it waits.
    async fn noted(&self, lock_ref: &LockRef) -> Result<Option<Live>, EngineError> {
        let (waits, ended) = (
            self.names.waits(lock_ref.tag),
            self.names.ended(lock_ref.tag),
        );
        let named = Columns::Named(vec![waits.clone(), ended.clone()]);
        let read_at = self.parts.clock.boot();
        let cells = self.read(&lock_ref.key_id(), &named).await?;
        if let Some(ended) = cell(&cells, &ended) {
            let ended = StoredRequest::decoded(&ended.value)?;
            return Err(EngineError::Ended(ended.ended_as()));
        }
        let Some(waits) = cell(&cells, &waits) else {
            return Ok(None);
        };
        Ok(Some(Live {
            place: Place::Waits { ahead: 0 },
            entry: StoredEntry::decoded(&waits.value)?,
            timestamp: waits.timestamp,
            left: waits.left.unwrap_or_default(),
            read_at,
        }))
    }

    /// Notes that a lockRef waits.
    async fn note_waiting(&self, lock_ref: &LockRef, live: &Live) -> Result<(), EngineError> {
        let waits = self.names.waits(lock_ref.tag);
        let note = put(waits, live.entry.encoded(), Some(live.entry.ttl()));
        let timestamp = self.parts.timestamp_after(live.timestamp);
        self.parts
            .write_out(&lock_ref.key_id(), &[note], timestamp)
            .await
    }

    /// Removes the lock column of a lockRef that does not hold its row for this reason. Answers the reason.
    async fn removed(&self, lock_ref: &LockRef, live: &Live, error: EngineError) -> EngineError {
        let Place::Row(column) = &live.place else {
            return error;
        };
        let timestamp = self.parts.timestamp_after(live.timestamp);
        let removes = [delete(column.clone())];
        let id = lock_ref.key_id();
        match self.parts.write_out(&id, &removes, timestamp).await {
            Ok(()) => error,
            Err(failed) => failed,
        }
    }

    /// Ends a lockRef, with more changes of its row in the same batch.
    async fn end_with(
        &self,
        lock_ref: &LockRef,
        live: &Live,
        how: &StoredRequest,
        more: Vec<CellChange>,
    ) -> Result<(), EngineError> {
        let kept = Some(live.entry.ttl() + ENDED_KEPT);
        let mut changes = vec![put(self.names.ended(lock_ref.tag), how.encoded(), kept)];
        changes.push(match &live.place {
            Place::Row(column) => delete(column.clone()),
            Place::Waits { .. } => delete(self.names.waits(lock_ref.tag)),
        });
        changes.extend(more);
        let id = lock_ref.key_id();
        let timestamp = self.parts.timestamp_after(live.timestamp);
        self.parts.write_out(&id, &changes, timestamp).await?;
        if let Place::Waits { .. } = live.place {
            // A try of another call may have come between.
            let columns = self.lock_columns(&id).await?;
            let own = columns.into_iter().find(|one| one.is_held_by(lock_ref.tag));
            if let Some(own) = own {
                let timestamp = self.parts.timestamp_after(own.timestamp);
                let removes = [delete(own.column)];
                self.parts.write_out(&id, &removes, timestamp).await?;
            }
        }
        Ok(())
    }

    /// Fails unless the lockRef holds the row, and values may be guarded without a fence.
    fn may_use_value(&self, live: &Live) -> Result<(), EngineError> {
        self.options.may_guard()?;
        match live.place {
            Place::Row(_) => Ok(()),
            Place::Waits { .. } => Err(EngineError::NoGrant),
        }
    }
}

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
        Ok(queue(columns, self.parts.clock.wall_us()))
    }

    /// Waiters are not in the queue: a row without lock columns is free.
    fn is_turn(&self, queue: &Queue, seq: Seq) -> bool {
        queue.entries.is_empty() || queue.position(seq).is_some()
    }

    /// Waiters of one replica learn at once that a row is free. They come one after the other.
    async fn before_try(&self, tries: u32) {
        let longest = PAUSE_MIN.saturating_mul(1 << tries.min(10)).min(PAUSE_MAX);
        let longest = u64::try_from(longest.as_micros()).unwrap_or(u64::MAX);
        sleep(Duration::from_micros(self.parts.ids.below(longest))).await;
    }

    async fn enter(
        &self,
        call: &CreateCall,
        entry: StoredEntry,
    ) -> Result<(Seq, Live, bool), EngineError> {
        let seq = seq_of(call.tag);
        let once = Try::new(call.id.clone(), call.tag, entry.clone());
        match self.tried(once).await? {
            Tried::Holds(live, _) => Ok((seq, live, false)),
            Tried::Held(live) => Ok((seq, live, true)),
            Tried::Busy(others) => {
                let lock_ref = super::queue::lock_ref(&call.id, seq, call.tag);
                let live = Live {
                    place: Place::Waits { ahead: others },
                    left: entry.ttl(),
                    entry,
                    timestamp: 0,
                    read_at: self.parts.clock.boot(),
                };
                self.note_waiting(&lock_ref, &live).await?;
                Ok((seq, live, false))
            }
        }
    }

    async fn live(&self, lock_ref: &LockRef) -> Result<Live, EngineError> {
        if lock_ref.seq != seq_of(lock_ref.tag) {
            return Err(EngineError::NeverIssued);
        }
        // A lockRef that waited may hold the row once its note is gone.
        for _ in 0..2 {
            let read_at = self.parts.clock.boot();
            let columns = self.lock_columns(&lock_ref.key_id()).await?;
            let now_us = self.parts.clock.wall_us();
            let live = columns.iter().filter(|column| !column.is_stale(now_us));
            let ahead = live.count();
            let own = columns.into_iter().find(|one| one.is_held_by(lock_ref.tag));
            if let Some(own) = own {
                return self.holder(own, read_at);
            }
            if let Some(live) = self.noted(lock_ref).await? {
                let place = Place::Waits { ahead };
                return Ok(Live { place, ..live });
            }
        }
        Err(EngineError::Ended(EndedAs::NoLongerKept))
    }

    /// Others see a renewal that is acknowledged before the promised end. A later one is none.
    async fn renew(&self, lock_ref: &LockRef, live: &mut Live) -> Result<(), EngineError> {
        let (ttl, clock) = (live.entry.ttl(), &self.parts.clock);
        if live.left > ttl * 3 / 4 {
            return Ok(());
        }
        let Place::Row(column) = live.place.clone() else {
            self.note_waiting(lock_ref, live).await?;
            live.left = ttl;
            return Ok(());
        };
        let began = clock.boot();
        let timestamp = self.parts.timestamp_after(live.timestamp);
        let value = column_value(clock.wall_us(), ttl, &live.entry);
        let life = Some(column_ttl(ttl, &live.entry));
        let id = lock_ref.key_id();
        let writes = [put(column, value, life)];
        self.parts.write_out(&id, &writes, timestamp).await?;
        live.timestamp = timestamp;
        if clock.boot() >= live.read_at + live.left {
            let expired = EngineError::Ended(EndedAs::Lost(EndReason::Expired));
            return Err(self.removed(lock_ref, live, expired).await);
        }
        // A release may have come between.
        match self.noted(lock_ref).await {
            Err(error @ EngineError::Ended(_)) => {
                return Err(self.removed(lock_ref, live, error).await);
            }
            Err(error) => return Err(error),
            Ok(_) => {}
        }
        live.left = ttl;
        live.read_at = began;
        Ok(())
    }

    /// One that waits tries again.
    async fn status(&self, lock_ref: &LockRef, live: &mut Live) -> Result<LockStatus, EngineError> {
        match live.place {
            Place::Row(_) => return Ok(HELD),
            Place::Waits { ahead: 0 } => {}
            Place::Waits { ahead } => return Ok(waiting(ahead)),
        }
        let once = Try {
            has_waited: true,
            ..Try::new(lock_ref.key_id(), lock_ref.tag, live.entry.clone())
        };
        match self.tried(once).await? {
            Tried::Busy(others) => Ok(waiting(others)),
            Tried::Holds(holds, _) | Tried::Held(holds) => {
                *live = holds;
                Ok(HELD)
            }
        }
    }

    async fn request(&self, lock_ref: &LockRef) -> Result<Option<StoredRequest>, EngineError> {
        let ended = self.names.ended(lock_ref.tag);
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
        self.end_with(lock_ref, &live, &how, Vec::new()).await?;
        Ok(matches!(live.place, Place::Row(_)))
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
        live: &mut Live,
        mutation: &Mutation,
        _call_no: u64,
        _is_release: bool,
    ) -> Result<(), EngineError> {
        self.may_use_value(live)?;
        let id = lock_ref.key_id();
        let before = self.parts.read_one(&id, VALUE).await?;
        let timestamp = before.map_or(0, |cell| cell.timestamp);
        let timestamp = self.parts.timestamp_after(timestamp);
        let change = match mutation {
            Mutation::Put(value) => put(VALUE, Bytes::clone(value), None),
            Mutation::Delete => delete(VALUE),
        };
        self.parts.write_one(&id, change, timestamp).await
    }
}
