//! A store that several engines of one process share, as Cassandra is shared: the embedded one, with rows of
//! replicas and hand-over requests in memory. Replicas can be cut off from it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use fermata::clock::Clock;
use fermata::key::KeyState;
use fermata::lock::{Key, KeyId, ReplicaId, SessionId, TableName};
use fermata::store::embedded::{EmbeddedOptions, EmbeddedStore};
use fermata::store::{
    Cell, ClusterStore, DataStore, HandOverRequest, KeyStore, Listed, ReplicaRow, ReplicaState,
    SessionRow, SessionStore, SessionSwap, StateSwap, Store, StoreCounts, StoreError, StoreHealth,
    Swap, Written,
};
use tempfile::TempDir;

/// Rows that the embedded store has no use for.
#[derive(Default)]
struct Rows {
    replicas: BTreeMap<ReplicaId, ReplicaRow>,
    hand_over_requests: Vec<HandOverRequest>,
}

pub struct Shared {
    store: EmbeddedStore,
    rows: Mutex<Rows>,
    _directory: TempDir,
}

impl Shared {
    pub fn new() -> Arc<Shared> {
        let directory = tempfile::tempdir().unwrap();
        let options = EmbeddedOptions {
            cache_bytes: 4 * 1024 * 1024,
            ..EmbeddedOptions::new(directory.path())
        };
        Arc::new(Shared {
            store: EmbeddedStore::open(options).unwrap(),
            rows: Mutex::default(),
            _directory: directory,
        })
    }
}

/// What goes wrong between one replica and the store.
#[derive(Default)]
pub struct Faults {
    /// Nothing comes through: reads and writes.
    pub cut: bool,
    /// Heartbeats and changes of lives do not come through. What announces a replica does, but is not answered.
    pub mute: bool,
    /// The key that cannot be changed.
    pub stuck: Option<KeyId>,
    /// No change of a key comes to the store for as long as this holds.
    pub holds_keys: bool,
    /// How long the rows of the replicas take to come back.
    pub slow_lists: Duration,
    /// How long a value takes to be written.
    pub slow_writes: Duration,
    /// How long a change of the row of a session takes.
    pub slow_sessions: Duration,
    /// What this replica is asked through the store does not come through.
    pub deaf: bool,
    /// By how much the clock of the store is ahead of that of the replica.
    pub clock_ahead_us: i64,
    /// How many swaps, of keys or sessions, take effect without an answer that says so.
    pub unheard: u32,
    /// The next swap of a session gets no answer, and takes effect at [`StoreLink::land`] only.
    pub late: bool,
    /// Nothing comes through once that swap waits.
    pub cuts_then: bool,
    /// The session whose row is never read to the end: who asks for it waits.
    pub hung: Option<SessionId>,
    /// Whoever reads a value next panics.
    pub panics: bool,
}

/// The way of one replica to the store.
pub struct StoreLink {
    shared: Arc<Shared>,
    clock: Arc<dyn Clock>,
    faults: Mutex<Faults>,
    /// How many changes of rows of sessions were tried through it.
    swaps: AtomicUsize,
    /// The swap of a session that waits.
    held_back: Mutex<Option<(u32, SessionRow)>>,
}

fn broken(what: &str) -> StoreError {
    StoreError::Unavailable(what.to_owned())
}

impl StoreLink {
    pub fn to(shared: &Arc<Shared>, clock: &Arc<dyn Clock>) -> Arc<StoreLink> {
        Arc::new(StoreLink {
            shared: Arc::clone(shared),
            clock: Arc::clone(clock),
            faults: Mutex::default(),
            swaps: AtomicUsize::default(),
            held_back: Mutex::default(),
        })
    }

    /// Another one to the same store.
    pub fn beside(&self) -> Arc<StoreLink> {
        StoreLink::to(&self.shared, &self.clock)
    }

    /// The handles of it.
    pub fn handles(self: &Arc<Self>) -> Store {
        Store {
            kind: "shared",
            health: Arc::clone(self) as _,
            keys: Arc::clone(self) as _,
            data: Arc::clone(self) as _,
            sessions: Arc::clone(self) as _,
            backups: None,
            cluster: Some(Arc::clone(self) as _),
        }
    }

