//! MUSIC on lightweight transactions: a queue a key, in the store, with the guarded value.
//!
//! A section costs two transactions: one creates the entry, one releases it. The rules are in [`rules`].

mod entries;
mod rules;
mod values;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::time::Instant;

use self::rules::{
    GUARD, Guard, VALUE, call_no_of, entry_column, entry_seq, is_intent_of, request_column,
    value_and_intents,
};
use super::cells::{cell, delete, put, unavailable};
use super::entry::{StoredEntry, StoredRequest};
use super::leaderless::{Leaderless, LeaderlessWatch, Parts};
use super::polls::Polls;
use super::queue::{self, Queue, QueueEntry, Queued};
use super::value::{value_cell, value_in};
use super::{LockProtocol, ProtocolKind};
use crate::engine::{
    Acquired, ClosedSession, CreateCall, CreatedLockRef, Described, Done, EngineError,
    ForceReleased, KeyFilter, LeaseId, LockStatus, Mutation, Page, Renewed, SessionCall, Value,
};
use crate::lock::{EndedAs, EntryName, Key, KeyId, LockRef, Seq, SessionId};
use crate::store::{CellChange, CellStore, CellSwap, Columns, Currency, StoredCell, Swap, Written};

/// How long the record of a request outlives its entry: for as long a client may still ask how the entry ended.
const REQUEST_KEPT: Duration = Duration::from_secs(600);
/// How often a call swaps before it gives up: each failure is the success of another call.
const TRIES_MAX: usize = 200;

/// The tables with this protocol. Cheap to clone.
#[derive(Clone)]
pub struct Music {
    parts: Parts,
    polls: Arc<Polls<Queue>>,
}

fn too_many_tries() -> EngineError {
    EngineError::Unavailable("too many calls change this key at once".to_owned())
}

impl Music {
    pub fn new(parts: Parts) -> Music {
        Music {
            parts,
            polls: Arc::default(),
        }
    }

    fn cells(&self) -> Result<&dyn CellStore, EngineError> {
        self.parts.cells()
    }

    async fn cells_of(
        &self,
        id: &KeyId,
        columns: &Columns,
        currency: Currency,
    ) -> Result<Vec<StoredCell>, EngineError> {
        let read = self.cells()?.read_cells(id, columns, currency).await;
        read.map_err(|error| unavailable(&error))
    }
}

#[async_trait]
impl LockProtocol for Music {
    async fn create(&self, call: CreateCall) -> Result<CreatedLockRef, EngineError> {
        let ttl_ms = self.kind().own_ttl(&call.live_by)?;
        let id = call.id.clone();
        let entry = StoredEntry::new(&call, ttl_ms, self.parts.clock.wall_ms());
        let request_column = request_column(call.tag);
        let names = Columns::Named(vec![GUARD.to_owned(), request_column.clone()]);
        let mut currency = Currency::Acknowledged;
        for _ in 0..TRIES_MAX {
            let cells = self.cells_of(&id, &names, currency).await?;
            if let Some(request) = cell(&cells, &request_column) {
                let seq = Seq(StoredRequest::decoded(&request.value)?.seq);
                let live = self
                    .live(&id, seq, call.tag, Currency::Acknowledged)
                    .await??;
                if let Some(field) = live.entry.differs_from(&call, ttl_ms) {
                    return Err(EngineError::RequestMismatch { field });
                }
                return self
                    .created(&call, seq, &live.guard, (live.entry.ttl(), live.left), true)
                    .await;
            }
            let guard_cell = cell(&cells, GUARD).map(|cell| cell.value.clone());
            let guard = Guard::of(guard_cell.as_ref())?;
            let next = guard.created()?;
            let max = self.parts.limits.entries_per_key_max;
            if guard.issued - guard.passed >= max as u64
                && self.cells_of(&id, &guard.entries(), currency).await?.len() >= max
            {
                return Err(EngineError::Exhausted {
                    what: "entries_per_key_max",
                    limit: max as u64,
                });
            }
            let seq = Seq(next.issued);
            let swap = CellSwap {
                expected: guard_cell,
                first: put(GUARD, next.encoded(), None),
                others: vec![
                    put(entry_column(seq), entry.encoded(), Some(entry.ttl())),
                    put(
                        request_column.clone(),
                        StoredRequest::live(seq).encoded(),
                        Some(entry.ttl() + REQUEST_KEPT),
                    ),
                ],
            };
            currency = match self.cells()?.swap_cells(&id, &swap).await {
                Swap::Applied => {
                    return self
                        .created(&call, seq, &next, (entry.ttl(), entry.ttl()), false)
                        .await;
                }
                Swap::Conflict(_) => Currency::Acknowledged,
                Swap::Unknown(_) => Currency::Settled,
                Swap::NotStarted(error) => return Err(unavailable(&error)),
            };
        }
        Err(too_many_tries())
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
        let ttl = live.entry.ttl();
        let until = Instant::now() + wait.min(self.parts.limits.wait_max()).min(ttl * 2 / 3);
        let mut status = self
            .status(&id, lock_ref.seq, &live.guard, read_value)
            .await?;
        if matches!(status, LockStatus::Waiting { .. }) && !wait.is_zero() {
            queue::until_first(self, lock_ref, until).await;
            live = self.live_of(lock_ref).await?;
            status = self
                .status(&id, lock_ref.seq, &live.guard, read_value)
                .await?;
        }
        let grant = match &status {
            LockStatus::Held { grant, .. } => Some(*grant),
            LockStatus::Waiting { .. } => None,
        };
        Ok(Acquired {
            lock_ref: LockRef {
                grant,
                ..lock_ref.clone()
            },
            status,
            valid_for: live.left,
            durable: true,
        })
    }

