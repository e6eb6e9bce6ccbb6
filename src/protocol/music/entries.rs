//! Entries: read, renewed and ended.

use std::time::Duration;

use bytes::Bytes;

use super::rules::{GUARD, Guard, WRITTEN, entry_column, request_column};
use super::{Music, REQUEST_KEPT, TRIES_MAX, too_many_tries};
use crate::engine::EngineError;
use crate::lock::{EndedAs, KeyId, LockRef, Seq, Tag};
use crate::protocol::cells::{cell, delete, put, unavailable};
use crate::protocol::entry::{StoredEntry, StoredRequest};
use crate::store::{CellSwap, Columns, Currency, Swap};

/// A live entry, with its cells.
pub(super) struct Live {
    pub guard: Guard,
    pub guard_cell: Option<Bytes>,
    pub entry: StoredEntry,
    pub entry_cell: Bytes,
    pub request: StoredRequest,
    /// The rest of its life.
    pub left: Duration,
    /// The timestamp of its last acknowledged write, or of one before.
    pub written: u64,
}

impl Music {
    /// The entry of a lockRef, if it lives.
    pub(super) async fn live(
        &self,
        id: &KeyId,
        seq: Seq,
        tag: Tag,
        currency: Currency,
    ) -> Result<Result<Live, EngineError>, EngineError> {
        let (entry_column, request_column) = (entry_column(seq), request_column(tag));
        let names = [GUARD, WRITTEN, &entry_column, &request_column];
        let names = Columns::Named(names.map(str::to_owned).to_vec());
        let cells = self.cells_of(id, &names, currency).await?;
        let guard_cell = cell(&cells, GUARD).map(|cell| cell.value.clone());
        let guard = Guard::of(guard_cell.as_ref())?;
        let request = cell(&cells, &request_column);
        let request = request
            .map(|cell| StoredRequest::decoded(&cell.value))
            .transpose()?;
        let request = request.filter(|request| request.seq == seq.0);
        let entry = cell(&cells, &entry_column);
        let (Some(request), Some(entry)) = (&request, entry) else {
            return Ok(Err(match request {
                Some(request) => EngineError::Ended(request.ended_as()),
                // It is of another secret.
                None if entry.is_some() || seq.0 > guard.issued => EngineError::NeverIssued,
                None => EngineError::Ended(EndedAs::NoLongerKept),
            }));
        };
        Ok(Ok(Live {
            guard,
            guard_cell,
            entry: StoredEntry::decoded(&entry.value)?,
            entry_cell: entry.value.clone(),
            request: request.clone(),
            left: entry.left.unwrap_or_default(),
            written: cell(&cells, WRITTEN).map_or(0, |cell| cell.timestamp),
        }))
    }

    pub(super) async fn live_of(&self, lock_ref: &LockRef) -> Result<Live, EngineError> {
        let id = lock_ref.key_id();
        self.live(&id, lock_ref.seq, lock_ref.tag, Currency::Acknowledged)
            .await?
    }

    /// The live entry that holds the key by the grant in this lockRef.
    pub(super) async fn holder(&self, lock_ref: &LockRef) -> Result<Live, EngineError> {
        let grant = lock_ref.grant.ok_or(EngineError::NoGrant)?;
        let live = self.live_of(lock_ref).await?;
        let is_granted = grant.0 == lock_ref.seq.0 && !live.guard.needs_sync(lock_ref.seq);
        let ahead = self
            .ahead(&lock_ref.key_id(), &live.guard, lock_ref.seq)
            .await?;
        match is_granted && ahead == 0 {
            true => Ok(live),
            false => Err(EngineError::GrantSuperseded),
        }
    }

    /// The number of live entries ahead.
    pub(super) async fn ahead(
        &self,
        id: &KeyId,
        guard: &Guard,
        seq: Seq,
    ) -> Result<usize, EngineError> {
        match guard.ahead_of(seq) {
            None => Ok(0),
            Some(ahead) => Ok(self
                .cells_of(id, &ahead, Currency::Acknowledged)
                .await?
                .len()),
        }
    }

    /// Renews an entry that has lived for a quarter of its TTL, and answers the rest of its life.
    pub(super) async fn renewed(
        &self,
        lock_ref: &LockRef,
        live: &mut Live,
    ) -> Result<(), EngineError> {
        let id = lock_ref.key_id();
        for _ in 0..TRIES_MAX {
            let ttl = live.entry.ttl();
            if live.left > ttl * 3 / 4 {
                return Ok(());
            }
            let swap = CellSwap {
                expected: Some(live.entry_cell.clone()),
                first: put(
                    entry_column(lock_ref.seq),
                    live.entry_cell.clone(),
                    Some(ttl),
                ),
                others: vec![put(
                    request_column(lock_ref.tag),
                    live.request.encoded(),
                    Some(ttl + REQUEST_KEPT),
                )],
            };
            let currency = match self.cells()?.swap_cells(&id, &swap).await {
                Swap::Applied => {
                    live.left = ttl;
                    return Ok(());
                }
                Swap::Conflict(_) => Currency::Acknowledged,
                Swap::Unknown(_) => Currency::Settled,
                Swap::NotStarted(error) => return Err(unavailable(&error)),
            };
            *live = self
                .live(&id, lock_ref.seq, lock_ref.tag, currency)
                .await??;
        }
        Err(too_many_tries())
    }

    /// Ends a live entry, and records how.
    pub(super) async fn end(
        &self,
        id: &KeyId,
        seq: Seq,
        tag: Tag,
        mut live: Live,
        ended: StoredRequest,
    ) -> Result<bool, EngineError> {
        let is_release = matches!(ended.ended_as(), EndedAs::Released);
        for _ in 0..TRIES_MAX {
            let is_first = self.ahead(id, &live.guard, seq).await? == 0;
            let record = put(request_column(tag), ended.encoded(), Some(REQUEST_KEPT));
            let swap = match is_first {
                true => {
                    let is_settled = is_release && self.is_settled(id, seq).await?;
                    let next = live.guard.without_first(seq, is_settled);
                    CellSwap {
                        expected: live.guard_cell.clone(),
                        first: put(GUARD, next.encoded(), None),
                        others: vec![record, delete(entry_column(seq))],
                    }
                }
                false => CellSwap {
                    expected: Some(live.entry_cell.clone()),
                    first: delete(entry_column(seq)),
                    others: vec![record],
                },
            };
            let currency = match self.cells()?.swap_cells(id, &swap).await {
                Swap::Applied => return Ok(is_first),
                Swap::Conflict(_) => Currency::Acknowledged,
                Swap::Unknown(_) => Currency::Settled,
                Swap::NotStarted(error) => return Err(unavailable(&error)),
            };
            live = self.live(id, seq, tag, currency).await??;
        }
        Err(too_many_tries())
    }
}
