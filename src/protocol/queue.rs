//! The protocols with a queue: what they share of each call, on the few steps in which they differ.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::{StreamExt as _, stream};
use tokio::time::{Instant, timeout_at};

use super::cells::unavailable;
use super::entry::{StoredEntry, StoredRequest};
use super::leaderless::{Leaderless, LeaderlessWatch, Parts};
use super::polls::{Polled, Polls};
use super::{LockProtocol, ProtocolKind};
use crate::engine::{
    Acquired, CreateCall, CreatedLockRef, Described, DescribedEntry, Done, EngineError,
    ForceReleased, KeyFilter, LeaseId, LeaseLeft, LiveBy, LockStatus, Mutation, Page, Renewed,
    Value, WatchEvent,
};
use crate::key::KeyState;
use crate::lock::{EndedAs, EntryName, Fence, Key, KeyId, LockRef, Seq};

/// The steps of a protocol with a queue. Each may be repeated.
#[async_trait]
pub trait Queueing: Clone + Send + Sync + 'static {
    /// The protocol.
    const KIND: ProtocolKind;
    /// A live entry, as it was read.
    type Live: LiveEntry + Send + Sync;

    /// Fails unless values may be guarded.
    fn may_guard(&self) -> Result<(), EngineError> {
        Ok(())
    }

    /// The parts that it works with.
    fn parts(&self) -> &Parts;

    /// Reads the queue of a key for operators.
    async fn shown(&self, id: &KeyId) -> Result<Queue, EngineError> {
        self.queue(id).await
    }

    /// Whether this queue says to an entry that waits that its turn has come, or that it has ended.
    fn is_turn(&self, queue: &Queue, seq: Seq) -> bool {
        queue.position(seq).is_none_or(|ahead| ahead == 0)
    }

    /// Pauses before a waiter asks again whether it holds the key, after so many tries.
    async fn before_try(&self, _tries: u32) {}

    /// The record of the request of a lockRef.
    async fn request(&self, lock_ref: &LockRef) -> Result<Option<StoredRequest>, EngineError> {
        let parts = self.parts();
        parts.request(&lock_ref.key_id(), lock_ref.tag).await
    }

    /// The value, read without a lock.
    async fn value(&self, id: &KeyId) -> Result<Value, EngineError> {
        self.parts().value(id).await
    }

    /// Reads the queue of a key.
    async fn queue(&self, id: &KeyId) -> Result<Queue, EngineError>;

    /// Makes an entry, or finds that of an earlier try: its number, and whether it was found.
    async fn enter(
        &self,
        call: &CreateCall,
        entry: StoredEntry,
    ) -> Result<(Seq, Self::Live, bool), EngineError>;

    /// The entry of a lockRef, if it lives.
    async fn live(&self, lock_ref: &LockRef) -> Result<Self::Live, EngineError>;

    /// Renews an entry that has lived for a quarter of its TTL.
    async fn renew(&self, lock_ref: &LockRef, live: &mut Self::Live) -> Result<(), EngineError>;

    /// Whether the entry holds the key, and how many are ahead of it.
    async fn status(
        &self,
        lock_ref: &LockRef,
        live: &mut Self::Live,
    ) -> Result<LockStatus, EngineError>;

    /// Ends the entry, and records how. Answers whether it held the key.
    async fn end(
        &self,
        lock_ref: &LockRef,
        live: Self::Live,
        how: StoredRequest,
    ) -> Result<bool, EngineError>;

    /// The value, as the holder reads it.
    async fn get(
        &self,
        lock_ref: &LockRef,
        live: &mut Self::Live,
        call_no: u64,
    ) -> Result<Value, EngineError>;

    /// Writes the value as the holder. `is_release`: an earlier try of the call may have written the same.
    async fn write(
        &self,
        lock_ref: &LockRef,
        live: &mut Self::Live,
        mutation: &Mutation,
        call_no: u64,
        is_release: bool,
    ) -> Result<(), EngineError>;
}

