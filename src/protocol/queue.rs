//! What the protocols with a queue share: waits, watches and listings, from polls of the queue.

use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt as _, stream};
use tokio::time::{Instant, timeout_at};

use super::entry::StoredEntry;
use super::leaderless::{Leaderless, LeaderlessWatch, Parts};
use super::polls::{Polled, Polls};
use crate::engine::{
    Acquired, Described, DescribedEntry, EngineError, KeyFilter, LeaseLeft, LockStatus, Page,
    WatchEvent,
};
use crate::key::KeyState;
use crate::lock::{Fence, Key, KeyId, LockRef, Seq};

/// The entries of a key at one moment, in their order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Queue {
    /// The live entries. The first one holds the key.
    pub entries: Vec<QueueEntry>,
    /// The number after the last one that was given out.
    pub next: u64,
    /// The fencing token of the first entry, or the last one that was given out; 0 for none.
    pub token: u64,
    /// The value will be rewritten before the first entry holds the key.
    pub unsynced: bool,
}

/// A live entry.
#[derive(Clone, Debug, PartialEq)]
pub struct QueueEntry {
    /// Its number.
    pub seq: Seq,
    /// The entry.
    pub entry: StoredEntry,
    /// The rest of its life.
    pub left: Duration,
}

/// A leaderless protocol with a queue.
pub trait Queued: Leaderless + Clone + 'static {
    /// The parts that it works with.
    fn parts(&self) -> &Parts;

    /// The polls of this replica.
    fn polls(&self) -> &Polls<Queue>;

    /// Reads the queue of a key.
    fn queue(&self, id: &KeyId) -> impl Future<Output = Result<Queue, EngineError>> + Send;
}

impl Queue {
    /// The number of entries ahead; `None` for one that is not in the queue.
    fn position(&self, seq: Seq) -> Option<usize> {
        self.entries.iter().position(|entry| entry.seq == seq)
    }

    /// The queue as operators see it.
    pub fn described(&self, id: &KeyId) -> Described {
        let shown = self.entries.iter().filter_map(|queued| {
            let described = DescribedEntry {
                durable: true,
                lease: Some(LeaseLeft {
                    ttl: queued.entry.ttl(),
                    left: queued.left,
                }),
            };
            Some((Arc::new(queued.entry.shown(queued.seq)?), described))
        });
        let (entries, more) = shown.unzip();
        let fence = Fence(self.token);
        let grant = match self.entries.is_empty() {
            true => Fence::NONE,
            false => fence,
        };
        Described {
            id: id.clone(),
            state: KeyState {
                next: Seq(self.next),
                grant,
                fence,
                unsynced: self.unsynced,
                entries,
                ..KeyState::default()
            },
            from_row: true,
            home: None,
            entries: more,
        }
    }
}

fn polled<P: Queued>(protocol: &P, id: &KeyId) -> Polled<Queue> {
    let (reader, key) = (protocol.clone(), id.clone());
    let read = move || {
        let (reader, key) = (reader.clone(), key.clone());
        async move { reader.queue(&key).await }
    };
    let parts = protocol.parts();
    let (clock, ids) = (Arc::clone(&parts.clock), Arc::clone(&parts.ids));
    protocol.polls().join(id, clock, ids, read)
}

/// Waits until an entry is the first or has ended, as polls show it, for as long as it may.
pub async fn until_first<P: Queued>(protocol: &P, lock_ref: &LockRef, until: Instant) {
    let mut polled = polled(protocol, &lock_ref.key_id());
    while let Ok(Ok(())) = timeout_at(until, polled.changed()).await {
        let seen = polled.borrow_and_update().clone();
        if let Some(Ok(queue)) = seen
            && queue
                .position(lock_ref.seq)
                .is_none_or(|position| position == 0)
        {
            return;
        }
    }
}

/// The news of a lockRef.
struct News<P> {
    protocol: P,
    lock_ref: LockRef,
    polled: Polled<Queue>,
    /// Its position as it was told.
    position: Option<usize>,
    is_over: bool,
}

/// Watches a lockRef that was live a moment ago.
pub fn watch<P: Queued>(protocol: &P, lock_ref: &LockRef) -> LeaderlessWatch {
    let news = News {
        polled: polled(protocol, &lock_ref.key_id()),
        protocol: protocol.clone(),
        lock_ref: lock_ref.clone(),
        position: None,
        is_over: false,
    };
    let events = stream::unfold(news, async |mut news| {
        let event = news.next().await?;
        Some((event, news))
    });
    LeaderlessWatch {
        events: events.boxed(),
        valid_for: Duration::ZERO,
    }
}

impl<P: Queued> News<P> {
    async fn next(&mut self) -> Option<(WatchEvent, Duration)> {
        while !self.is_over {
            self.polled.changed().await.ok()?;
            let Some(Ok(queue)) = self.polled.borrow_and_update().clone() else {
                continue;
            };
            let position = queue.position(self.lock_ref.seq);
            if position.is_some() && position == self.position {
                continue;
            }
            self.position = position;
            if let Some(position @ 1..) = position {
                let estimate = None;
                return Some((WatchEvent::Waiting { position, estimate }, Duration::ZERO));
            }
            match self
                .protocol
                .acquire(&self.lock_ref, Duration::ZERO, false)
                .await
            {
                Ok(Acquired {
                    status: LockStatus::Held { grant, .. },
                    valid_for,
                    ..
                }) => return Some((WatchEvent::Held { grant }, valid_for)),
                Err(EngineError::Ended(ended)) => {
                    self.is_over = true;
                    return Some((WatchEvent::Lost(ended), Duration::ZERO));
                }
                // The next poll shows more.
                Ok(_) | Err(_) => self.position = None,
            }
        }
        None
    }
}

/// One page of the keys with entries.
pub async fn list<P: Queued>(
    protocol: &P,
    filter: &KeyFilter,
    limit: usize,
) -> Result<Page<Described, Key>, EngineError> {
    let cells = protocol.parts().cells()?;
    let mut items = Vec::new();
    let mut after = filter.after.clone();
    loop {
        let keys = cells.list_partitions(&filter.table, &filter.prefix, after.as_ref(), limit);
        let keys = keys
            .await
            .map_err(|error| EngineError::Unavailable(error.to_string()))?;
        let is_last = keys.len() < limit;
        for key in keys {
            let id = KeyId {
                table: filter.table.clone(),
                key: key.clone(),
            };
            let queue = protocol.queue(&id).await?;
            after = Some(key);
            if queue.entries.len() > usize::from(filter.contended) {
                items.push(queue.described(&id));
            }
            if items.len() == limit {
                return Ok(Page { items, next: after });
            }
        }
        if is_last {
            return Ok(Page { items, next: None });
        }
    }
}
