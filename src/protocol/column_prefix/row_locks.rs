//! The calls on rows that LockService does not have.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::rules::{LockColumn, seq_of};
use super::{ColumnPrefix, Live, Place, Tried, Try};
use crate::engine::{CreateCall, EngineError};
use crate::lock::{EndedAs, KeyId, LockRef, Tag};
use crate::protocol::entry::{StoredEntry, StoredRequest};
use crate::protocol::queue::lock_ref;
use crate::store::{CellChange, Columns};

/// A lock on a row that is asked for.
#[derive(Clone, Debug)]
pub struct AcquireRow {
    /// The row, and the client.
    pub call: CreateCall,
    /// The TTL of the lock, in milliseconds.
    pub ttl_ms: u32,
    /// The TTL of its column, in milliseconds; 0: that of the lock.
    pub column_ttl_ms: u32,
    /// Its id, which no two locks have at once; by default one of its own.
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
    /// The pause before the first one, and before all unless it grows.
    pub pause: Duration,
    /// The pause doubles up to this, and is random between its half and its whole; `None`: it stays.
    pub pause_max: Option<Duration>,
}

/// A lock on a row that is held.
#[derive(Clone, Debug)]
pub struct AcquiredRow {
    /// Its lockRef.
    pub lock_ref: LockRef,
    /// The rest of its life.
    pub valid_for: Duration,
    /// The data columns with their values, if they were asked for.
    pub columns: Vec<(String, bytes::Bytes)>,
    /// The tries after the first one.
    pub retries: u32,
}

impl Backoff {
    /// The pause before a retry. `random` is below its argument.
    fn pause(&self, retry: u32, random: impl FnOnce(u64) -> u64) -> Duration {
        let Some(longest) = self.pause_max else {
            return self.pause;
        };
        let whole = self.pause.saturating_mul(1 << retry.min(20)).min(longest);
        let half = u64::try_from(whole.as_micros() / 2).unwrap_or(u64::MAX);
        whole - Duration::from_micros(random(half.max(1)))
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
        let now_ms = self.parts.clock.wall_ms();
        let entry = StoredEntry {
            column_ttl_ms: ask.column_ttl_ms,
            ..StoredEntry::new(&ask.call, ask.ttl_ms, now_ms)
        };
        let once = Try {
            lock_id: ask.lock_id.clone(),
            fail_on_stale: ask.fail_on_stale,
            reads_row: ask.reads_row,
            ..Try::new(id.clone(), tag, entry)
        };
        let mut retries = 0;
        let (live, cells) = loop {
            match self.tried(once.clone()).await? {
                Tried::Holds(live, cells) => break (live, cells),
                Tried::Held(live) => {
                    let cells = match ask.reads_row {
                        true => self.read(id, &Columns::all()).await?,
                        false => Vec::new(),
                    };
                    break (live, cells);
                }
                Tried::Busy(_) => {}
            }
            let pause = ask
                .backoff
                .pause(retries, |below| self.parts.ids.below(below));
            if retries >= ask.backoff.retries || Instant::now() + pause >= until {
                return Err(EngineError::RowBusy { retries });
            }
            sleep(pause).await;
            retries += 1;
        };
        let data = cells.into_iter().filter(|_| ask.reads_row);
        let data = data.filter(|cell| self.names.is_data(&cell.column));
        Ok(AcquiredRow {
            lock_ref: lock_ref(id, seq_of(tag), tag),
            valid_for: live.left,
            columns: data.map(|cell| (cell.column, cell.value)).collect(),
            retries,
        })
    }

