//! Lamport's bakery: reads and writes by a majority, and no lightweight transaction.
//!
//! The rules are in [`rules`]. There is no fence: a holder whose TTL has passed may still write.

mod rules;

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use tokio::time::sleep;

use self::rules::{
    CHOOSING_TTL, CONTENDERS, FLOOR, LAST, choosing, choosing_column, contenders, floor, next_seq,
    number_column, numbers, seq_cell,
};
use super::ProtocolKind;
use super::cells::{cell, delete, put};
use super::entry::{StoredEntry, StoredRequest, request_column, request_ttl};
use super::leaderless::{Parts, ProtocolOptions};
use super::queue::{LiveEntry, Queue, Queueing};
use super::value::{VALUE, value_cell};
use crate::engine::{CreateCall, EngineError, LockStatus, Mutation, Value};
use crate::lock::{EndedAs, Fence, KeyId, LockRef, Seq};
use crate::store::StoredCell;

/// The pause between two reads while others choose.
const CHOICE_PAUSE: Duration = Duration::from_millis(5);

/// The lead of an end over the clock, in microseconds: more than the clocks of replicas differ. So no renewal undoes it.
const END_AHEAD_US: u64 = 3_600_000_000;

/// The protocol. Cheap to clone.
#[derive(Clone)]
pub struct Bakery {
    parts: Parts,
    options: ProtocolOptions,
}

/// A live entry.
pub struct Live {
    entry: StoredEntry,
    /// The number of entries ahead.
    position: usize,
    left: Duration,
    /// When its cell was written, in microseconds.
    timestamp: u64,
    floor: u64,
}

impl LiveEntry for Live {
    fn entry(&self) -> &StoredEntry {
        &self.entry
    }

    fn left(&self) -> Duration {
        self.left
    }
}

impl Bakery {
    pub fn new(parts: Parts, options: ProtocolOptions) -> Bakery {
        Bakery { parts, options }
    }

    /// The entry among these cells; else why it is not there.
    async fn seen(&self, lock_ref: &LockRef, cells: &[StoredCell]) -> Result<Live, EngineError> {
        let (seq, tag) = (lock_ref.seq, lock_ref.tag);
        let queue = rules::queue(cells)?;
        let is_own =
            |entry: &&super::queue::QueueEntry| entry.seq == seq && entry.entry.tag() == Some(tag);
        let ahead = queue
            .entries
            .iter()
            .take_while(|entry| !is_own(entry))
            .count();
        // Below the floor it has ended, whatever a late renewal shows.
        let own = queue.entries.iter().find(is_own);
        let own = own.filter(|own| own.seq.0 >= floor(cells));
        if let (Some(own), Some(cell)) = (own, cell(cells, &number_column(tag, seq))) {
            return Ok(Live {
                entry: own.entry.clone(),
                position: ahead,
                left: own.left,
                timestamp: cell.timestamp,
                floor: floor(cells),
            });
        }
        match self.parts.request(&lock_ref.key_id(), tag).await? {
            Some(request) if request.seq == seq.0 => Err(EngineError::Ended(request.ended_as())),
            _ if queue.entries.iter().any(|entry| entry.seq == seq) => {
                Err(EngineError::NeverIssued)
            }
            _ => Err(EngineError::Ended(EndedAs::NoLongerKept)),
        }
    }

    /// Takes a number that is above all others that are seen.
    async fn choose(&self, call: &CreateCall, mut entry: StoredEntry) -> Result<Seq, EngineError> {
        let id = &call.id;
        loop {
            let contender = self.parts.ids.below(CONTENDERS);
            let flag = choosing_column(call.tag, contender);
            let began = self.parts.clock.boot();
            let timestamp = self.parts.timestamp_after(0);
            let flag_up = put(flag.clone(), Bytes::new(), Some(CHOOSING_TTL));
            self.parts.write_out(id, &[flag_up], timestamp).await?;
            let chosen = match self.parts.acknowledged(id, &contenders()).await {
                Ok(cells) if cells.len() > self.parts.limits.entries_per_key_max => {
                    Err(EngineError::Exhausted {
                        what: "entries_per_key_max",
                        limit: self.parts.limits.entries_per_key_max as u64,
                    })
                }
                Ok(cells) => next_seq(&cells, contender),
                Err(error) => Err(error),
            };
            let seq = match chosen {
                Ok(seq) => seq,
                Err(error) => {
                    self.parts
                        .write_out(id, &[delete(flag)], timestamp + 1)
                        .await?;
                    return Err(error);
                }
            };
            entry.seq = seq.0;
            // Stays when the number is gone.
            let taken = put(LAST, seq_cell(seq), None);
            self.parts.write_out(id, &[taken], seq.0).await?;
            let number = number_column(call.tag, seq);
            let changes = [
                put(number.clone(), entry.encoded(), Some(entry.ttl())),
                delete(flag),
            ];
            self.parts.write_out(id, &changes, timestamp + 1).await?;
            if self.parts.clock.boot().saturating_sub(began) < CHOOSING_TTL {
                // Only now a repeat of the call may find it.
                let request = StoredRequest::live(seq).encoded();
                let kept = Some(request_ttl(entry.ttl()));
                let request = put(request_column(call.tag), request, kept);
                self.parts.write_out(id, &[request], timestamp + 1).await?;
                return Ok(seq);
            }
            // Its flag may have ended before its number was seen.
            let end = self.parts.timestamp_after(0) + END_AHEAD_US;
            self.parts.write_out(id, &[delete(number)], end).await?;
        }
    }

