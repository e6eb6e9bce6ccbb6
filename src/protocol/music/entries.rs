//! Entries: read, renewed and ended.

use std::time::Duration;

use bytes::Bytes;

use super::rules::{GUARD, Guard, entry_column, entry_seq};
use crate::engine::EngineError;
use crate::lock::{EndedAs, KeyId, LockRef, Seq};
use crate::protocol::cells::{cell, delete, put, unavailable};
use crate::protocol::entry::{StoredEntry, StoredRequest, request_column, request_ttl};
use crate::protocol::leaderless::Parts;
use crate::protocol::queue::LiveEntry;
use crate::protocol::value::VALUE;
use crate::store::{CellSwap, Columns, Currency, StoredCell, Swap};

/// A live entry, with its cells.
pub struct Live {
    pub guard: Guard,
    pub guard_cell: Option<Bytes>,
    pub entry: StoredEntry,
    pub request: StoredRequest,
    /// The rest of its life.
    pub left: Duration,
    /// The value, if it was read.
    pub value: Option<StoredCell>,
    /// The read settled what was in flight. A read that did not may show a part of the last transaction: the guard, and not its
    /// entry. So every swap follows a settled one.
    pub is_settled: bool,
}

impl LiveEntry for Live {
    fn entry(&self) -> &StoredEntry {
        &self.entry
    }

    fn left(&self) -> Duration {
        self.left
    }
}

/// How often a call swaps before it gives up: each failure is the success of another call.
pub(super) const TRIES_MAX: usize = 200;

/// The protocol. Cheap to clone.
#[derive(Clone)]
pub struct Music {
    pub(super) parts: Parts,
}

pub(super) fn too_many_tries() -> EngineError {
    EngineError::Unavailable("too many calls change this key at once".to_owned())
}

/// Why a swap is not known to have taken effect.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Missed {
    /// It met another guard.
    Conflict,
    /// Its outcome is unknown.
    Unknown,
}

impl Music {
    pub fn new(parts: Parts) -> Music {
        Music { parts }
    }

    /// The entry of a lockRef, if it lives, with the value if that is asked for.
    pub(super) async fn live_at(
        &self,
        lock_ref: &LockRef,
        reads_value: bool,
        mut currency: Currency,
    ) -> Result<Live, EngineError> {
        let (id, seq) = (lock_ref.key_id(), lock_ref.seq);
        let (entry_column, request_column) = (entry_column(seq), request_column(lock_ref.tag));
        let mut names = vec![
            GUARD.to_owned(),
            entry_column.clone(),
            request_column.clone(),
        ];
        names.extend(reads_value.then(|| VALUE.to_owned()));
        let names = Columns::Named(names);
        loop {
            let mut cells = self.parts.read(&id, &names, currency).await?;
            let guard_cell = cell(&cells, GUARD).map(|cell| cell.value.clone());
            let guard = Guard::of(guard_cell.as_ref())?;
            let request = cell(&cells, &request_column);
            let request = request
                .map(|cell| StoredRequest::decoded(&cell.value))
                .transpose()?;
            let request = request.filter(|request| request.seq == seq.0);
            let entry = cell(&cells, &entry_column);
            let (request, entry) = match (request, entry) {
                (Some(request), Some(entry)) if seq.0 > guard.passed && request.end.is_none() => {
                    (request, entry)
                }
                // A read may show a part of a transaction.
                (Some(StoredRequest { end: None, .. }), _)
                    if currency == Currency::Acknowledged =>
                {
                    currency = Currency::Settled;
                    continue;
                }
                (Some(request), _) => return Err(EngineError::Ended(request.ended_as())),
                // It is of another secret.
                (None, entry) if entry.is_some() || seq.0 > guard.issued => {
                    return Err(EngineError::NeverIssued);
                }
                (None, _) => return Err(EngineError::Ended(EndedAs::NoLongerKept)),
            };
            return Ok(Live {
                guard,
                guard_cell,
                entry: StoredEntry::decoded(&entry.value)?,
                request,
                left: entry.left.unwrap_or_default(),
                is_settled: currency == Currency::Settled,
                value: cells
                    .iter()
                    .position(|cell| cell.column == VALUE)
                    .map(|at| cells.swap_remove(at)),
            });
        }
    }

    /// The same entry, after what is in flight was settled.
    pub(super) async fn settle(
        &self,
        lock_ref: &LockRef,
        live: &mut Live,
    ) -> Result<(), EngineError> {
        if !live.is_settled {
            *live = self.live_at(lock_ref, false, Currency::Settled).await?;
        }
        Ok(())
    }

    /// The number of live entries ahead.
    async fn ahead(
        &self,
        id: &KeyId,
        guard: &Guard,
        seq: Seq,
        currency: Currency,
    ) -> Result<usize, EngineError> {
        match guard.ahead_of(seq) {
            None => Ok(0),
            Some(ahead) => Ok(self.parts.read(id, &ahead, currency).await?.len()),
        }
    }