    /// Releases a row together with changes of its data. Answers whether it had been released so before.
    pub async fn release_row(
        &self,
        lock_ref: &LockRef,
        changes: Vec<CellChange>,
    ) -> Result<bool, EngineError> {
        use super::Queueing as _;
        let has_put = !changes.is_empty();
        let live = match self.live(lock_ref).await {
            Err(EngineError::Ended(EndedAs::Released)) => {
                let request = self.request(lock_ref).await?;
                return match !has_put || request.is_some_and(|request| request.had_put()) {
                    true => Ok(true),
                    false => Err(EngineError::Ended(EndedAs::Released)),
                };
            }
            live => live?,
        };
        let mut written = live.timestamp;
        if has_put {
            self.may_use_value(&live)?;
            let names = changes.iter().map(|change| change.column().to_owned());
            let columns = Columns::Named(names.collect());
            let before = self.read(&lock_ref.key_id(), &columns).await?;
            let before = before.into_iter().map(|cell| cell.timestamp);
            written = before.fold(written, u64::max);
        }
        let live = Live {
            timestamp: written,
            ..live
        };
        let how = StoredRequest::released(lock_ref.seq, has_put);
        match self.end_with(lock_ref, &live, &how, changes).await {
            Err(EngineError::Unavailable(why)) if has_put => Err(EngineError::WriteUnknown(why)),
            ended => ended.map(|()| false),
        }
    }

    /// Sees that a lockRef holds its row, alone. Answers the rest of its life.
    pub async fn verify_row(
        &self,
        lock_ref: &LockRef,
        fail_on_stale: bool,
    ) -> Result<Duration, EngineError> {
        use super::Queueing as _;
        let live = self.live(lock_ref).await?;
        let Place::Row(own) = &live.place else {
            return Err(EngineError::RowBusy { retries: 0 });
        };
        let now_us = self.parts.clock.wall_us();
        let mut others = self.lock_columns(&lock_ref.key_id()).await?;
        others.retain(|other| other.column != *own && !other.is_attempt);
        match others.into_iter().next() {
            None => Ok(live.left),
            Some(other) if !other.is_stale(now_us) => Err(EngineError::RowBusy { retries: 0 }),
            Some(other) if fail_on_stale => Err(EngineError::StaleLock {
                column: other.column,
            }),
            Some(_) => Ok(live.left),
        }
    }

    /// The lock columns of a row, and whether each is stale.
    pub async fn read_lock_columns(
        &self,
        id: &KeyId,
    ) -> Result<Vec<(LockColumn, bool)>, EngineError> {
        let now_us = self.parts.clock.wall_us();
        let columns = self.lock_columns(id).await?.into_iter();
        let judged = columns.map(|column| {
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
        self.remove_stale(id, &stale).await;
        Ok(stale)
    }

    /// Removes all lock columns of a row but those of tries, which end soon: an operator ends their locks. Answers them.
    pub async fn release_all(
        &self,
        id: &KeyId,
        by: &str,
        why: &str,
    ) -> Result<Vec<LockColumn>, EngineError> {
        let mut columns = self.lock_columns(id).await?;
        // A try that has read the row may hold it at any moment: others must see it.
        columns.retain(|column| !column.is_attempt);
        for column in &columns {
            let tag = column.entry.as_ref().and_then(StoredEntry::tag);
            self.force(id, column, tag, (by, why)).await?;
        }
        Ok(columns)
    }

    async fn force(
        &self,
        id: &KeyId,
        column: &LockColumn,
        tag: Option<Tag>,
        (by, why): (&str, &str),
    ) -> Result<(), EngineError> {
        let live = Live {
            place: Place::Row(column.column.clone()),
            entry: column.entry.clone().unwrap_or_default(),
            timestamp: column.timestamp,
            left: Duration::ZERO,
            read_at: Duration::ZERO,
        };
        match tag {
            Some(tag) => {
                let lock_ref = lock_ref(id, seq_of(tag), tag);
                let how = StoredRequest::forced(lock_ref.seq, by, why);
                self.end_with(&lock_ref, &live, &how, Vec::new()).await
            }
            // Of another program.
            None => {
                let removes = [super::delete(column.column.clone())];
                let timestamp = self.parts.timestamp_after(column.timestamp);
                self.parts.write_out(id, &removes, timestamp).await
            }
        }
    }
}
