//! Lamport's bakery: reads and writes by a majority, and no lightweight transaction.
//!
//! The rules are in [`rules`]. There is no fence: a holder whose TTL has passed may still write.

mod rules;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::time::{Instant, sleep};

use self::rules::{
    CHOOSING_TTL, CONTENDERS, VALUE, choosing_column, contenders, next_seq, number_column, numbers,
    others_choosing, request_column,
};
use super::cells::{cell, delete, put, unavailable};
use super::entry::{StoredEntry, StoredRequest};
use super::leaderless::{Leaderless, LeaderlessWatch, Parts, ProtocolOptions};
use super::polls::Polls;
use super::queue::{self, Queue, Queued};
use super::value::{value_cell, value_in};
use super::{LockProtocol, ProtocolKind};
use crate::engine::{
    Acquired, ClosedSession, CreateCall, CreatedLockRef, Described, Done, EngineError,
    ForceReleased, KeyFilter, LeaseId, LockStatus, Mutation, Page, Renewed, SessionCall, Value,
};
use crate::lock::{EndedAs, EntryName, Fence, Key, KeyId, LockRef, Seq, SessionId, Tag};
use crate::store::{CellChange, Columns, Currency, StoredCell, Written};

/// How long the record of a request outlives its entry.
const REQUEST_KEPT: Duration = Duration::from_secs(600);
/// The pause between two reads while others choose.
const CHOICE_PAUSE: Duration = Duration::from_millis(5);
/// The pause before a failed write is repeated.
const WRITE_PAUSE: Duration = Duration::from_millis(20);

/// The tables with this protocol. Cheap to clone.
#[derive(Clone)]
pub struct Bakery {
    parts: Parts,
    options: ProtocolOptions,
    polls: Arc<Polls<Queue>>,
}

/// A live entry, its place, and its cell.
struct Live {
    entry: StoredEntry,
    position: usize,
    left: Duration,
    /// When its cell was written, in microseconds.
    timestamp: u64,
    /// When the read began.
    read_at: Instant,
}

impl Bakery {
    pub fn new(parts: Parts, options: ProtocolOptions) -> Bakery {
        Bakery {
            parts,
            options,
            polls: Arc::default(),
        }
    }

    async fn read_cells(
        &self,
        id: &KeyId,
        columns: &Columns,
    ) -> Result<Vec<StoredCell>, EngineError> {
        let read = self
            .parts
            .cells()?
            .read_cells(id, columns, Currency::Acknowledged)
            .await;
        read.map_err(|error| unavailable(&error))
    }

    async fn request(&self, id: &KeyId, tag: Tag) -> Result<Option<StoredRequest>, EngineError> {
        let column = request_column(tag);
        let cells = self
            .read_cells(id, &Columns::Named(vec![column.clone()]))
            .await?;
        let request = cell(&cells, &column);
        request
            .map(|cell| StoredRequest::decoded(&cell.value))
            .transpose()
    }

    /// Writes until it is acknowledged, for as long as the caller waits: a write in doubt may be repeated.
    async fn write(
        &self,
        id: &KeyId,
        changes: &[CellChange],
        timestamp: u64,
    ) -> Result<(), EngineError> {
        loop {
            match self
                .parts
                .cells()?
                .write_cells(id, changes, timestamp)
                .await
            {
                Written::Done => return Ok(()),
                Written::Unknown(error) | Written::NotStarted(error) => {
                    tracing::debug!(%id, %error, "a write failed; repeating it");
                    sleep(WRITE_PAUSE).await;
                }
            }
        }
    }

    /// A timestamp above that of an earlier write.
    fn timestamp_after(&self, before: u64) -> u64 {
        self.parts.clock.wall_us().max(before + 1)
    }

    /// Why an entry is not in the queue.
    async fn ended(&self, id: &KeyId, seq: Seq, tag: Tag, queue: &Queue) -> EngineError {
        match self.request(id, tag).await {
            Ok(Some(request)) if request.seq == seq.0 => EngineError::Ended(request.ended_as()),
            Ok(_) if queue.entries.iter().any(|entry| entry.seq == seq) => EngineError::NeverIssued,
            Ok(_) => EngineError::Ended(EndedAs::NoLongerKept),
            Err(error) => error,
        }
    }