    /// Swaps the guard, and begins the TTL of the entry anew. If that is not known to have taken effect, the entry is read again.
    pub(super) async fn swapped_with_renewal(
        &self,
        lock_ref: &LockRef,
        live: &mut Live,
        guard: Guard,
    ) -> Result<Option<Missed>, EngineError> {
        let ttl = live.entry.ttl();
        let (entry, request) = (live.entry.encoded(), live.request.encoded());
        let swap = CellSwap {
            expected: live.guard_cell.clone(),
            first: put(GUARD, guard.encoded(), None),
            others: vec![
                put(entry_column(lock_ref.seq), entry, Some(ttl)),
                put(
                    request_column(lock_ref.tag),
                    request,
                    Some(request_ttl(ttl)),
                ),
            ],
        };
        let missed = self.swapped(&lock_ref.key_id(), &swap).await?;
        if missed.is_some() {
            *live = self.live_at(lock_ref, false, Currency::Settled).await?;
        } else {
            live.left = ttl;
            live.guard_cell = Some(guard.encoded());
            live.guard = guard;
        }
        Ok(missed)
    }

    /// Renews an entry that has lived for a quarter of its TTL.
    pub(super) async fn renewed(
        &self,
        lock_ref: &LockRef,
        live: &mut Live,
    ) -> Result<(), EngineError> {
        for _ in 0..TRIES_MAX {
            if live.left > live.entry.ttl() * 3 / 4 {
                return Ok(());
            }
            self.settle(lock_ref, live).await?;
            let guard = live.guard.swapped();
            self.swapped_with_renewal(lock_ref, live, guard).await?;
        }
        Err(too_many_tries())
    }

    /// Makes the first live entry the holder, if it is this one and the guard does not name it yet. Answers the number of entries
    /// ahead.
    pub(super) async fn claimed(
        &self,
        lock_ref: &LockRef,
        live: &mut Live,
    ) -> Result<usize, EngineError> {
        let (id, seq) = (lock_ref.key_id(), lock_ref.seq);
        for _ in 0..TRIES_MAX {
            if live.guard.holder == seq.0 {
                return Ok(0);
            }
            let currency = match live.is_settled {
                true => Currency::Settled,
                false => Currency::Acknowledged,
            };
            let position = self.ahead(&id, &live.guard, seq, currency).await?;
            if position > 0 {
                return Ok(position);
            }
            if !live.is_settled {
                self.settle(lock_ref, live).await?;
                continue;
            }
            let guard = live.guard.held_by(seq);
            self.swapped_with_renewal(lock_ref, live, guard).await?;
        }
        Err(too_many_tries())
    }

    /// Ends a live entry, and records how. Answers whether it held the key.
    pub(super) async fn ended(
        &self,
        lock_ref: &LockRef,
        mut live: Live,
        how: &StoredRequest,
    ) -> Result<bool, EngineError> {
        let (id, seq) = (lock_ref.key_id(), lock_ref.seq);
        let mut may_have_ended = false;
        self.settle(lock_ref, &mut live).await?;
        for _ in 0..TRIES_MAX {
            let is_holder = live.guard.holder == seq.0;
            let guard = match is_holder {
                true => {
                    let behind = live.guard.behind(seq);
                    let behind = self.parts.read(&id, &behind, Currency::Settled).await?;
                    let next = behind.first().and_then(|cell| entry_seq(&cell.column));
                    live.guard.ended(next)
                }
                false => live.guard.swapped(),
            };
            let kept = request_ttl(live.entry.ttl());
            let swap = CellSwap {
                expected: live.guard_cell.clone(),
                first: put(GUARD, guard.encoded(), None),
                others: vec![
                    put(request_column(lock_ref.tag), how.encoded(), Some(kept)),
                    delete(entry_column(seq)),
                ],
            };
            let Some(missed) = self.swapped(&id, &swap).await? else {
                return Ok(is_holder);
            };
            may_have_ended |= missed == Missed::Unknown;
            live = match self.live_at(lock_ref, false, Currency::Settled).await {
                // By this call.
                Err(EngineError::Ended(ended)) if may_have_ended && ended == how.ended_as() => {
                    return Ok(is_holder);
                }
                live => live?,
            };
        }
        Err(too_many_tries())
    }

    /// Swaps cells; `None` if that took effect.
    pub(super) async fn swapped(
        &self,
        id: &KeyId,
        swap: &CellSwap,
    ) -> Result<Option<Missed>, EngineError> {
        match self.parts.cells()?.swap_cells(id, swap).await {
            Swap::Applied => Ok(None),
            Swap::Conflict(_) => Ok(Some(Missed::Conflict)),
            Swap::Unknown(_) => Ok(Some(Missed::Unknown)),
            Swap::NotStarted(error) => Err(unavailable(&error)),
        }
    }
}