    /// Waits for all that choose now: each of them may get a number that is not higher.
    async fn until_chosen(&self, lock_ref: &LockRef) -> Result<Live, EngineError> {
        let id = lock_ref.key_id();
        let mut waited_for: Option<Vec<String>> = None;
        loop {
            let cells = self.parts.acknowledged(&id, &contenders()).await?;
            let mut flags = choosing(&cells);
            if let Some(before) = &waited_for {
                flags.retain(|flag| before.contains(flag));
            }
            if flags.is_empty() {
                return self.seen(lock_ref, &cells).await;
            }
            waited_for = Some(flags);
            sleep(CHOICE_PAUSE).await;
        }
    }

    /// Fails unless the entry holds the key, and values may be guarded without a fence.
    fn may_use_value(&self, lock_ref: &LockRef, live: &Live) -> Result<(), EngineError> {
        self.may_guard()?;
        match live.position == 0 && live.floor == lock_ref.seq.0 {
            true => Ok(()),
            false => Err(EngineError::NoGrant),
        }
    }
}

#[async_trait]
impl Queueing for Bakery {
    const KIND: ProtocolKind = ProtocolKind::Bakery;
    type Live = Live;

    fn may_guard(&self) -> Result<(), EngineError> {
        self.options.may_guard()
    }

    fn parts(&self) -> &Parts {
        &self.parts
    }

    async fn queue(&self, id: &KeyId) -> Result<Queue, EngineError> {
        rules::queue(&self.parts.acknowledged(id, &numbers()).await?)
    }

    async fn enter(
        &self,
        call: &CreateCall,
        entry: StoredEntry,
    ) -> Result<(Seq, Live, bool), EngineError> {
        let request = self.parts.request(&call.id, call.tag).await?;
        let existed = request.is_some();
        let seq = match request {
            Some(request) => Seq(request.seq),
            None => self.choose(call, entry).await?,
        };
        let lock_ref = super::queue::lock_ref(&call.id, seq, call.tag);
        let mut live = self.until_chosen(&lock_ref).await?;
        if existed {
            // As in a renewal.
            live = self.live(&lock_ref).await?;
        }
        Ok((seq, live, existed))
    }

    async fn live(&self, lock_ref: &LockRef) -> Result<Live, EngineError> {
        let cells = self
            .parts
            .acknowledged(&lock_ref.key_id(), &numbers())
            .await?;
        self.seen(lock_ref, &cells).await
    }

    /// Reads the entry again in any case: the first read brought it to a majority, so from then on nobody passes it unseen.
    async fn renew(&self, lock_ref: &LockRef, live: &mut Live) -> Result<(), EngineError> {
        let (id, ttl) = (lock_ref.key_id(), live.entry.ttl());
        if live.left <= ttl * 3 / 4 {
            let request = StoredRequest::live(lock_ref.seq).encoded();
            let changes = [
                put(
                    number_column(lock_ref.tag, lock_ref.seq),
                    live.entry.encoded(),
                    Some(ttl),
                ),
                put(
                    request_column(lock_ref.tag),
                    request,
                    Some(request_ttl(ttl)),
                ),
            ];
            self.parts
                .write_out(&id, &changes, self.parts.timestamp_after(live.timestamp))
                .await?;
        }
        *live = self.live(lock_ref).await?;
        Ok(())
    }

    /// A new holder raises the floor before it is told so, and looks again. A number below it that lives by then may have been told the
    /// same before, so it waits for its end.
    async fn status(&self, lock_ref: &LockRef, live: &mut Live) -> Result<LockStatus, EngineError> {
        let held = LockStatus::Held {
            grant: Fence::NONE,
            value: None,
        };
        let waiting = |position| LockStatus::Waiting { position };
        match live.position {
            0 if live.floor == lock_ref.seq.0 => return Ok(held),
            0 => {}
            position => return Ok(waiting(position)),
        }
        let id = lock_ref.key_id();
        let raised = put(FLOOR, seq_cell(lock_ref.seq), None);
        self.parts.write_out(&id, &[raised], lock_ref.seq.0).await?;
        *live = self.live(lock_ref).await?;
        match live.position {
            0 => Ok(held),
            position => Ok(waiting(position)),
        }
    }

    async fn end(
        &self,
        lock_ref: &LockRef,
        live: Live,
        how: StoredRequest,
    ) -> Result<bool, EngineError> {
        self.remove(lock_ref, live.entry.ttl(), how).await?;
        Ok(live.position == 0)
    }

    async fn get(
        &self,
        lock_ref: &LockRef,
        live: &mut Live,
        _call_no: u64,
    ) -> Result<Value, EngineError> {
        self.may_use_value(lock_ref, live)?;
        self.parts.value(&lock_ref.key_id()).await
    }

    async fn write(
        &self,
        lock_ref: &LockRef,
        live: &mut Live,
        mutation: &Mutation,
        _call_no: u64,
        _is_release: bool,
    ) -> Result<(), EngineError> {
        self.may_use_value(lock_ref, live)?;
        let id = lock_ref.key_id();
        let before = self.parts.read_one(&id, VALUE).await?;
        let timestamp = self
            .parts
            .timestamp_after(before.map_or(0, |cell| cell.timestamp));
        let value = put(VALUE, value_cell(mutation), None);
        self.parts.write_one(&id, value, timestamp).await
    }
}

impl Bakery {
    /// Ends an entry, and records how.
    async fn remove(
        &self,
        lock_ref: &LockRef,
        ttl: Duration,
        how: StoredRequest,
    ) -> Result<(), EngineError> {
        let changes = [
            delete(number_column(lock_ref.tag, lock_ref.seq)),
            put(
                request_column(lock_ref.tag),
                how.encoded(),
                Some(request_ttl(ttl)),
            ),
        ];
        let timestamp = self.parts.timestamp_after(0) + END_AHEAD_US;
        self.parts
            .write_out(&lock_ref.key_id(), &changes, timestamp)
            .await
    }
}