    async fn live(&self, id: &KeyId, seq: Seq, tag: Tag) -> Result<Live, EngineError> {
        let read_at = Instant::now();
        let cells = self.read_cells(id, &numbers()).await?;
        let queue = rules::queue(&cells)?;
        let own = queue
            .entries
            .iter()
            .position(|entry| entry.seq == seq && entry.entry.tag() == Some(tag));
        let (Some(position), Some(cell)) = (own, cell(&cells, &number_column(tag, seq))) else {
            return Err(self.ended(id, seq, tag, &queue).await);
        };
        Ok(Live {
            entry: StoredEntry::decoded(&cell.value)?,
            position,
            left: cell.left.unwrap_or_default(),
            timestamp: cell.timestamp,
            read_at,
        })
    }

    async fn live_of(&self, lock_ref: &LockRef) -> Result<Live, EngineError> {
        self.live(&lock_ref.key_id(), lock_ref.seq, lock_ref.tag)
            .await
    }

    /// Renews an entry that has lived for a quarter of its TTL.
    async fn renewed(&self, lock_ref: &LockRef, live: &mut Live) -> Result<(), EngineError> {
        let ttl = live.entry.ttl();
        if live.left > ttl * 3 / 4 {
            return Ok(());
        }
        let id = lock_ref.key_id();
        let timestamp = self.timestamp_after(live.timestamp);
        let changes = [
            put(
                number_column(lock_ref.tag, lock_ref.seq),
                live.entry.encoded(),
                Some(ttl),
            ),
            put(
                request_column(lock_ref.tag),
                StoredRequest::live(lock_ref.seq).encoded(),
                Some(ttl + REQUEST_KEPT),
            ),
        ];
        let written_at = Instant::now();
        self.write(&id, &changes, timestamp).await?;
        if live.read_at.elapsed() >= live.left {
            // It may have been absent for a moment, and another contender may have passed it.
            self.remove(
                &id,
                lock_ref.seq,
                lock_ref.tag,
                timestamp,
                StoredRequest::live(lock_ref.seq),
            )
            .await?;
            return Err(EngineError::Ended(
                StoredRequest::live(lock_ref.seq).ended_as(),
            ));
        }
        live.timestamp = timestamp;
        live.left = ttl.saturating_sub(written_at.elapsed());
        Ok(())
    }

    /// Ends an entry, and records how.
    async fn remove(
        &self,
        id: &KeyId,
        seq: Seq,
        tag: Tag,
        before: u64,
        ended: StoredRequest,
    ) -> Result<(), EngineError> {
        let changes = [
            delete(number_column(tag, seq)),
            put(request_column(tag), ended.encoded(), Some(REQUEST_KEPT)),
        ];
        self.write(id, &changes, self.timestamp_after(before)).await
    }

    /// Takes a number that is above all others that are seen.
    async fn choose(
        &self,
        call: &CreateCall,
        ttl_ms: u32,
    ) -> Result<(Seq, StoredEntry), EngineError> {
        let id = &call.id;
        loop {
            let contender = self.parts.ids.below(CONTENDERS);
            let flag = choosing_column(call.tag, contender);
            let began = Instant::now();
            let timestamp = self.timestamp_after(0);
            let choosing = [put(flag.clone(), [].as_slice().into(), Some(CHOOSING_TTL))];
            self.write(id, &choosing, timestamp).await?;
            let cells = self.read_cells(id, &contenders()).await?;
            let max = self.parts.limits.entries_per_key_max;
            if cells.len() > max {
                self.write(id, &[delete(flag)], timestamp + 1).await?;
                return Err(EngineError::Exhausted {
                    what: "entries_per_key_max",
                    limit: max as u64,
                });
            }
            let seq = next_seq(&cells, contender)?;
            let mut entry = StoredEntry::new(call, ttl_ms, self.parts.clock.wall_ms());
            entry.seq = seq.0;
            let chosen = [
                put(
                    number_column(call.tag, seq),
                    entry.encoded(),
                    Some(entry.ttl()),
                ),
                put(
                    request_column(call.tag),
                    StoredRequest::live(seq).encoded(),
                    Some(entry.ttl() + REQUEST_KEPT),
                ),
                delete(flag),
            ];
            self.write(id, &chosen, timestamp + 1).await?;
            if began.elapsed() < CHOOSING_TTL {
                return Ok((seq, entry));
            }
            // Its flag may have ended before its number was seen.
            self.write(id, &[delete(number_column(call.tag, seq))], timestamp + 2)
                .await?;
        }
    }

    /// Waits for all that choose now: each of them may get a number that is not higher.
    async fn until_chosen(&self, id: &KeyId) -> Result<(), EngineError> {
        let cells = self.read_cells(id, &contenders()).await?;
        let mut choosing = others_choosing(&cells, "");
        while !choosing.is_empty() {
            sleep(CHOICE_PAUSE).await;
            let cells = self.read_cells(id, &contenders()).await?;
            choosing.retain(|flag| cell(&cells, flag).is_some());
        }
        Ok(())
    }

