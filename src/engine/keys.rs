//! The keys that this replica has something to do with, and the actor of each.
//!
//! A key has a task only while there is work; between two pieces of work its actor is parked here if it
//! remembers something that must be kept (I10), and dropped otherwise.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Semaphore, mpsc};

use super::actor::{Actor, IdleSnapshot, Msg};
use super::api::EngineError;
use super::inner::Inner;
use crate::lock::KeyId;

const SHARDS: usize = 64;

enum Slot {
    /// A task runs; it takes what is sent here.
    Running(mpsc::Sender<Msg>),
    /// No task runs; the actor waits for the next message.
    Parked(Box<Actor>),
    /// The same, and it has nothing on its hands.
    Idle(Box<IdleSnapshot>),
}

type Shard = HashMap<Arc<KeyId>, Slot>;

/// The actors of this replica, by key.
pub(super) struct Keys {
    shards: Vec<Mutex<Shard>>,
    hasher: RandomState,
    count: AtomicUsize,
}

impl Keys {
    pub fn new() -> Self {
        Keys {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            hasher: RandomState::new(),
            count: AtomicUsize::new(0),
        }
    }

    /// How many keys are held, waited for, or just used.
    pub fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    fn shard(&self, id: &KeyId) -> MutexGuard<'_, Shard> {
        let at = self.hasher.hash_one(id) as usize % self.shards.len();
        // A panic cannot happen between two dependent changes below, so a poisoned shard is still whole.
        self.shards[at]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands a message to the actor of a key, waking or making it. Where the replica is fenced its actors have ended,
    /// and none begins (I10).
    pub fn send(&self, inner: &Arc<Inner>, id: &Arc<KeyId>, msg: Msg) -> Result<(), EngineError> {
        inner.alive()?;
        let mut shard = self.shard(id);
        let mut msg = msg;
        match shard.get_mut(id) {
            Some(Slot::Running(tx)) => match tx.try_send(msg) {
                Ok(()) => return Ok(()),
                Err(mpsc::error::TrySendError::Full(_)) => {
                    return Err(EngineError::Exhausted {
                        what: "calls_per_key_max",
                        limit: inner.limits.calls_per_key_max as u64,
                    });
                }
                // The replica is fenced since a moment, or its task crashed. A new actor reads the state again, and
                // takes over what the one that crashed had granted the lock to (I10).
                Err(mpsc::error::TrySendError::Closed(back)) => {
                    inner.alive()?;
                    tracing::error!(key = %id, "the task of a key ended unexpectedly; restarting it");
                    msg = back;
                    shard.remove(id);
                    self.count.fetch_sub(1, Ordering::Relaxed);
                }
            },
            Some(Slot::Parked(_) | Slot::Idle(_)) | None => {}
        }
        let actor = match shard.remove(id) {
            Some(Slot::Parked(actor)) => actor,
            Some(Slot::Idle(rest)) => rest.unpack(&inner.limits),
            Some(Slot::Running(_)) | None => {
                if self.count.fetch_add(1, Ordering::Relaxed) >= inner.limits.active_keys_max {
                    self.count.fetch_sub(1, Ordering::Relaxed);
                    return Err(EngineError::Exhausted {
                        what: "active_keys_max",
                        limit: inner.limits.active_keys_max as u64,
                    });
                }
                Box::new(Actor::new(Arc::clone(id), &inner.limits))
            }
        };
        // A channel that is to hold more than this panics.
        let calls_max = inner.limits.calls_per_key_max.min(Semaphore::MAX_PERMITS);
        let (tx, rx) = mpsc::channel(calls_max);
        if let Err(refused) = tx.try_send(msg) {
            // Cannot be: the channel is new, empty, and holds at least one (Limits::check). If it ever
            // is, the caller learns of it and the actor is kept.
            tracing::error!(key = %id, "a new channel refused its first message: {refused}");
            shard.insert(Arc::clone(id), Slot::Parked(actor));
            return Err(EngineError::Unavailable("internal: no channel".to_owned()));
        }
        shard.insert(Arc::clone(id), Slot::Running(tx));
        drop(shard);
        tokio::spawn(actor.run(Arc::clone(inner), rx));
        Ok(())
    }

    /// Whether a key has an actor.
    pub fn has(&self, id: &KeyId) -> bool {
        match self.shard(id).get(id) {
            Some(Slot::Running(tx)) => !tx.is_closed(),
            Some(Slot::Parked(_) | Slot::Idle(_)) => true,
            None => false,
        }
    }

    /// Tells the actor of a key, if there is one, that another replica knows of this version.
    pub fn hint(
        &self,
        inner: &Arc<Inner>,
        id: &Arc<KeyId>,
        version: u64,
    ) -> Result<(), EngineError> {
        self.notify(inner, id, Msg::Hint { version })
    }

    /// Hands a message to the actor of a key, if there is one.
    pub fn notify(&self, inner: &Arc<Inner>, id: &Arc<KeyId>, msg: Msg) -> Result<(), EngineError> {
        let is_known = self.shard(id).contains_key(id);
        match is_known {
            true => self.send(inner, id, msg),
            false => Ok(()),
        }
    }

    /// Ends the task of a key: parks its actor, or drops it if it need not be kept. Gives it back if a
    /// message came in meanwhile.
    pub fn park(&self, actor: Box<Actor>, rx: &mpsc::Receiver<Msg>) -> Result<(), Box<Actor>> {
        let id = Arc::clone(actor.id());
        let mut shard = self.shard(&id);
        if !rx.is_empty() {
            return Err(actor);
        }
        if actor.must_stay() {
            let slot = match actor.into_idle() {
                Ok(rest) => Slot::Idle(Box::new(rest)),
                Err(actor) => Slot::Parked(actor),
            };
            shard.insert(id, slot);
        } else {
            shard.remove(&id);
            self.count.fetch_sub(1, Ordering::Relaxed);
            if shard.capacity() > 64 && shard.len() < shard.capacity() / 8 {
                shard.shrink_to_fit();
            }
        }
        Ok(())
    }
}
