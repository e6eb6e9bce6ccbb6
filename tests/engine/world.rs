//! One replica on a fresh embedded store, which fails when told to.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use fermata::clock::{Clock, SystemClock, SystemIds};
use fermata::engine::{
    Acquired, CreateCall, CreatedLockRef, EngineError, EngineOptions, LeaseId, LiveBy, LockStatus,
    Mutation, NoPeers, Packing, REPLICA_TTL, Renewed, SessionCall,
};
use fermata::key::KeyState;
use fermata::limits::Limits;
use fermata::lock::{
    EndReason, EndedAs, Fence, Key, KeyId, LockRef, Mode, SessionId, TableName, Tag,
};
use fermata::store::embedded::{EmbeddedOpenError, EmbeddedOptions, EmbeddedStore, restore};
use fermata::store::{KeyStore as _, SessionRow, SessionStore as _, Store};
use tempfile::TempDir;
use uuid::Uuid;

use super::faulty::FaultyStore;
use super::history::{CheckedAtEnd, Recorder};
use super::manual_clock::ManualClock;
use super::recorded::Engine;

pub struct World {
    pub engine: Engine,
    pub store: Arc<FaultyStore>,
    pub directory: TempDir,
    pub history: Recorder,
    /// Whatever was answered in the test.
    checked: CheckedAtEnd,
    made: Made,
}

/// What a replica is started with, again and again.
#[derive(Clone)]
struct Made {
    limits: Limits,
    clock: Arc<dyn Clock>,
    write_back: BTreeSet<TableName>,
    packing: Packing,
}

impl Default for Made {
    fn default() -> Made {
        Made {
            limits: Limits::default(),
            clock: Arc::new(SystemClock),
            write_back: BTreeSet::new(),
            packing: Packing::default(),
        }
    }
}

/// Keys to which nothing happens are packed a few milliseconds later.
pub const PACKED_AT_ONCE: Packing = Packing {
    unused_for: Duration::ZERO,
    every: Duration::from_millis(2),
    parts: 1,
};

pub fn key(text: &str) -> KeyId {
    KeyId {
        table: TableName::default_table(),
        key: Key::parse(text, Key::BYTES_MAX).unwrap(),
    }
}

/// A create that lives by its own TTL.
pub fn call(id: &str, ttl_ms: u32) -> CreateCall {
    CreateCall {
        waited: Duration::ZERO,
        id: key(id),
        tag: Tag::from_bits(Uuid::new_v4().as_u128()),
        live_by: LiveBy::Ttl(ttl_ms),
        mode: Mode::Exclusive,
        owner: "a test".to_owned(),
        identity: String::new(),
        share_of: "".into(),
        read_value: false,
    }
}

/// A create that lives by a session.
pub fn call_of(session: SessionId, id: &str) -> CreateCall {
    CreateCall {
        live_by: LiveBy::Session(session),
        ..call(id, 0)
    }
}

/// An opening of a session.
pub fn session_call(id: Uuid, ttl_ms: u32) -> SessionCall {
    SessionCall {
        share_of: "".into(),
        waited: Duration::ZERO,
        id: SessionId(id),
        ttl_ms,
        disconnect_grace_ms: 0,
        owner: "a test".to_owned(),
        identity: String::new(),
    }
}

/// A value.
pub fn put(value: &str) -> Mutation {
    Mutation::Put(Bytes::copy_from_slice(value.as_bytes()))
}

/// What must not take long, whatever the clock of the world says.
pub async fn soon<T>(answer: impl Future<Output = T>) -> T {
    let answer = tokio::time::timeout(Duration::from_secs(10), answer).await;
    answer.expect("no answer for 10 seconds")
}

/// The store cannot be asked, or has not answered: the caller may repeat it.
#[track_caller]
pub fn assert_unavailable<T: Debug>(answer: &Result<T, EngineError>) {
    assert!(
        matches!(answer, Err(EngineError::Unavailable(_))),
        "{answer:?}"
    );
}

pub fn exhausted(what: &'static str, limit: u64) -> EngineError {
    EngineError::Exhausted { what, limit }
}

pub fn lost(reason: EndReason) -> EngineError {
    EngineError::Ended(EndedAs::Lost(reason))
}