/// How many queues a listing reads at once.
const READ_AT_ONCE: usize = 16;

/// A live entry, as it was read.
pub trait LiveEntry {
    /// The entry.
    fn entry(&self) -> &StoredEntry;
    /// The rest of its life.
    fn left(&self) -> Duration;
}

/// The entries of a key at one moment, in their order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Queue {
    /// The live entries.
    pub entries: Vec<QueueEntry>,
    /// The first one holds the key.
    pub is_held: bool,
    /// The number after the last one that was given out.
    pub next: u64,
    /// The fencing token of the first entry, or the last one that was given out; 0 for none.
    pub token: u64,
}

/// A live entry.
#[derive(Clone, Debug)]
pub struct QueueEntry {
    /// Its number.
    pub seq: Seq,
    /// The entry.
    pub entry: StoredEntry,
    /// The rest of its life.
    pub left: Duration,
}

impl PartialEq for QueueEntry {
    /// Whether it is the same entry. It lives for less and less.
    fn eq(&self, other: &QueueEntry) -> bool {
        self.seq == other.seq && self.entry == other.entry
    }
}

/// A table with such a protocol. Cheap to clone.
#[derive(Clone)]
pub struct OfQueue<P> {
    protocol: P,
    polls: Arc<Polls<Queue>>,
}

impl Queue {
    /// The number of entries ahead; `None` for one that is not in the queue.
    pub fn position(&self, seq: Seq) -> Option<usize> {
        self.entries.iter().position(|entry| entry.seq == seq)
    }

    /// The queue as operators see it.
    fn described(&self, id: &KeyId, kind: ProtocolKind) -> Described {
        let shown = self.entries.iter().filter_map(|queued| {
            let lease = LeaseLeft {
                ttl: queued.entry.ttl(),
                left: queued.left,
            };
            let described = DescribedEntry {
                durable: true,
                lease: Some(lease),
            };
            Some((Arc::new(queued.entry.shown(queued.seq)?), described))
        });
        let (entries, more) = shown.unzip();
        // Without a fence any number says that there is a holder.
        let fence = Fence(self.token.max(u64::from(!kind.has_fence())));
        Described {
            id: id.clone(),
            state: KeyState {
                next: Seq(self.next),
                grant: if self.is_held { fence } else { Fence::NONE },
                fence,
                entries,
                ..KeyState::default()
            },
            from_row: true,
            home: None,
            has_fence: kind.has_fence(),
            entries: more,
        }
    }
}

/// The lockRef of an entry.
pub fn lock_ref(id: &KeyId, seq: Seq, tag: crate::lock::Tag) -> LockRef {
    LockRef {
        table: id.table.clone(),
        key: id.key.clone(),
        seq,
        tag,
        grant: None,
    }
}

/// A lockRef as it is answered: with the grant of a holder.
fn answered(lock_ref: LockRef, status: &LockStatus) -> LockRef {
    let grant = match status {
        LockStatus::Held { grant, .. } => Some(*grant).filter(|grant| *grant != Fence::NONE),
        LockStatus::Waiting { .. } => None,
    };
    LockRef { grant, ..lock_ref }
}

impl<P: Queueing> OfQueue<P> {
    pub fn new(protocol: P) -> OfQueue<P> {
        OfQueue {
            protocol,
            polls: Arc::default(),
        }
    }

    /// The status of an entry, for a holder with the value if that is asked for.
    async fn status(
        &self,
        lock_ref: &LockRef,
        live: &mut P::Live,
        read_value: bool,
    ) -> Result<LockStatus, EngineError> {
        let status = self.protocol.status(lock_ref, live).await?;
        let LockStatus::Held { grant, .. } = status else {
            return Ok(status);
        };
        let value = match read_value {
            true => {
                let holder = answered(lock_ref.clone(), &status);
                Some(self.protocol.get(&holder, live, 0).await?)
            }
            false => None,
        };
        Ok(LockStatus::Held { grant, value })
    }

