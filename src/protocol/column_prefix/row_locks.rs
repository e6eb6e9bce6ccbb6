//! The calls on rows that LockService does not have.

use std::time::Duration;

use bytes::Bytes;
use tokio::time::{Instant, sleep};

use super::rows::{ColumnPrefix, Live, PAUSE_MIN};
use super::rules::{LockColumn, NoteKind, seq_of};
use super::tries::Try;
use crate::engine::{CreateCall, EngineError};
use crate::lock::{EndedAs, KeyId, LockRef};
use crate::protocol::cells::delete;
use crate::protocol::entry::{StoredEntry, StoredRequest};
use crate::protocol::queue::lock_ref;
use crate::store::{CellChange, Columns, StoredCell};

/// A lock on a row that is asked for.
#[derive(Clone, Debug)]
pub struct AcquireRow {
    /// The row, and the client.
    pub call: CreateCall,
    /// The TTL of the lock, in milliseconds.
    pub ttl_ms: u32,
    /// The TTL of its column, in milliseconds; 0: that of the lock.
    pub column_ttl_ms: u32,
    /// Its id, with which the name of a second lock column ends.
    pub lock_id: Option<String>,
    /// A stale lock column is an error.
    pub fail_on_stale: bool,
    /// The row is read as well.
    pub reads_row: bool,
    /// The tries after the first one.
    pub backoff: Backoff,
}

/// The tries after the first one.
#[derive(Clone, Copy, Debug, Default)]
pub struct Backoff {
    /// Their number.
    pub retries: u32,
    /// The pause before the first one, and before all unless it grows. 20 ms at least.
    pub pause: Duration,
    /// The pause doubles up to this, and is random between its half and its whole; `None`: it stays.
    pub pause_max: Option<Duration>,
}

/// A lock on a row that is held.
#[derive(Clone, Debug)]
pub struct AcquiredRow {
    /// Its lockRef.
    pub lock_ref: LockRef,
    /// When it was known to be held, and the rest of its life from then.
    pub held: (Instant, Duration),
    /// The data columns with their values, if they were asked for.
    pub columns: Vec<(String, Bytes)>,
    /// The tries after the first one.
    pub retries: u32,
}

impl Backoff {
    /// The pause before a retry. `random` is below its argument.
    fn pause(&self, retry: u32, random: impl FnOnce(u64) -> u64) -> Duration {
        let pause = self.pause.max(PAUSE_MIN);
        let Some(longest) = self.pause_max else {
            return pause;
        };
        let whole = pause.saturating_mul(1 << retry.min(20)).min(longest);
        let half = u64::try_from(whole.as_micros() / 2).unwrap_or(u64::MAX);
        let shorter = Duration::from_micros(random(half.max(1)));
        whole.saturating_sub(shorter).max(PAUSE_MIN)
    }
}

impl ColumnPrefix {
    /// Whether a column is for data.
    pub fn is_data(&self, column: &str) -> bool {
        self.names.is_data(column)
    }

    /// Tries to hold a row, again and again as its back-off says, until `until` at the latest.
    pub async fn acquire_row(
        &self,
        ask: &AcquireRow,
        until: Instant,
    ) -> Result<AcquiredRow, EngineError> {
        let (id, tag) = (&ask.call.id, ask.call.tag);
        let lock_ref = lock_ref(id, seq_of(tag), tag);
        let entry = StoredEntry::new(&ask.call, ask.ttl_ms, self.parts.clock.wall_ms());
        let mut once = Try::new(&lock_ref, entry);
        once.note.column_ttl_ms = ask.column_ttl_ms;
        once.fail_on_stale = ask.fail_on_stale;
        if let Some(lock_id) = &ask.lock_id {
            lock_id.clone_into(&mut once.note.lock_id);
        }
        let mut retries = 0;
        let live = loop {
            let Ok(held) = self.tried(once.clone()).await? else {
                let random = |below| self.parts.ids.below(below);
                let pause = ask.backoff.pause(retries, random);
                let left = until.saturating_duration_since(Instant::now());
                if retries >= ask.backoff.retries || pause >= left {
                    return Err(EngineError::RowBusy { retries });
                }
                sleep(pause).await;
                retries += 1;
                once.looks_first = true;
                continue;
            };
            break held.live;
        };
        let held = (Instant::now(), live.left);
        let differs = live.note.entry.differs_from(&ask.call, ask.ttl_ms);
        let other_id = (live.note.lock_id != once.note.lock_id).then_some("lock_id");
        if let Some(field) = differs.or(other_id) {
            return Err(EngineError::RequestMismatch { field });
        }
        let columns = match ask.reads_row {
            true => self.data(id).await,
            false => Ok(Vec::new()),
        };
        let columns = match columns {
            Ok(columns) => columns,
            Err(error @ EngineError::Exhausted { .. }) => {
                // No repeat would read it.
                let how = StoredRequest::released(lock_ref.seq, false);
                self.ended(&lock_ref, &live, &how).await?;
                return Err(error);
            }
            Err(error) => return Err(error),
        };
        Ok(AcquiredRow {
            lock_ref,
            held,
            columns,
            retries,
        })
    }