    async fn release(
        &self,
        lock_ref: &LockRef,
        put: Option<Mutation>,
        call_no: u64,
    ) -> Result<bool, EngineError> {
        let id = lock_ref.key_id();
        let live = match put {
            None => match self.live_of(lock_ref).await {
                Err(EngineError::Ended(EndedAs::Released)) => return Ok(true),
                live => live?,
            },
            Some(mutation) => {
                let mut live = self.holder(lock_ref).await?;
                let timestamp = self.timestamp(lock_ref, &mut live, call_no).await?;
                // Its own earlier try may have written the same.
                if live.written < timestamp {
                    let ttl = live.entry.ttl();
                    self.write(&id, value_cell(&mutation), timestamp, ttl)
                        .await?;
                }
                live
            }
        };
        let ended = StoredRequest::released(lock_ref.seq);
        match self.end(&id, lock_ref.seq, lock_ref.tag, live, ended).await {
            Err(EngineError::Ended(EndedAs::Released)) => Ok(false),
            ended => ended.map(|_| false),
        }
    }

    async fn critical_get(
        &self,
        lock_ref: &LockRef,
        call_no: u64,
    ) -> Result<Done<Value>, EngineError> {
        let id = lock_ref.key_id();
        let mut live = self.holder(lock_ref).await?;
        let cells = self
            .cells_of(&id, &value_and_intents(), Currency::Acknowledged)
            .await?;
        let value = cell(&cells, VALUE).map(|cell| cell.value.clone());
        let in_doubt = |cell: &&StoredCell| is_intent_of(&cell.column, lock_ref.seq);
        let in_doubt: Vec<CellChange> = cells
            .iter()
            .filter(in_doubt)
            .map(|cell| delete(cell.column.clone()))
            .collect();
        if !in_doubt.is_empty() {
            // A write of its own may come yet: what is answered here is written again above it.
            let timestamp = self.timestamp(lock_ref, &mut live, call_no).await?;
            let rewritten = value
                .clone()
                .unwrap_or_else(|| value_cell(&Mutation::Delete));
            self.write(&id, rewritten, timestamp, live.entry.ttl())
                .await?;
            match self.cells()?.write_cells(&id, &in_doubt, timestamp).await {
                Written::Done => {}
                Written::Unknown(error) | Written::NotStarted(error) => {
                    return Err(unavailable(&error));
                }
            }
        }
        self.renewed(lock_ref, &mut live).await?;
        Ok(Done {
            value: value_in(value.as_ref()),
            valid_for: live.left,
            durable: true,
        })
    }