    /// The answer to a release that meets this error: it may have been done before.
    async fn released_before(
        &self,
        lock_ref: &LockRef,
        has_put: bool,
        error: EngineError,
    ) -> Result<bool, EngineError> {
        if error != EngineError::Ended(EndedAs::Released) {
            return Err(error);
        }
        let request = self.protocol.request(lock_ref).await?;
        match !has_put || request.is_some_and(|request| request.had_put()) {
            true => Ok(true),
            // That release wrote nothing.
            false => Err(error),
        }
    }

    fn polled(&self, id: &KeyId) -> Polled<Queue> {
        let (protocol, key) = (self.protocol.clone(), id.clone());
        let read = move || {
            let (protocol, key) = (protocol.clone(), key.clone());
            async move { protocol.queue(&key).await }
        };
        let parts = self.protocol.parts();
        let (clock, ids) = (Arc::clone(&parts.clock), Arc::clone(&parts.ids));
        self.polls.join(id, clock, ids, read)
    }

    /// Waits until an entry is the first or has ended, as polls show it.
    async fn until_first(&self, lock_ref: &LockRef, until: Instant) {
        let mut polled = self.polled(&lock_ref.key_id());
        while let Ok(Ok(())) = timeout_at(until, polled.changed()).await {
            let seen = polled.borrow_and_update().clone();
            let Some(Ok(queue)) = seen else { continue };
            if self.protocol.is_turn(&queue, lock_ref.seq) {
                return;
            }
        }
    }
}

#[async_trait]
impl<P: Queueing> LockProtocol for OfQueue<P> {
    async fn create(&self, call: CreateCall) -> Result<CreatedLockRef, EngineError> {
        let LiveBy::Ttl(ttl_ms) = call.live_by else {
            return Err(EngineError::NotInProtocol {
                protocol: P::KIND.name(),
                what: "sessions: a lockRef has a TTL of its own (leave session empty)",
            });
        };
        let now_ms = self.protocol.parts().clock.wall_ms();
        let entry = StoredEntry::new(&call, ttl_ms, now_ms);
        if call.read_value {
            self.protocol.may_guard()?;
        }
        let (seq, mut live, existed) = self.protocol.enter(&call, entry).await?;
        if let Some(field) = live.entry().differs_from(&call, ttl_ms) {
            return Err(EngineError::RequestMismatch { field });
        }
        let lock_ref = lock_ref(&call.id, seq, call.tag);
        let status = self.status(&lock_ref, &mut live, call.read_value).await?;
        Ok(CreatedLockRef {
            lease: LeaseId::LockRef(lock_ref.clone()),
            lock_ref: answered(lock_ref, &status),
            status,
            ttl: live.entry().ttl(),
            valid_for: live.left(),
            durable: true,
            existed,
        })
    }

    async fn acquire(
        &self,
        lock_ref: &LockRef,
        wait: Duration,
        read_value: bool,
    ) -> Result<Acquired, EngineError> {
        if read_value {
            self.protocol.may_guard()?;
        }
        let mut live = self.protocol.live(lock_ref).await?;
        self.protocol.renew(lock_ref, &mut live).await?;
        let longest = self.protocol.parts().limits.wait_max();
        let longest = longest.min(live.entry().ttl() * 2 / 3);
        let until = Instant::now() + wait.min(longest);
        let mut status = self.status(lock_ref, &mut live, read_value).await?;
        let mut tries = 0;
        while matches!(status, LockStatus::Waiting { .. }) && Instant::now() < until {
            self.until_first(lock_ref, until).await;
            self.protocol.before_try(tries).await;
            tries += 1;
            live = self.protocol.live(lock_ref).await?;
            self.protocol.renew(lock_ref, &mut live).await?;
            status = self.status(lock_ref, &mut live, read_value).await?;
        }
        Ok(Acquired {
            lock_ref: answered(lock_ref.clone(), &status),
            status,
            valid_for: live.left(),
            durable: true,
        })
    }