    /// The data columns of a row.
    async fn data(&self, id: &KeyId) -> Result<Vec<(String, Bytes)>, EngineError> {
        let mut cells = self.parts.acknowledged(id, &Columns::all()).await?;
        cells.retain(|cell| self.names.is_data(&cell.column));
        let max = self.parts.limits.message_bytes_max;
        if cells.iter().map(StoredCell::bytes).sum::<usize>() > max {
            return Err(EngineError::Exhausted {
                what: "message_bytes_max",
                limit: max as u64,
            });
        }
        Ok(cells
            .into_iter()
            .map(|cell| (cell.column, cell.value))
            .collect())
    }

    /// The state of a lockRef together with these columns, and the timestamp of a change of them that follows. Only for a holder.
    pub(super) async fn before_change(
        &self,
        lock_ref: &LockRef,
        columns: &[String],
    ) -> Result<(Live, u64), EngineError> {
        let found = self.find(lock_ref, columns).await?;
        let live = found
            .live
            .ok_or(EngineError::Ended(EndedAs::NoLongerKept))?;
        self.may_use_value(&live)?;
        let before = found
            .cells
            .iter()
            .filter(|cell| columns.contains(&cell.column));
        let above = before.map(|cell| cell.timestamp + 1);
        let timestamp = above.fold(live.following(), u64::max);
        match timestamp <= live.note.promised_us {
            true => Ok((live, timestamp)),
            false => Err(EngineError::Unavailable(
                "a column of this row was written under a clock that is ahead".to_owned(),
            )),
        }
    }

    /// Releases a row together with changes of its data. Answers whether it had been released so before.
    pub async fn release_row(
        &self,
        lock_ref: &LockRef,
        changes: Vec<CellChange>,
    ) -> Result<bool, EngineError> {
        let id = lock_ref.key_id();
        let live = match self.found(lock_ref).await {
            Err(EngineError::Ended(EndedAs::Released)) => {
                return self.released_before(lock_ref, changes).await;
            }
            live => live?,
        };
        let how = StoredRequest::released(lock_ref.seq, !changes.is_empty());
        if changes.is_empty() {
            return self.ended(lock_ref, &live, &how).await.map(|()| false);
        }
        let columns = changes.iter().map(|change| change.column().to_owned());
        let columns: Vec<String> = columns.collect();
        let (live, timestamp) = self.before_change(lock_ref, &columns).await?;
        let mut all = vec![
            self.ended_note(lock_ref, &live, &how),
            delete(self.names.lock(lock_ref.tag)),
            self.last_change(&live),
        ];
        all.extend(self.names.second(&live.note).map(delete));
        all.extend(changes);
        self.changed(lock_ref, &live, &all, timestamp).await?;
        // Its client knows that it was released: a failure leaves at most what a renewal wrote late.
        if let Err(error) = self.removed(lock_ref, &live, None).await {
            tracing::debug!(%id, %error, "a lock column may stay until its end");
        }
        Ok(false)
    }

    /// Writes changes of data for a holder, which was read before. Late ones are not acknowledged: others may have the row.
    pub(super) async fn changed(
        &self,
        lock_ref: &LockRef,
        live: &Live,
        changes: &[CellChange],
        timestamp: u64,
    ) -> Result<(), EngineError> {
        let id = lock_ref.key_id();
        let written = self.parts.write_out(&id, changes, timestamp).await;
        written.map_err(|error| EngineError::WriteUnknown(error.to_string()))?;
        match self.parts.clock.boot().saturating_sub(live.read_at) < live.left {
            true => Ok(()),
            false => Err(EngineError::WriteUnknown(
                "it was written at the end of the lock".to_owned(),
            )),
        }
    }

