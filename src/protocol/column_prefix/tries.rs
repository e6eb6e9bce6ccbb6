//! Tries to hold a row.

use std::time::Duration;

use futures_util::future::try_join;
use tokio::time::timeout;

use super::rows::{ColumnPrefix, Live, Place};
use super::rules::{ATTEMPT_TTL, ATTEMPTS, LockColumn, MARGIN, Note, column_value, micros};

use crate::engine::EngineError;
use crate::lock::{EndedAs, KeyId, LockRef};
use crate::protocol::cells::{delete, put};
use crate::protocol::entry::StoredEntry;

/// The longest time of a try.
const TRY_MAX: Duration = Duration::from_secs(15);

/// One try to hold a row.
#[derive(Clone)]
pub struct Try {
    pub lock_ref: LockRef,
    /// With the entry.
    pub note: Note,
    /// A stale lock column is an error.
    pub fail_on_stale: bool,
    /// The lockRef waits: it must still be noted.
    pub is_known: bool,
    /// Nothing is written while others are in the row.
    pub looks_first: bool,
}

/// A lockRef holds its row.
pub struct Held {
    pub live: Live,
    /// It was known before.
    pub was_known: bool,
}

/// Others are in the row.
pub struct Busy {
    /// How many.
    pub others: usize,
    /// The lockRef, if it was known before.
    pub known: Option<Live>,
}

impl Try {
    /// The first try of a lockRef.
    pub fn new(lock_ref: &LockRef, entry: StoredEntry) -> Try {
        let note = Note {
            entry,
            ..Note::default()
        };
        Try {
            lock_ref: lock_ref.clone(),
            note,
            fail_on_stale: false,
            is_known: false,
            looks_first: false,
        }
    }

    /// Another try of a lockRef.
    pub fn again(lock_ref: &LockRef, live: &Live) -> Try {
        Try {
            lock_ref: lock_ref.clone(),
            note: live.note.clone(),
            fail_on_stale: false,
            is_known: true,
            looks_first: true,
        }
    }

    fn id(&self) -> KeyId {
        self.lock_ref.key_id()
    }
}

/// What a try sees in the row.
struct Seen {
    /// Its lockRef, if it is known.
    known: Option<Live>,
    stale: Vec<LockColumn>,
    others: Vec<LockColumn>,
}

impl Seen {
    fn busy(self) -> Busy {
        Busy {
            others: self.others.len(),
            known: self.known,
        }
    }
}

impl ColumnPrefix {
    /// Tries to hold a row. Goes on if its caller is gone: an attempt would block others.
    pub(super) async fn tried(&self, once: Try) -> Result<Result<Held, Busy>, EngineError> {
        let protocol = self.clone();
        let trying = async move { timeout(TRY_MAX, protocol.try_once(&once)).await };
        match tokio::spawn(trying).await {
            Ok(Ok(tried)) => tried,
            Ok(Err(_)) | Err(_) => Err(EngineError::Unavailable(
                "the store did not answer in time".to_owned(),
            )),
        }
    }