    async fn release(
        &self,
        lock_ref: &LockRef,
        put: Option<Mutation>,
        call_no: u64,
    ) -> Result<bool, EngineError> {
        let mut live = match self.protocol.live(lock_ref).await {
            Err(error) => return self.released_before(lock_ref, put.is_some(), error).await,
            Ok(live) => live,
        };
        if let Some(put) = &put {
            let write = self.protocol.write(lock_ref, &mut live, put, call_no, true);
            if let Err(error) = write.await {
                return self.released_before(lock_ref, true, error).await;
            }
        }
        let how = StoredRequest::released(lock_ref.seq, put.is_some());
        match self.protocol.end(lock_ref, live, how).await {
            // By another try of this call.
            Ok(_) | Err(EngineError::Ended(EndedAs::Released)) => Ok(false),
            Err(error) if put.is_some() => Err(error.with_write()),
            Err(error) => Err(error),
        }
    }

    async fn critical_get(
        &self,
        lock_ref: &LockRef,
        call_no: u64,
    ) -> Result<Done<Value>, EngineError> {
        let mut live = self.protocol.live(lock_ref).await?;
        self.protocol.renew(lock_ref, &mut live).await?;
        let value = self.protocol.get(lock_ref, &mut live, call_no).await?;
        Ok(Done {
            value,
            valid_for: live.left(),
            durable: true,
        })
    }

    async fn critical_write(
        &self,
        lock_ref: &LockRef,
        mutation: Mutation,
        call_no: u64,
    ) -> Result<Done<()>, EngineError> {
        let mut live = self.protocol.live(lock_ref).await?;
        self.protocol.renew(lock_ref, &mut live).await?;
        let write = self
            .protocol
            .write(lock_ref, &mut live, &mutation, call_no, false);
        write.await?;
        Ok(Done {
            value: (),
            valid_for: live.left(),
            durable: true,
        })
    }

    async fn renew(&self, lease: &LeaseId) -> Result<Renewed, EngineError> {
        let LeaseId::LockRef(lock_ref) = lease else {
            return Err(EngineError::SessionEnded);
        };
        let mut live = self.protocol.live(lock_ref).await?;
        self.protocol.renew(lock_ref, &mut live).await?;
        Ok(Renewed {
            ttl: live.entry().ttl(),
            disconnect_grace: None,
            valid_for: live.left(),
            durable: true,
        })
    }

    async fn force_release(
        &self,
        name: &EntryName,
        by: &str,
        why: &str,
    ) -> Result<ForceReleased, EngineError> {
        let id = name.key_id();
        let queue = self.protocol.shown(&id).await?;
        let entry = queue.entries.iter().find(|entry| entry.seq == name.seq);
        let Some(tag) = entry.and_then(|entry| entry.entry.tag()) else {
            return match P::KIND.has_fence() && name.seq.0 >= queue.next {
                true => Err(EngineError::NeverIssued),
                false => Ok(HAD_ENDED),
            };
        };
        let lock_ref = lock_ref(&id, name.seq, tag);
        let ended = match self.protocol.live(&lock_ref).await {
            Ok(live) => {
                let how = StoredRequest::forced(name.seq, by, why);
                self.protocol.end(&lock_ref, live, how).await
            }
            Err(error) => Err(error),
        };
        match ended {
            Ok(was_holder) => Ok(ForceReleased {
                already_released: false,
                was_holder,
            }),
            // It is in the row all the same.
            Err(EngineError::Ended(EndedAs::NoLongerKept)) if !P::KIND.has_order() => {
                Err(EngineError::NotInProtocol {
                    protocol: P::KIND.name(),
                    what: "such entry: it is a lock column of another program, which ReleaseAll removes",
                })
            }
            Err(EngineError::Ended(_)) => Ok(HAD_ENDED),
            Err(error) => Err(error),
        }
    }
}

const HAD_ENDED: ForceReleased = ForceReleased {
    already_released: true,
    was_holder: false,
};