    /// The answer to a release of a lockRef that was released before.
    async fn released_before(
        &self,
        lock_ref: &LockRef,
        changes: Vec<CellChange>,
    ) -> Result<bool, EngineError> {
        let id = lock_ref.key_id();
        let ended = self.names.note(lock_ref.tag, NoteKind::Ended);
        let note = self.parts.read_one(&id, &ended).await?;
        let request = note
            .as_ref()
            .map(|cell| StoredRequest::decoded(&cell.value));
        let had_put = request
            .transpose()?
            .is_some_and(|request| request.had_put());
        match note {
            _ if changes.is_empty() => Ok(true),
            Some(note) if had_put => {
                // A read may have brought the note alone to a majority.
                let written = self.parts.write_out(&id, &changes, note.timestamp).await;
                let unknown = |error: EngineError| EngineError::WriteUnknown(error.to_string());
                written.map(|()| true).map_err(unknown)
            }
            Some(_) | None => Err(EngineError::Ended(EndedAs::Released)),
        }
    }

    /// Sees that a lockRef holds its row, alone. Answers the rest of its life.
    pub async fn verify_row(
        &self,
        lock_ref: &LockRef,
        fail_on_stale: bool,
    ) -> Result<Duration, EngineError> {
        let live = self.found(lock_ref).await?;
        if !live.is_held() {
            return Err(EngineError::RowBusy { retries: 0 });
        }
        let others = self
            .read_lock_columns(&lock_ref.key_id())
            .await?
            .into_iter();
        let is_other =
            |(other, _): &(LockColumn, bool)| other.tag != Some(lock_ref.tag) && !other.is_attempt;
        let mut others = others.filter(is_other);
        match others.next() {
            Some((_, false)) => Err(EngineError::RowBusy { retries: 0 }),
            Some((other, true)) if fail_on_stale => Err(EngineError::StaleLock {
                column: other.column,
            }),
            Some(_) | None => Ok(live.left),
        }
    }

    /// The lock columns of a row, and whether each is stale.
    pub async fn read_lock_columns(
        &self,
        id: &KeyId,
    ) -> Result<Vec<(LockColumn, bool)>, EngineError> {
        let (columns, _) = self.noted_columns(id).await?;
        let now_us = self.parts.clock.wall_us();
        let judged = columns.into_iter().map(|column| {
            let is_stale = column.is_stale(now_us);
            (column, is_stale)
        });
        Ok(judged.collect())
    }

    /// Removes the stale lock columns of a row. Answers them.
    pub async fn release_expired(&self, id: &KeyId) -> Result<Vec<LockColumn>, EngineError> {
        let columns = self.read_lock_columns(id).await?.into_iter();
        let stale = columns.filter_map(|(column, is_stale)| is_stale.then_some(column));
        let stale: Vec<LockColumn> = stale.collect();
        // Of a lock with two columns one is shown.
        let mut columns = self.lock_columns(id).await?;
        let now_us = self.parts.clock.wall_us();
        columns.retain(|column| column.is_stale(now_us));
        self.remove_stale(id, &columns).await?;
        Ok(stale)
    }

    /// Removes all lock columns of a row but those of tries, which end soon: an operator ends their locks. Answers them, and
    /// whether each was stale.
    pub async fn release_all(
        &self,
        id: &KeyId,
        by: &str,
        why: &str,
    ) -> Result<Vec<(LockColumn, bool)>, EngineError> {
        let mut columns = self.read_lock_columns(id).await?;
        // A try that has read the row may hold it at any moment: others must see it.
        columns.retain(|(column, _)| !column.is_attempt);
        for (column, _) in &columns {
            let mut names = vec![column.column.clone()];
            if let Some(tag) = column.tag {
                let lock_ref = lock_ref(id, seq_of(tag), tag);
                match self.found(&lock_ref).await {
                    Ok(live) => {
                        let how = StoredRequest::forced(lock_ref.seq, by, why);
                        self.ended(&lock_ref, &live, &how).await?;
                        continue;
                    }
                    Err(EngineError::Ended(_)) => names.push(self.names.lock(tag)),
                    Err(error) => return Err(error),
                }
            }
            // Of another program, or of a lockRef that has ended.
            let removes: Vec<CellChange> = names.into_iter().map(delete).collect();
            let timestamp = self.parts.timestamp_after(column.timestamp);
            self.parts.write_out(id, &removes, timestamp).await?;
        }
        Ok(columns)
    }
}