    fn faults(&self) -> MutexGuard<'_, Faults> {
        self.faults.lock().unwrap()
    }

    /// From here on something else goes wrong.
    pub fn set(&self, change: impl FnOnce(&mut Faults)) {
        change(&mut self.faults());
    }

    pub fn cut(&self, cut: bool) {
        self.set(|faults| faults.cut = cut);
    }

    pub fn mute(&self, mute: bool) {
        self.set(|faults| faults.mute = mute);
    }

    pub fn stick(&self, id: KeyId) {
        self.set(|faults| faults.stuck = Some(id));
    }

    fn open(&self) -> Result<&Shared, StoreError> {
        match self.faults().cut {
            true => Err(broken("cut off")),
            false => Ok(&self.shared),
        }
    }

    fn speaks(&self) -> Result<(), StoreError> {
        match self.faults().mute {
            true => Err(broken("mute")),
            false => Ok(()),
        }
    }

    async fn pause(&self, of: fn(&Faults) -> Duration) {
        let span = of(&self.faults());
        if !span.is_zero() {
            tokio::time::sleep(span).await;
        }
    }

    fn is_unheard(&self) -> bool {
        let unheard = &mut self.faults().unheard;
        let is_unheard = *unheard > 0;
        *unheard = unheard.saturating_sub(1);
        is_unheard
    }

    pub fn swaps(&self) -> usize {
        self.swaps.load(Ordering::Relaxed)
    }

    /// Writes a value past all replicas, with a timestamp of its own.
    pub async fn write_past(&self, id: &KeyId, cell: Cell) {
        let written = self.shared.store.write_data(id, cell).await;
        assert!(matches!(written, Written::Done));
    }

    /// What the store holds of a key.
    pub async fn state(&self, id: &KeyId) -> KeyState {
        let state = self.shared.store.load(id).await.unwrap();
        state.unwrap_or_default()
    }

    /// Changes a key past all replicas, if nobody changed it before.
    pub async fn try_put_state(&self, id: &KeyId, old: &KeyState, new: &KeyState) -> bool {
        let swap = self.shared.store.compare_and_swap(id, old, new).await;
        matches!(swap, Swap::Applied)
    }

    /// The state of a replica; `None` where it has no row.
    pub fn replica_state(&self, id: ReplicaId) -> Option<ReplicaState> {
        let rows = self.shared.rows.lock().unwrap();
        rows.replicas.get(&id).map(|row| row.state)
    }

    /// Whether anybody asks for a key through the store.
    pub fn is_asked(&self) -> bool {
        let rows = self.shared.rows.lock().unwrap();
        !rows.hand_over_requests.is_empty()
    }

    /// Whether a swap is held back.
    pub fn holds_back(&self) -> bool {
        self.held_back.lock().unwrap().is_some()
    }

    /// What was held back takes effect, if it still can.
    pub async fn land(&self) -> SessionSwap {
        let (expected, row) = self.held_back.lock().unwrap().take().unwrap();
        self.shared.store.swap_session(expected, &row).await
    }
}

impl StoreHealth for StoreLink {
    fn ready(&self) -> Result<(), StoreError> {
        self.open().map(drop)
    }

    fn counts(&self) -> StoreCounts {
        StoreCounts::default()
    }
}

#[async_trait]
impl KeyStore for StoreLink {
    async fn load(&self, id: &KeyId) -> Result<Option<KeyState>, StoreError> {
        self.open()?.store.load(id).await
    }

    async fn load_settled(&self, id: &KeyId) -> Result<Option<KeyState>, StoreError> {
        self.open()?.store.load_settled(id).await
    }

    async fn compare_and_swap(&self, id: &KeyId, old: &KeyState, new: &KeyState) -> Swap {
        if self.faults().stuck.as_ref() == Some(id) {
            return Swap::NotStarted(broken("stuck"));
        }
        while self.faults().holds_keys {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        let swap = match self.open() {
            Ok(shared) => shared.store.compare_and_swap(id, old, new).await,
            Err(error) => Swap::NotStarted(error),
        };
        match matches!(swap, Swap::Applied) && self.is_unheard() {
            true => Swap::Unknown(broken("no answer")),
            false => swap,
        }
    }

    async fn list_live(
        &self,
        table: &TableName,
        prefix: &str,
        after: Option<&Key>,
        limit: usize,
    ) -> Result<Vec<Listed>, StoreError> {
        let store = &self.open()?.store;
        store.list_live(table, prefix, after, limit).await
    }

    async fn each_live(
        &self,
        table: &TableName,
        visit: &(dyn Fn(Key, Option<ReplicaId>) + Sync),
    ) -> Result<(), StoreError> {
        self.open()?.store.each_live(table, visit).await
    }
}

#[async_trait]
impl DataStore for StoreLink {
    async fn read_data(&self, id: &KeyId) -> Result<Option<Cell>, StoreError> {
        let panics = std::mem::take(&mut self.faults().panics);
        assert!(!panics, "a panic on command");
        self.open()?.store.read_data(id).await
    }

    async fn write_data(&self, id: &KeyId, cell: Cell) -> Written {
        self.pause(|faults| faults.slow_writes).await;
        match self.open() {
            Ok(shared) => shared.store.write_data(id, cell).await,
            Err(error) => Written::NotStarted(error),
        }
    }