    async fn try_once(&self, once: &Try) -> Result<Result<Held, Busy>, EngineError> {
        let (id, clock) = (once.id(), &self.parts.clock);
        if once.looks_first {
            let seen = self.seen(once).await?;
            if !seen.others.is_empty() {
                return Ok(Err(seen.busy()));
            }
        }
        let (began, began_us) = (clock.boot(), clock.wall_us());
        let nonce = self.parts.ids.below(ATTEMPTS);
        let attempt = self.names.attempt(once.lock_ref.tag, nonce);
        let value = column_value(began_us + micros(ATTEMPT_TTL + MARGIN));
        let write = put(attempt.clone(), value, Some(ATTEMPT_TTL + MARGIN));
        self.parts.write_out(&id, &[write], began_us).await?;
        let seen = self.seen(once).await;
        let remove = delete(attempt);
        let seen = match seen {
            Ok(seen) if seen.may_hold(once.fail_on_stale) => seen,
            other => {
                self.parts.write_out(&id, &[remove], began_us + 1).await?;
                return other?.refused();
            }
        };
        let (mut changes, promised_us) = self.locks(once.lock_ref.tag, &once.note);
        changes.push(remove);
        let timestamp = promised_us - micros(once.note.entry.ttl());
        self.parts.write_out(&id, &changes, timestamp).await?;
        if clock.boot().saturating_sub(began) >= ATTEMPT_TTL {
            // Others may have passed the attempt. The lock column ends by itself.
            return Err(EngineError::Unavailable(
                "the store was too slow to lock the row".to_owned(),
            ));
        }
        let was_known = seen.known.is_some();
        let mut live = Live {
            place: Place::Holds,
            note: once.note.clone(),
            timestamp,
            left: Duration::ZERO,
            read_at: began,
            read_us: timestamp,
        };
        self.promise(&once.lock_ref, &mut live, promised_us).await?;
        if let Err(error) = self.remove_stale(&id, &seen.stale).await {
            // The next holder tries again.
            tracing::debug!(%id, %error, "stale lock columns stay");
        }
        Ok(Ok(Held { live, was_known }))
    }

    /// What is in the row beside this lockRef.
    async fn seen(&self, once: &Try) -> Result<Seen, EngineError> {
        let id = once.id();
        let reads = try_join(self.lock_columns(&id), self.find(&once.lock_ref, &[]));
        let (columns, found) = reads.await?;
        if found.live.is_none() && once.is_known {
            return Err(EngineError::Ended(EndedAs::NoLongerKept));
        }
        let tag = once.lock_ref.tag;
        let lock = columns
            .iter()
            .find(|one| one.column == self.names.lock(tag));
        let written = lock.map(|lock| lock.timestamp);
        let note = found.live.as_ref().map_or(&once.note, |live| &live.note);
        let second = self.names.second(note);
        let now_us = self.parts.clock.wall_us();
        // Attempts of one lockRef write the same lock column: they do not exclude each other.
        let is_own = |column: &LockColumn| {
            column.tag == Some(tag)
                || Some(&column.column) == second.as_ref() && Some(column.timestamp) == written
        };
        let others = columns.iter().filter(|column| !is_own(column)).cloned();
        let (stale, others) = others.partition(|column| column.is_stale(now_us));
        Ok(Seen {
            known: found.live,
            stale,
            others,
        })
    }

    /// Removes stale columns as they were seen: each under its own timestamp, so that one which was written anew stays.
    pub(super) async fn remove_stale(
        &self,
        id: &KeyId,
        stale: &[LockColumn],
    ) -> Result<(), EngineError> {
        for column in stale {
            let removes = [delete(column.column.clone())];
            self.parts.write_out(id, &removes, column.timestamp).await?;
        }
        Ok(())
    }
}

impl Seen {
    /// A stale column of a lock. That of an attempt is none.
    fn stale_lock(&self) -> Option<&LockColumn> {
        self.stale.iter().find(|column| !column.is_attempt)
    }

    /// Whether the attempt is alone, and its lockRef does not hold the row yet.
    fn may_hold(&self, fail_on_stale: bool) -> bool {
        let holds = self
            .known
            .as_ref()
            .is_some_and(|live| live.place == Place::Holds);
        self.others.is_empty() && !holds && !(fail_on_stale && self.stale_lock().is_some())
    }

    /// The answer to an attempt that may not hold the row.
    fn refused(mut self) -> Result<Result<Held, Busy>, EngineError> {
        if let Some(live) = self.known.take_if(|live| live.place == Place::Holds) {
            return Ok(Ok(Held {
                live,
                was_known: true,
            }));
        }
        match self.stale_lock() {
            Some(stale) if self.others.is_empty() => Err(EngineError::StaleLock {
                column: stale.column.clone(),
            }),
            Some(_) | None => Ok(Err(self.busy())),
        }
    }
}