    async fn created(
        &self,
        call: &CreateCall,
        seq: Seq,
        existed: bool,
    ) -> Result<CreatedLockRef, EngineError> {
        self.until_chosen(&call.id).await?;
        let live = self.live(&call.id, seq, call.tag).await?;
        let lock_ref = LockRef {
            table: call.id.table.clone(),
            key: call.id.key.clone(),
            seq,
            tag: call.tag,
            grant: None,
        };
        Ok(CreatedLockRef {
            lease: LeaseId::LockRef(lock_ref.clone()),
            lock_ref,
            status: self.status(&call.id, &live, call.read_value).await?,
            ttl: live.entry.ttl(),
            valid_for: live.valid_for(),
            durable: true,
            existed,
        })
    }

    async fn status(
        &self,
        id: &KeyId,
        live: &Live,
        read_value: bool,
    ) -> Result<LockStatus, EngineError> {
        if live.position > 0 {
            let position = live.position;
            return Ok(LockStatus::Waiting { position });
        }
        let value = match read_value {
            true => Some(Leaderless::read(self, id).await?),
            false => None,
        };
        let grant = Fence::NONE;
        Ok(LockStatus::Held { grant, value })
    }

    /// The live entry of the holder, for a guarded value without a fence.
    async fn holder(&self, lock_ref: &LockRef) -> Result<Live, EngineError> {
        if !self.options.allow_unfenced {
            return Err(EngineError::NotInProtocol {
                protocol: self.kind().name(),
                what: "fence, so a value is not safe in it; to use it all the same set allow_unfenced for the table",
            });
        }
        let live = self.live_of(lock_ref).await?;
        match live.position {
            0 => Ok(live),
            _ => Err(EngineError::NoGrant),
        }
    }

    async fn put_value(&self, id: &KeyId, mutation: &Mutation) -> Result<(), EngineError> {
        let cells = self
            .read_cells(id, &Columns::Named(vec![VALUE.to_owned()]))
            .await?;
        let before = cell(&cells, VALUE).map_or(0, |cell| cell.timestamp);
        let changes = [put(VALUE, value_cell(mutation), None)];
        let written = self.parts.cells()?;
        match written
            .write_cells(id, &changes, self.timestamp_after(before))
            .await
        {
            Written::Done => Ok(()),
            Written::Unknown(error) => Err(EngineError::WriteUnknown(error.to_string())),
            Written::NotStarted(error) => Err(unavailable(&error)),
        }
    }
}

impl Live {
    fn valid_for(&self) -> Duration {
        self.left.saturating_sub(self.read_at.elapsed())
    }
}

#[async_trait]
impl LockProtocol for Bakery {
    async fn create(&self, call: CreateCall) -> Result<CreatedLockRef, EngineError> {
        let ttl_ms = self.kind().own_ttl(&call.live_by)?;
        if let Some(request) = self.request(&call.id, call.tag).await? {
            let seq = Seq(request.seq);
            let live = self.live(&call.id, seq, call.tag).await?;
            if let Some(field) = live.entry.differs_from(&call, ttl_ms) {
                return Err(EngineError::RequestMismatch { field });
            }
            return self.created(&call, seq, true).await;
        }
        let (seq, _) = self.choose(&call, ttl_ms).await?;
        self.created(&call, seq, false).await
    }

    async fn acquire(
        &self,
        lock_ref: &LockRef,
        wait: Duration,
        read_value: bool,
    ) -> Result<Acquired, EngineError> {
        let id = lock_ref.key_id();
        let mut live = self.live_of(lock_ref).await?;
        self.renewed(lock_ref, &mut live).await?;
        if live.position > 0 && !wait.is_zero() {
            let longest = self.parts.limits.wait_max().min(live.entry.ttl() * 2 / 3);
            queue::until_first(self, lock_ref, Instant::now() + wait.min(longest)).await;
            live = self.live_of(lock_ref).await?;
        }
        Ok(Acquired {
            lock_ref: lock_ref.clone(),
            status: self.status(&id, &live, read_value).await?,
            valid_for: live.valid_for(),
            durable: true,
        })
    }