    async fn critical_write(
        &self,
        lock_ref: &LockRef,
        mutation: Mutation,
        call_no: u64,
    ) -> Result<Done<()>, EngineError> {
        let id = lock_ref.key_id();
        let mut live = self.holder(lock_ref).await?;
        let timestamp = self.timestamp(lock_ref, &mut live, call_no).await?;
        if timestamp <= live.written {
            return Err(EngineError::CallNoNotAbove {
                given: call_no,
                last: call_no_of(live.written),
            });
        }
        self.write(&id, value_cell(&mutation), timestamp, live.entry.ttl())
            .await?;
        // The write is done, so a lock that cannot be renewed is not an error of this call.
        if self.renewed(lock_ref, &mut live).await.is_err() {
            live.left = Duration::ZERO;
        }
        Ok(Done {
            value: (),
            valid_for: live.left,
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
            valid_for: live.left,
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
        let entry = queue.entries.iter().find(|entry| entry.seq == name.seq);
        let Some(tag) = entry.and_then(|entry| entry.entry.tag()) else {
            return match name.seq.0 >= queue.next {
                true => Err(EngineError::NeverIssued),
                false => Ok(ForceReleased {
                    already_released: true,
                    was_holder: false,
                }),
            };
        };
        let live = self
            .live(&id, name.seq, tag, Currency::Acknowledged)
            .await?;
        let ended = StoredRequest::forced(name.seq, by, why);
        let ended = match live {
            Ok(live) => self.end(&id, name.seq, tag, live, ended).await,
            Err(ended) => Err(ended),
        };
        match ended {
            Ok(was_holder) => Ok(ForceReleased {
                already_released: false,
                was_holder,
            }),
            Err(EngineError::Ended(_)) => Ok(ForceReleased {
                already_released: true,
                was_holder: false,
            }),
            Err(error) => Err(error),
        }
    }

    async fn open_session(&self, _call: SessionCall) -> Result<Renewed, EngineError> {
        Err(EngineError::SessionEnded)
    }

    async fn close_session(&self, _session: SessionId) -> Result<ClosedSession, EngineError> {
        Err(EngineError::SessionEnded)
    }
}

impl Music {
    async fn created(
        &self,
        call: &CreateCall,
        seq: Seq,
        guard: &Guard,
        (ttl, left): (Duration, Duration),
        existed: bool,
    ) -> Result<CreatedLockRef, EngineError> {
        let status = self.status(&call.id, seq, guard, call.read_value).await?;
        let grant = match &status {
            LockStatus::Held { grant, .. } => Some(*grant),
            LockStatus::Waiting { .. } => None,
        };
        let lock_ref = LockRef {
            table: call.id.table.clone(),
            key: call.id.key.clone(),
            seq,
            tag: call.tag,
            grant,
        };
        Ok(CreatedLockRef {
            lease: LeaseId::LockRef(lock_ref.without_grant()),
            lock_ref,
            status,
            ttl,
            valid_for: left,
            durable: true,
            existed,
        })
    }
}

#[async_trait]
impl Leaderless for Music {
    fn kind(&self) -> ProtocolKind {
        ProtocolKind::Music
    }

    async fn read(&self, id: &KeyId) -> Result<Value, EngineError> {
        self.value(id).await
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

impl Queued for Music {
    fn parts(&self) -> &Parts {
        &self.parts
    }

    fn polls(&self) -> &Polls<Queue> {
        &self.polls
    }

    async fn queue(&self, id: &KeyId) -> Result<Queue, EngineError> {
        let names = Columns::Named(vec![GUARD.to_owned()]);
        let cells = self.cells_of(id, &names, Currency::Acknowledged).await?;
        let guard = Guard::of(cell(&cells, GUARD).map(|cell| &cell.value))?;
        let cells = self
            .cells_of(id, &guard.entries(), Currency::Acknowledged)
            .await?;
        let entries = cells.into_iter().filter_map(|cell| {
            let seq = entry_seq(&cell.column)?;
            let left = cell.left.unwrap_or_default();
            let entry = StoredEntry::decoded(&cell.value);
            Some(entry.map(|entry| QueueEntry { seq, entry, left }))
        });
        let entries = entries.collect::<Result<Vec<_>, _>>()?;
        let first = entries.first().map(|first| first.seq);
        Ok(Queue {
            next: guard.issued + 1,
            token: first.map_or(guard.passed, |seq| seq.0),
            unsynced: first.is_some_and(|seq| guard.needs_sync(seq)),
            entries,
        })
    }
}