#[async_trait]
impl<P: Queueing> Leaderless for OfQueue<P> {
    fn kind(&self) -> ProtocolKind {
        P::KIND
    }

    async fn read(&self, id: &KeyId) -> Result<Value, EngineError> {
        self.protocol.value(id).await
    }

    async fn watch(&self, lock_ref: &LockRef) -> Result<LeaderlessWatch, EngineError> {
        let mut live = self.protocol.live(lock_ref).await?;
        self.protocol.renew(lock_ref, &mut live).await?;
        let news = News {
            polled: self.polled(&lock_ref.key_id()),
            table: self.clone(),
            lock_ref: lock_ref.clone(),
            position: None,
            has_ended: false,
        };
        let events = stream::unfold(news, async |mut news| {
            let event = news.next().await?;
            Some((event, news))
        });
        Ok(LeaderlessWatch {
            events: events.boxed(),
            valid_for: Duration::ZERO,
        })
    }

    async fn describe(&self, id: &KeyId) -> Result<Described, EngineError> {
        Ok(self.protocol.shown(id).await?.described(id, P::KIND))
    }

    async fn list(
        &self,
        filter: &KeyFilter,
        limit: usize,
    ) -> Result<Page<Described, Key>, EngineError> {
        let cells = self.protocol.parts().cells()?;
        let mut items = Vec::new();
        let mut after = filter.after.clone();
        loop {
            let keys = cells.list_partitions(&filter.table, &filter.prefix, after.as_ref(), limit);
            let keys = keys.await.map_err(|error| unavailable(&error))?;
            let is_last = keys.len() < limit;
            let queues = stream::iter(keys).map(|key| async {
                let id = KeyId {
                    table: filter.table.clone(),
                    key,
                };
                let queue = self.protocol.shown(&id).await;
                queue.map(|queue| (id, queue))
            });
            let mut queues = queues.buffered(READ_AT_ONCE);
            while let Some(read) = queues.next().await {
                let (id, queue) = read?;
                if queue.entries.len() > usize::from(filter.contended) {
                    items.push(queue.described(&id, P::KIND));
                }
                after = Some(id.key);
                if items.len() == limit {
                    return Ok(Page { items, next: after });
                }
            }
            if is_last {
                return Ok(Page { items, next: None });
            }
        }
    }
}

/// The news of a watched lockRef.
struct News<P> {
    table: OfQueue<P>,
    lock_ref: LockRef,
    polled: Polled<Queue>,
    /// Its position as it was told.
    position: Option<usize>,
    has_ended: bool,
}

impl<P: Queueing> News<P> {
    async fn next(&mut self) -> Option<(WatchEvent, Duration)> {
        while !self.has_ended {
            self.polled.changed().await.ok()?;
            let Some(Ok(queue)) = self.polled.borrow_and_update().clone() else {
                continue;
            };
            let is_turn = self.table.protocol.is_turn(&queue, self.lock_ref.seq);
            let position = match queue.position(self.lock_ref.seq) {
                None if !is_turn => Some(queue.entries.len()),
                position => position,
            };
            if position.is_some() && position == self.position {
                continue;
            }
            self.position = position;
            if let (false, Some(position)) = (is_turn, position) {
                let estimate = None;
                return Some((WatchEvent::Waiting { position, estimate }, Duration::ZERO));
            }
            match self
                .table
                .acquire(&self.lock_ref, Duration::ZERO, false)
                .await
            {
                Ok(Acquired {
                    status: LockStatus::Held { grant, .. },
                    valid_for,
                    ..
                }) => return Some((WatchEvent::Held { grant }, valid_for)),
                Err(EngineError::Ended(ended)) => {
                    self.has_ended = true;
                    return Some((WatchEvent::Lost(ended), Duration::ZERO));
                }
                // The next poll shows more.
                Ok(_) | Err(_) => self.position = None,
            }
        }
        None
    }
}
