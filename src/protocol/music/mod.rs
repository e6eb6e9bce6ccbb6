//! MUSIC on lightweight transactions: a queue a key, in the store, with the guarded value.
//!
//! A section costs two transactions, one creates the entry and one releases it, and one more for each write, renewal and take-over. The rules are in [`rules`].

mod entries;
mod rules;

use async_trait::async_trait;
use bytes::Bytes;

pub use self::entries::Music;
use self::entries::{Live, Missed, TRIES_MAX, too_many_tries};
use self::rules::{GUARD, Guard, entry_column, entry_seq, read_column};
use super::ProtocolKind;
use super::cells::{cell, put};
use super::entry::{StoredEntry, StoredRequest, request_column, request_ttl};
use super::leaderless::Parts;
use super::queue::{self, Queue, QueueEntry, Queueing};
use super::value::{VALUE, value_cell, value_in};
use crate::engine::{CreateCall, EngineError, LockStatus, Mutation, Value};
use crate::lock::{Fence, KeyId, LockRef, Seq};
use crate::store::{CellSwap, Columns, Currency};

impl Music {
    /// Notes the call_no of a read. A write with a lower one, which its client has given up, is refused from then on.
    async fn note_read(
        &self,
        lock_ref: &LockRef,
        live: &Live,
        call_no: u64,
    ) -> Result<(), EngineError> {
        let number = Bytes::copy_from_slice(&call_no.to_be_bytes());
        let kept = Some(request_ttl(live.entry.ttl()));
        let note = put(read_column(lock_ref.seq), number, kept);
        let timestamp = call_no.min(Fence::MAX);
        let noted = self
            .parts
            .write_one(&lock_ref.key_id(), note, timestamp)
            .await;
        noted.map_err(|error| EngineError::Unavailable(error.to_string()))
    }

    /// The highest call_no of a read of this holder.
    async fn last_read(&self, lock_ref: &LockRef) -> Result<u64, EngineError> {
        let column = read_column(lock_ref.seq);
        let cell = self.parts.read_one(&lock_ref.key_id(), &column).await?;
        let bytes = cell.and_then(|cell| cell.value.as_ref().try_into().ok());
        Ok(bytes.map_or(0, u64::from_be_bytes))
    }
}

/// Fails unless this entry holds the key by the grant in its lockRef.
fn holds(lock_ref: &LockRef, live: &Live) -> Result<(), EngineError> {
    let grant = lock_ref.grant.ok_or(EngineError::NoGrant)?;
    match grant.0 == lock_ref.seq.0 && live.guard.holder == lock_ref.seq.0 {
        true => Ok(()),
        false => Err(EngineError::GrantSuperseded),
    }
}

#[async_trait]
impl Queueing for Music {
    const KIND: ProtocolKind = ProtocolKind::Music;
    type Live = Live;

    fn parts(&self) -> &Parts {
        &self.parts
    }

    async fn queue(&self, id: &KeyId) -> Result<Queue, EngineError> {
        let names = Columns::Named(vec![GUARD.to_owned()]);
        let cells = self.parts.read(id, &names, Currency::Acknowledged).await?;
        let guard = Guard::of(cell(&cells, GUARD).map(|cell| &cell.value))?;
        let cells = self
            .parts
            .read(id, &guard.entries(), Currency::Acknowledged)
            .await?;
        let entries = cells.into_iter().filter_map(|cell| {
            let seq = entry_seq(&cell.column)?;
            let left = cell.left.unwrap_or_default();
            let entry = StoredEntry::decoded(&cell.value);
            Some(entry.map(|entry| QueueEntry { seq, entry, left }))
        });
        let entries = entries.collect::<Result<Vec<_>, _>>()?;
        Ok(Queue {
            is_held: !entries.is_empty(),
            next: guard.issued + 1,
            token: guard.holder.max(guard.passed),
            entries,
        })
    }

    async fn enter(
        &self,
        call: &CreateCall,
        entry: StoredEntry,
    ) -> Result<(Seq, Live, bool), EngineError> {
        let id = &call.id;
        let request_column = request_column(call.tag);
        let names = Columns::Named(vec![GUARD.to_owned(), request_column.clone()]);
        for _ in 0..TRIES_MAX {
            let cells = self.parts.read(id, &names, Currency::Settled).await?;
            if let Some(request) = cell(&cells, &request_column) {
                let seq = Seq(StoredRequest::decoded(&request.value)?.seq);
                let live = self.live(&queue::lock_ref(id, seq, call.tag)).await?;
                return Ok((seq, live, true));
            }
            let guard_cell = cell(&cells, GUARD).map(|cell| cell.value.clone());
            let guard = Guard::of(guard_cell.as_ref())?;
            let next = guard.created()?;
            let max = self.parts.limits.entries_per_key_max;
            if guard.issued - guard.passed >= max as u64
                && self
                    .parts
                    .read(id, &guard.entries(), Currency::Acknowledged)
                    .await?
                    .len()
                    >= max
            {
                return Err(EngineError::Exhausted {
                    what: "entries_per_key_max",
                    limit: max as u64,
                });
            }
            let seq = Seq(next.issued);
            let request = StoredRequest::live(seq);
            let ttl = entry.ttl();
            let swap = CellSwap {
                expected: guard_cell,
                first: put(GUARD, next.encoded(), None),
                others: vec![
                    put(entry_column(seq), entry.encoded(), Some(ttl)),
                    put(
                        request_column.clone(),
                        request.encoded(),
                        Some(request_ttl(ttl)),
                    ),
                ],
            };
            if self.swapped(id, &swap).await?.is_some() {
                continue;
            }
            let live = Live {
                guard: next,
                guard_cell: Some(next.encoded()),
                entry,
                request,
                left: ttl,
                value: None,
                is_settled: true,
            };
            return Ok((seq, live, false));
        }
        Err(too_many_tries())
    }