/// Waits until something is so. Gives up after some seconds.
pub async fn until<F: Future<Output = bool>>(what: &str, mut holds: impl FnMut() -> F) {
    for _ in 0..2_000 {
        if holds().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    panic!("never happened: {what}");
}

impl World {
    pub async fn new() -> World {
        Self::of(Made::default()).await
    }

    pub async fn with(limits: Limits) -> World {
        let rest = Made::default();
        Self::of(Made { limits, ..rest }).await
    }

    /// One whose clock is moved by the test.
    pub async fn by_hand() -> (World, Arc<ManualClock>) {
        let clock = ManualClock::new();
        let made = Made {
            clock: Arc::clone(&clock) as _,
            ..Made::default()
        };
        (Self::of(made).await, clock)
    }

    /// One that packs whatever it can at once.
    pub async fn packing(limits: Limits) -> World {
        let made = Made {
            limits,
            packing: PACKED_AT_ONCE,
            ..Made::default()
        };
        Self::of(made).await
    }

    /// One that answers from memory.
    pub async fn writing_back(limits: Limits) -> World {
        let made = Made {
            limits,
            write_back: BTreeSet::from([TableName::default_table()]),
            ..Made::default()
        };
        Self::of(made).await
    }

    async fn of(made: Made) -> World {
        let directory = tempfile::tempdir().unwrap();
        let history = Recorder::at(Arc::clone(&made.clock));
        let checked = history.checked_at_end("one replica");
        let world = Self::on(directory, (history, checked), made, |_| ()).await;
        soon(world.engine.recovered()).await;
        world
    }

    async fn on(
        directory: TempDir,
        (history, checked): (Recorder, CheckedAtEnd),
        made: Made,
        before: impl FnOnce(&FaultyStore),
    ) -> World {
        let store = loop {
            match EmbeddedStore::open(EmbeddedOptions::new(directory.path())) {
                Ok(store) => break FaultyStore::ended(store),
                // The one before it is still finishing what had reached it.
                Err(EmbeddedOpenError::InUse { .. }) => {
                    tokio::time::sleep(Duration::from_millis(2)).await
                }
                Err(error) => panic!("{error}"),
            }
        };
        before(&store);
        let engine = start(store.handles(), made.clone()).await;
        World {
            engine: Engine::new(engine, &history, "client"),
            store,
            directory,
            history,
            checked,
            made,
        }
    }

    /// Kills the replica at once, and starts one on a store that is made of a backup. What was acknowledged after that is lost,
    /// so what follows is a history of its own.
    pub async fn restored(self, backup: &[u8], now_us: u64) -> World {
        self.store.cut();
        self.engine.stop();
        let directory = tempfile::tempdir().unwrap();
        let options = EmbeddedOptions::new(directory.path());
        restore(&options, backup, now_us, None).unwrap();
        let history = Recorder::new();
        let checked = history.checked_at_end("one replica on a restored store");
        history.leave_unchecked();
        let made = self.made.clone();
        let world = Self::on(directory, (history, checked), made, |_| ()).await;
        soon(world.engine.recovered()).await;
        world
    }

    /// Kills the replica at once, and starts another one on what it left.
    pub async fn restart(self) -> World {
        let limits = self.made.limits.clone();
        let world = self.restart_at_once(limits, |_| ()).await;
        soon(world.engine.recovered()).await;
        world
    }

    /// The same under other limits and with faults that are there before it starts. It is not waited for to take over what
    /// nobody asked for.
    pub async fn restart_at_once(self, limits: Limits, before: impl FnOnce(&FaultyStore)) -> World {
        self.store.cut();
        // It is down already; this only ends its tasks.
        self.engine.stop();
        let World {
            engine,
            store,
            directory,
            history,
            checked,
            made,
        } = self;
        drop((engine, store));
        let made = Made { limits, ..made };
        Self::on(directory, (history, checked), made, before).await
    }

    pub async fn create(&self, id: &str) -> CreatedLockRef {
        soon(self.engine.create(call(id, 30_000))).await.unwrap()
    }

    /// A holder, and who waits behind it.
    pub async fn create_two(&self, id: &str) -> (LockRef, LockRef) {
        let first = self.create(id).await.lock_ref;
        (first, self.create(id).await.lock_ref)
    }

    /// An entry that lives by a session.
    pub async fn create_in(&self, session: SessionId, id: &str) -> LockRef {
        let created = soon(self.engine.create(call_of(session, id))).await;
        created.unwrap().lock_ref
    }

    /// Ends a lockRef by force, by `op` and for this reason.
    pub async fn force(&self, lock_ref: &LockRef, why: &str) {
        let forced = soon(self.engine.force_release(lock_ref, "op", why)).await;
        forced.unwrap();
    }

    /// Waits until nobody has an entry in the queue of a key.
    pub async fn until_free(&self, id: &str) {
        until("nobody has an entry", || async {
            self.state(id).await.entries.is_empty()
        })
        .await;
    }

    pub async fn put(&self, held: &LockRef, value: &str) -> Result<(), EngineError> {
        let done = soon(self.engine.critical_write(held, put(value), 0)).await;
        done.map(|_| ())
    }

    pub async fn get(&self, held: &LockRef) -> Result<Option<String>, EngineError> {
        let done = soon(self.engine.critical_get(held, 0)).await?;
        Ok(done
            .value
            .bytes
            .map(|b| String::from_utf8(b.to_vec()).unwrap()))
    }

    pub async fn release(&self, lock_ref: &LockRef) -> Result<bool, EngineError> {
        soon(self.engine.release(lock_ref, None, 0)).await
    }

    /// Waits for the lock; the lockRef with its grant.
    pub async fn acquire(&self, lock_ref: &LockRef) -> LockRef {
        let wait = Duration::from_secs(60);
        let acquired = soon(self.engine.acquire(lock_ref, wait, false)).await;
        let acquired = acquired.unwrap();
        assert!(matches!(acquired.status, LockStatus::Held { .. }));
        acquired.lock_ref
    }

    /// Waits for the lock, however often the store fails.
    pub async fn acquire_patiently(&self, lock_ref: &LockRef) -> LockRef {
        loop {
            let wait = Duration::from_secs(60);
            match soon(self.engine.acquire(lock_ref, wait, false)).await {
                Ok(acquired) => break acquired.lock_ref,
                Err(EngineError::Unavailable(_)) => {
                    tokio::time::sleep(Duration::from_millis(2)).await;
                }
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// What the store holds of a key.
    pub async fn state(&self, id: &str) -> KeyState {
        let state = self.store.real().unwrap().load(&key(id)).await.unwrap();
        state.unwrap_or_default()
    }

    /// The row of a session, as the store has it.
    pub async fn session_row(&self, id: SessionId) -> Option<SessionRow> {
        self.store.real().unwrap().load_session(id).await.unwrap()
    }

    /// Asks for the lock, without waiting.
    pub async fn ask(&self, lock_ref: &LockRef) -> Result<Acquired, EngineError> {
        let asked = self.engine.acquire(lock_ref, Duration::ZERO, false);
        soon(asked).await
    }

    pub async fn renew_entry(&self, lock_ref: &LockRef) {
        let lease = LeaseId::LockRef(lock_ref.clone());
        self.engine.renew(&lease).await.unwrap();
    }

    pub async fn renew(&self, session: SessionId) -> Result<Renewed, EngineError> {
        self.engine.renew(&LeaseId::Session(session)).await
    }

    pub async fn open_session(&self, ttl_ms: u32) -> SessionId {
        let call = session_call(Uuid::new_v4(), ttl_ms);
        self.engine.open_session(call.clone()).await.unwrap();
        call.id
    }
}

async fn start(store: Store, made: Made) -> fermata::engine::Engine {
    fermata::engine::Engine::start(EngineOptions {
        store,
        clock: made.clock,
        ids: Arc::new(SystemIds),
        peers: Arc::new(NoPeers),
        tables: Vec::new(),
        write_back: made.write_back,
        packing: made.packing,
        limits: made.limits,
        name: "test".to_owned(),
        zone: String::new(),
        address: "test".to_owned(),
        peer_address: String::new(),
        replica_ttl: REPLICA_TTL,
    })
    .await
    .unwrap()
}

pub fn grant(status: &LockStatus) -> Fence {
    match status {
        LockStatus::Held { grant, .. } => *grant,
        LockStatus::Waiting { position } => panic!("not held, at position {position}"),
    }
}