    async fn release(
        &self,
        lock_ref: &LockRef,
        put: Option<Mutation>,
        _call_no: u64,
    ) -> Result<bool, EngineError> {
        let id = lock_ref.key_id();
        let live = match put {
            Some(mutation) => {
                let live = self.holder(lock_ref).await?;
                self.put_value(&id, &mutation).await?;
                live
            }
            None => match self.live_of(lock_ref).await {
                Err(EngineError::Ended(EndedAs::Released)) => return Ok(true),
                live => live?,
            },
        };
        let ended = StoredRequest::released(lock_ref.seq);
        self.remove(&id, lock_ref.seq, lock_ref.tag, live.timestamp, ended)
            .await?;
        Ok(false)
    }

    async fn critical_get(
        &self,
        lock_ref: &LockRef,
        _call_no: u64,
    ) -> Result<Done<Value>, EngineError> {
        let mut live = self.holder(lock_ref).await?;
        self.renewed(lock_ref, &mut live).await?;
        Ok(Done {
            value: Leaderless::read(self, &lock_ref.key_id()).await?,
            valid_for: live.valid_for(),
            durable: true,
        })
    }

    async fn critical_write(
        &self,
        lock_ref: &LockRef,
        mutation: Mutation,
        _call_no: u64,
    ) -> Result<Done<()>, EngineError> {
        let mut live = self.holder(lock_ref).await?;
        self.renewed(lock_ref, &mut live).await?;
        self.put_value(&lock_ref.key_id(), &mutation).await?;
        Ok(Done {
            value: (),
            valid_for: live.valid_for(),
            durable: true,
        })
    }

    async fn renew(&self, lease: &LeaseId) -> Result<Renewed, EngineError> {
        let LeaseId::LockRef(lock_ref) = lease else {
            return Err(EngineError::SessionEnded);
        };
        let mut live = self.live_of(lock_ref).await?;
        self.renewed(lock_ref, &mut live).await?;
        Ok(Renewed {
            ttl: live.entry.ttl(),
            disconnect_grace: None,
            valid_for: live.valid_for(),
            durable: true,
        })
    }

    async fn renew_on_stream(&self, lease: &LeaseId) -> Result<Renewed, EngineError> {
        self.renew(lease).await
    }

    async fn force_release(
        &self,
        name: &EntryName,
        by: &str,
        why: &str,
    ) -> Result<ForceReleased, EngineError> {
        let id = name.key_id();
        let queue = self.queue(&id).await?;
        let position = queue.entries.iter().position(|entry| entry.seq == name.seq);
        let entry = position.and_then(|position| queue.entries.get(position));
        let Some(tag) = entry.and_then(|entry| entry.entry.tag()) else {
            return Ok(ForceReleased {
                already_released: true,
                was_holder: false,
            });
        };
        let live = self.live(&id, name.seq, tag).await?;
        let ended = StoredRequest::forced(name.seq, by, why);
        self.remove(&id, name.seq, tag, live.timestamp, ended)
            .await?;
        Ok(ForceReleased {
            already_released: false,
            was_holder: live.position == 0,
        })
    }

    async fn open_session(&self, _call: SessionCall) -> Result<Renewed, EngineError> {
        Err(EngineError::SessionEnded)
    }

    async fn close_session(&self, _session: SessionId) -> Result<ClosedSession, EngineError> {
        Err(EngineError::SessionEnded)
    }
}

#[async_trait]
impl Leaderless for Bakery {
    fn kind(&self) -> ProtocolKind {
        ProtocolKind::Bakery
    }

    async fn read(&self, id: &KeyId) -> Result<Value, EngineError> {
        let cells = self
            .read_cells(id, &Columns::Named(vec![VALUE.to_owned()]))
            .await?;
        Ok(value_in(cell(&cells, VALUE).map(|cell| &cell.value)))
    }

    async fn watch(&self, lock_ref: &LockRef) -> Result<LeaderlessWatch, EngineError> {
        let mut live = self.live_of(lock_ref).await?;
        self.renewed(lock_ref, &mut live).await?;
        Ok(queue::watch(self, lock_ref))
    }

    async fn describe(&self, id: &KeyId) -> Result<Described, EngineError> {
        Ok(self.queue(id).await?.described(id))
    }

    async fn list(
        &self,
        filter: &KeyFilter,
        limit: usize,
    ) -> Result<Page<Described, Key>, EngineError> {
        queue::list(self, filter, limit).await
    }
}

impl Queued for Bakery {
    fn parts(&self) -> &Parts {
        &self.parts
    }

    fn polls(&self) -> &Polls<Queue> {
        &self.polls
    }

    async fn queue(&self, id: &KeyId) -> Result<Queue, EngineError> {
        rules::queue(&self.read_cells(id, &numbers()).await?)
    }
}