    fn ahead_us_max(&self) -> Option<u64> {
        // Two days, as Cassandra.
        Some(2 * 24 * 3_600 * 1_000_000)
    }
}

#[async_trait]
impl SessionStore for StoreLink {
    async fn load_session(&self, id: SessionId) -> Result<Option<SessionRow>, StoreError> {
        if self.faults().hung == Some(id) {
            return std::future::pending().await;
        }
        self.open()?.store.load_session(id).await
    }

    async fn swap_session(&self, expected: u32, row: &SessionRow) -> SessionSwap {
        self.swaps.fetch_add(1, Ordering::Relaxed);
        if std::mem::take(&mut self.faults().late) {
            if self.faults().cuts_then {
                self.cut(true);
            }
            *self.held_back.lock().unwrap() = Some((expected, row.clone()));
            return SessionSwap::Unknown(broken("no answer"));
        }
        self.pause(|faults| faults.slow_sessions).await;
        let swap = match self.open() {
            Ok(shared) => shared.store.swap_session(expected, row).await,
            Err(error) => SessionSwap::NotStarted(error),
        };
        match matches!(swap, SessionSwap::Applied) && self.is_unheard() {
            true => SessionSwap::Unknown(broken("no answer")),
            false => swap,
        }
    }

    async fn forget_session(&self, id: SessionId) -> Result<(), StoreError> {
        self.open()?.store.forget_session(id).await
    }

    async fn list_sessions(
        &self,
        after: Option<SessionId>,
        limit: usize,
    ) -> Result<Vec<SessionRow>, StoreError> {
        self.open()?.store.list_sessions(after, limit).await
    }

    async fn each_session(&self, visit: &(dyn Fn(SessionRow) + Sync)) -> Result<(), StoreError> {
        self.open()?.store.each_session(visit).await
    }
}

#[async_trait]
impl ClusterStore for StoreLink {
    async fn announce_replica(&self, row: &ReplicaRow) -> Result<(), StoreError> {
        let rows = &self.open()?.rows;
        rows.lock().unwrap().replicas.insert(row.id, row.clone());
        self.speaks()
    }

    async fn list_replicas(&self) -> Result<Vec<ReplicaRow>, StoreError> {
        self.pause(|faults| faults.slow_lists).await;
        let rows = self.open()?.rows.lock().unwrap();
        Ok(rows.replicas.values().cloned().collect())
    }

    async fn heartbeat(&self, id: ReplicaId, heartbeat: u64) -> Result<(), StoreError> {
        self.speaks()?;
        let mut rows = self.open()?.rows.lock().unwrap();
        if let Some(row) = rows.replicas.get_mut(&id) {
            row.heartbeat = row.heartbeat.max(heartbeat);
        }
        Ok(())
    }

    async fn swap_state(
        &self,
        id: ReplicaId,
        expected: ReplicaState,
        next: ReplicaState,
    ) -> StateSwap {
        let shared = match self.speaks().and_then(|()| self.open()) {
            Ok(shared) => shared,
            Err(error) => return StateSwap::NotStarted(error),
        };
        let mut rows = shared.rows.lock().unwrap();
        match rows.replicas.get_mut(&id) {
            Some(row) if row.state == expected => {
                row.state = next;
                StateSwap::Applied
            }
            other => StateSwap::Conflict(other.map(|row| row.state)),
        }
    }

    async fn forget_replica(&self, id: ReplicaId) -> Result<(), StoreError> {
        let mut rows = self.open()?.rows.lock().unwrap();
        rows.replicas
            .retain(|of, row| *of != id || matches!(row.state, ReplicaState::Up(_)));
        Ok(())
    }

    async fn request_hand_over(&self, request: &HandOverRequest) -> Result<(), StoreError> {
        let mut rows = self.open()?.rows.lock().unwrap();
        rows.hand_over_requests.push(request.clone());
        Ok(())
    }

    async fn hand_over_requests(
        &self,
        home: ReplicaId,
    ) -> Result<Vec<HandOverRequest>, StoreError> {
        if self.faults().deaf {
            return Err(broken("deaf"));
        }
        let rows = self.open()?.rows.lock().unwrap();
        let open = rows.hand_over_requests.iter().filter(|r| r.home == home);
        Ok(open.cloned().collect())
    }

    async fn forget_hand_over_request(&self, request: &HandOverRequest) -> Result<(), StoreError> {
        let mut rows = self.open()?.rows.lock().unwrap();
        rows.hand_over_requests.retain(|other| other != request);
        Ok(())
    }

    async fn clock_us(&self) -> Result<u64, StoreError> {
        self.open()?;
        let ahead_us = self.faults().clock_ahead_us;
        Ok(self.clock.wall_us().saturating_add_signed(ahead_us))
    }
}
