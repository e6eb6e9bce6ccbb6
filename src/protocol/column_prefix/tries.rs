//! Tries to hold a row.

use std::time::Duration;

use futures_util::future::try_join;
use tokio::time::timeout;

use super::rows::{ColumnPrefix, Live, Place, unsure};
use super::rules::{ATTEMPTS, LockColumn, MARGIN, Note, attempt_ttl, column_value, micros};

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
    /// With the entry and the id of the lock column.
    pub note: Note,
    /// A stale lock column is an error.
    pub fail_on_stale: bool,
    /// The lockRef was tried before: it must still be noted.
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
    /// One of them has a lock column, not only an attempt.
    pub is_locked: bool,
    /// The lockRef, if it was known before.
    pub known: Option<Live>,
}

impl Try {
    /// The first try of a lockRef, with an id of its own.
    pub fn new(lock_ref: &LockRef, entry: StoredEntry) -> Try {
        let note = Note {
            entry,
            lock_id: format!("{:?}", lock_ref.tag),
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
            is_locked: self.others.iter().any(|other| !other.is_attempt),
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
            let seen = self.seen(once, "").await?;
            if !seen.others.is_empty() {
                return Ok(Err(seen.busy()));
            }
        }
        let (began, began_us) = (clock.boot(), clock.wall_us());
        let life = attempt_ttl(once.note.entry.ttl());
        let nonce = self.parts.ids.below(ATTEMPTS);
        let attempt = self.names.attempt(once.lock_ref.tag, nonce);
        let value = column_value(began_us + micros(life + MARGIN));
        let write = put(attempt.clone(), value, Some(life + MARGIN));
        self.parts.write_out(&id, &[write], began_us).await?;
        let timestamp = self.parts.timestamp_after(began_us);
        let seen = self.seen(once, &attempt).await;
        let remove = delete(attempt);
        let seen = match seen {
            Ok(seen) if seen.may_hold(once.fail_on_stale) => seen,
            other => {
                self.parts.write_out(&id, &[remove], timestamp).await?;
                return other?.refused();
            }
        };
        let ttl = once.note.entry.ttl();
        let mut note = Note {
            ends_at_us: clock.wall_us().saturating_add(micros(ttl + MARGIN)),
            sure_by_us: began_us + micros(life),
            ..once.note.clone()
        };
        let (mut sure_for, mut timestamp) = (life, timestamp);
        if let Some(known) = &seen.known {
            timestamp = known.following();
            // Others see the column before until its end, as they see the attempt.
            if known.place == Place::Unsure {
                note.sure_by_us = note.sure_by_us.max(known.note.promised_us());
                sure_for = sure_for.max(known.left);
            }
        }
        let mut changes = self.holding(once.lock_ref.tag, &note).to_vec();
        changes.push(remove);
        self.parts.write_out(&id, &changes, timestamp).await?;
        if clock.boot().saturating_sub(began) >= sure_for {
            return Err(unsure());
        }
        let live = Live {
            place: Place::Holds,
            note,
            timestamp,
            left: ttl,
            read_us: clock.wall_us(),
        };
        // Another lock of this id may have left a deletion under a clock that is ahead, and a known lockRef may have ended.
        let is_own_name = once.note.lock_id == format!("{:?}", once.lock_ref.tag);
        if seen.known.is_some() || !is_own_name {
            self.unless_ended(&once.lock_ref, &live).await?;
        }
        self.remove_stale(&id, &seen.stale).await?;
        Ok(Ok(Held {
            live,
            was_known: seen.known.is_some(),
        }))
    }

    /// What is in the row beside this attempt.
    async fn seen(&self, once: &Try, attempt: &str) -> Result<Seen, EngineError> {
        let id = once.id();
        let reads = try_join(self.lock_columns(&id), self.find(&once.lock_ref, &[]));
        let (columns, (known, _)) = reads.await?;
        if known.is_none() && once.is_known {
            return Err(EngineError::Ended(EndedAs::NoLongerKept));
        }
        let is_held = |live: &&Live| !matches!(live.place, Place::Waits { .. });
        let own = known.as_ref().filter(is_held);
        let own = own.map(|live| self.names.lock(&live.note.lock_id));
        let now_us = self.parts.clock.wall_us();
        let is_other =
            |column: &LockColumn| column.column != attempt && Some(&column.column) != own.as_ref();
        let columns = columns.into_iter().filter(is_other);
        let (stale, others) = columns.partition(|column| column.is_stale(now_us));
        Ok(Seen {
            known,
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
    /// Whether the attempt is alone, and its lockRef does not hold the row yet.
    fn may_hold(&self, fail_on_stale: bool) -> bool {
        let holds = self
            .known
            .as_ref()
            .is_some_and(|live| live.place == Place::Holds);
        self.others.is_empty() && !holds && (self.stale.is_empty() || !fail_on_stale)
    }

    /// The answer to an attempt that may not hold the row.
    fn refused(mut self) -> Result<Result<Held, Busy>, EngineError> {
        if let Some(live) = self.known.take_if(|live| live.place == Place::Holds) {
            return Ok(Ok(Held {
                live,
                was_known: true,
            }));
        }
        match self.stale.first() {
            Some(stale) if self.others.is_empty() => Err(EngineError::StaleLock {
                column: stale.column.clone(),
            }),
            Some(_) | None => Ok(Err(self.busy())),
        }
    }
}