    async fn live(&self, lock_ref: &LockRef) -> Result<Live, EngineError> {
        self.live_at(lock_ref, false, Currency::Acknowledged).await
    }

    async fn renew(&self, lock_ref: &LockRef, live: &mut Live) -> Result<(), EngineError> {
        self.renewed(lock_ref, live).await
    }

    async fn status(&self, lock_ref: &LockRef, live: &mut Live) -> Result<LockStatus, EngineError> {
        match self.claimed(lock_ref, live).await? {
            0 => Ok(LockStatus::Held {
                grant: Fence(lock_ref.seq.0),
                value: None,
            }),
            position => Ok(LockStatus::Waiting { position }),
        }
    }

    async fn end(
        &self,
        lock_ref: &LockRef,
        live: Live,
        how: StoredRequest,
    ) -> Result<bool, EngineError> {
        self.ended(lock_ref, live, &how).await
    }

    /// A value that is in doubt is written again, under a timestamp of this holder, before it is answered.
    async fn get(
        &self,
        lock_ref: &LockRef,
        live: &mut Live,
        call_no: u64,
    ) -> Result<Value, EngineError> {
        holds(lock_ref, live)?;
        let id = lock_ref.key_id();
        if call_no > 0 {
            live.guard.takes(call_no)?;
            self.note_read(lock_ref, live, call_no).await?;
        }
        let mut currency = Currency::Acknowledged;
        for _ in 0..TRIES_MAX {
            *live = self.live_at(lock_ref, true, currency).await?;
            holds(lock_ref, live)?;
            if call_no > 0 {
                live.guard.takes(call_no)?;
            }
            let written = live.value.as_ref().map_or(0, |cell| cell.timestamp);
            if written >= live.guard.last_write {
                return Ok(value_in(live.value.as_ref().map(|cell| &cell.value)));
            }
            currency = Currency::Settled;
            if !live.is_settled {
                continue;
            }
            let guard = live.guard.writing(0)?;
            if self
                .swapped_with_renewal(lock_ref, live, guard)
                .await?
                .is_some()
            {
                continue;
            }
            // A write that was acknowledged meanwhile is among what is read now; one that was not finds that it was overtaken.
            let value = self
                .parts
                .read_one(&id, VALUE)
                .await?
                .map(|cell| cell.value);
            let value = value.unwrap_or_else(|| value_cell(&Mutation::Delete));
            let rewritten = put(VALUE, value, None);
            let rewritten = self.parts.write_one(&id, rewritten, guard.last_write).await;
            rewritten.map_err(|error| EngineError::Unavailable(error.to_string()))?;
        }
        Err(too_many_tries())
    }

    async fn write(
        &self,
        lock_ref: &LockRef,
        live: &mut Live,
        mutation: &Mutation,
        call_no: u64,
        is_release: bool,
    ) -> Result<(), EngineError> {
        holds(lock_ref, live)?;
        self.settle(lock_ref, live).await?;
        // A release may be repeated with its number. Then it writes again, and so does a call that does not know its own swap.
        let mut may_have_taken = is_release;
        for tries in 0.. {
            let guard = match may_have_taken && live.guard.has_written(call_no) {
                true => live.guard.writing(0)?,
                false => live.guard.writing(call_no)?,
            };
            let Some(missed) = self.swapped_with_renewal(lock_ref, live, guard).await? else {
                break;
            };
            may_have_taken |= missed == Missed::Unknown;
            holds(lock_ref, live)?;
            if tries >= TRIES_MAX {
                return Err(too_many_tries());
            }
        }
        if call_no > 0 {
            let last = self.last_read(lock_ref).await?;
            if last > call_no {
                let given = call_no;
                return Err(EngineError::CallNoNotAbove { given, last });
            }
        }
        let taken = live.guard.last_write;
        let value = put(VALUE, value_cell(mutation), None);
        self.parts
            .write_one(&lock_ref.key_id(), value, taken)
            .await?;
        let after = self.live_at(lock_ref, false, Currency::Acknowledged).await;
        let after = after.and_then(|after| holds(lock_ref, &after).map(|()| after));
        match after.map_err(EngineError::with_write)?.guard.last_write == taken {
            true => Ok(()),
            false => Err(EngineError::WriteUnknown(
                "another call of this lockRef came between".to_owned(),
            )),
        }
    }
}
