//! The guarded value: synced, read and written.

use std::time::Duration;

use bytes::Bytes;

use super::entries::Live;
use super::rules::{
    GUARD, Guard, VALUE, WRITTEN, entry_column, intent_column, is_intent_of, numbered_timestamp,
    unnumbered_timestamp, value_and_intents,
};
use super::{Music, REQUEST_KEPT, TRIES_MAX, too_many_tries};
use crate::engine::{EngineError, LockStatus, Mutation, Value};
use crate::lock::{Fence, KeyId, LockRef, Seq};
use crate::protocol::cells::{cell, delete, put, unavailable};
use crate::protocol::entry::StoredEntry;
use crate::protocol::value::{value_cell, value_in};
use crate::store::{CellSwap, Columns, Currency, Swap, Written};

impl Music {
    /// Rewrites the value for a new first entry whose predecessor left writes in doubt: what it reads from then on stays.
    pub(super) async fn sync(
        &self,
        id: &KeyId,
        seq: Seq,
        mut guard_cell: Option<Bytes>,
    ) -> Result<(), EngineError> {
        for _ in 0..TRIES_MAX {
            let guard = Guard::of(guard_cell.as_ref())?;
            if guard.passed >= seq.0 || !guard.needs_sync(seq) {
                return Ok(());
            }
            let begun = guard.sync_begun(seq)?;
            if let Some(met) = self.swap_guard(id, guard_cell.clone(), begun).await? {
                guard_cell = met;
                continue;
            }
            let names = Columns::Named(vec![VALUE.to_owned()]);
            let value = self.cells_of(id, &names, Currency::Acknowledged).await?;
            let value = cell(&value, VALUE).map(|cell| cell.value.clone());
            let value = value.unwrap_or_else(|| value_cell(&Mutation::Delete));
            let rewrite = [put(VALUE, value, None)];
            match self
                .cells()?
                .write_cells(id, &rewrite, begun.sync_timestamp())
                .await
            {
                Written::Done => {}
                Written::Unknown(error) | Written::NotStarted(error) => {
                    return Err(unavailable(&error));
                }
            }
            match self
                .swap_guard(id, Some(begun.encoded()), begun.synced(seq))
                .await?
            {
                None => return Ok(()),
                Some(met) => guard_cell = met,
            }
        }
        Err(too_many_tries())
    }

    /// Swaps the guard alone. Answers the cell of another guard that it met.
    pub(super) async fn swap_guard(
        &self,
        id: &KeyId,
        expected: Option<Bytes>,
        next: Guard,
    ) -> Result<Option<Option<Bytes>>, EngineError> {
        let swap = CellSwap {
            expected,
            first: put(GUARD, next.encoded(), None),
            others: Vec::new(),
        };
        match self.cells()?.swap_cells(id, &swap).await {
            Swap::Applied => Ok(None),
            Swap::Conflict(met) => Ok(Some(met)),
            Swap::NotStarted(error) => Err(unavailable(&error)),
            Swap::Unknown(_) => {
                let names = Columns::Named(vec![GUARD.to_owned()]);
                let cells = self.cells_of(id, &names, Currency::Settled).await?;
                Ok(Some(cell(&cells, GUARD).map(|cell| cell.value.clone())))
            }
        }
    }

    /// Whether an entry holds the key, and how many are ahead of it. The value is synced before the first `Held`.
    pub(super) async fn status(
        &self,
        id: &KeyId,
        seq: Seq,
        guard: &Guard,
        read_value: bool,
    ) -> Result<LockStatus, EngineError> {
        let position = self.ahead(id, guard, seq).await?;
        if position > 0 {
            return Ok(LockStatus::Waiting { position });
        }
        if guard.needs_sync(seq) {
            self.sync(id, seq, Some(guard.encoded())).await?;
        }
        let value = match read_value {
            true => Some(self.value(id).await?),
            false => None,
        };
        let grant = Fence(seq.0);
        Ok(LockStatus::Held { grant, value })
    }

    pub(super) async fn value(&self, id: &KeyId) -> Result<Value, EngineError> {
        let names = Columns::Named(vec![VALUE.to_owned()]);
        let cells = self.cells_of(id, &names, Currency::Acknowledged).await?;
        Ok(value_in(cell(&cells, VALUE).map(|cell| &cell.value)))
    }

    /// The timestamp of the next write of a holder. Without a call_no the store counts.
    pub(super) async fn timestamp(
        &self,
        lock_ref: &LockRef,
        live: &mut Live,
        call_no: u64,
    ) -> Result<u64, EngineError> {
        let id = lock_ref.key_id();
        if call_no > 0 {
            return numbered_timestamp(lock_ref.seq, call_no);
        }
        for _ in 0..TRIES_MAX {
            let timestamp = unnumbered_timestamp(lock_ref.seq, live.entry.unnumbered_writes)?;
            let counted = StoredEntry {
                unnumbered_writes: live.entry.unnumbered_writes + 1,
                ..live.entry.clone()
            };
            let ttl = live.entry.ttl();
            let swap = CellSwap {
                expected: Some(live.entry_cell.clone()),
                first: put(entry_column(lock_ref.seq), counted.encoded(), Some(ttl)),
                others: Vec::new(),
            };
            let currency = match self.cells()?.swap_cells(&id, &swap).await {
                Swap::Applied => {
                    live.left = ttl;
                    return Ok(timestamp);
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

    /// Writes the value under a timestamp. The intent is written before: while it is there the write is in doubt.
    pub(super) async fn write(
        &self,
        id: &KeyId,
        value: Bytes,
        timestamp: u64,
        ttl: Duration,
    ) -> Result<(), EngineError> {
        let intent = [put(
            intent_column(timestamp),
            Bytes::new(),
            Some(ttl + REQUEST_KEPT),
        )];
        match self.cells()?.write_cells(id, &intent, timestamp).await {
            Written::Done => {}
            Written::Unknown(error) | Written::NotStarted(error) => {
                return Err(unavailable(&error));
            }
        }
        let changes = [
            put(VALUE, value, None),
            put(WRITTEN, Bytes::new(), None),
            delete(intent_column(timestamp)),
        ];
        match self.cells()?.write_cells(id, &changes, timestamp).await {
            Written::Done => Ok(()),
            Written::Unknown(error) => Err(EngineError::WriteUnknown(error.to_string())),
            Written::NotStarted(error) => Err(unavailable(&error)),
        }
    }

    /// Whether no write of this holder is in doubt.
    pub(super) async fn is_settled(&self, id: &KeyId, seq: Seq) -> Result<bool, EngineError> {
        let cells = self
            .cells_of(id, &value_and_intents(), Currency::Acknowledged)
            .await?;
        Ok(!cells.iter().any(|cell| is_intent_of(&cell.column, seq)))
    }
}
