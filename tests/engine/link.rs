//! A store that several engines of one process share, as Cassandra is shared: the embedded one, with rows of
//! replicas and hand-over requests in memory. Replicas can be cut off from it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use fermata::clock::Clock;
use fermata::key::KeyState;
use fermata::lock::{Key, KeyId, ReplicaId, SessionId, TableName};
use fermata::store::embedded::{EmbeddedOptions, EmbeddedStore};
use fermata::store::{
    Cell, ClusterStore, DataStore, HandOverRequest, KeyStore, Listed, REPLICAS_MAX, ReplicaRow,
    ReplicaState, SessionRow, SessionStore, SessionSwap, StateSwap, Store, StoreCounts, StoreError,
    StoreHealth, Swap, Written,
};
use tempfile::TempDir;
use uuid::Uuid;

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

/// The way of one replica to the store.
pub struct StoreLink {
    shared: Arc<Shared>,
    /// Nothing comes through: reads and writes.
    cut: Mutex<bool>,
    /// Heartbeats and changes of lives do not come through. What announces a replica does, but is not answered.
    mute: Mutex<bool>,
    /// How many heartbeats get no answer at all.
    hanging: Mutex<u32>,
    /// The key that cannot be changed through it.
    stuck: Mutex<Option<KeyId>>,
    /// How long the rows of the replicas take to come back.
    slow: Mutex<Duration>,
    /// How long a value takes to be written.
    slow_writes: Mutex<Duration>,
    /// How long a change of a key takes.
    slow_keys: Mutex<Duration>,
    /// How long a change of the row of a session takes.
    slow_swaps: Mutex<Duration>,
    /// How many changes of rows of sessions were tried through it.
    swaps: AtomicUsize,
    /// What this replica is asked through the store does not come through.
    deaf: Mutex<bool>,
    clock: Arc<dyn Clock>,
    /// By how much the clock of the store is ahead of that of the replica.
    clock_ahead_us: Mutex<i64>,
    /// How many swaps, of keys or sessions, take effect without an answer that says so.
    unheard: Mutex<u32>,
    /// Whether the next swap of a session gets no answer, and waits to take effect.
    late: Mutex<bool>,
    /// Whether nothing comes through once it waits.
    cuts_then: Mutex<bool>,
    /// The swap of a session that waits.
    held_back: Mutex<Option<(u32, SessionRow)>>,
    /// The session whose row is never read to the end.
    hung: Mutex<Option<SessionId>>,
    /// Whoever reads a value next panics.
    panics: Mutex<bool>,
}

impl StoreLink {
    pub fn to(shared: &Arc<Shared>, clock: &Arc<dyn Clock>) -> Arc<StoreLink> {
        Arc::new(StoreLink {
            shared: Arc::clone(shared),
            clock: Arc::clone(clock),
            clock_ahead_us: Mutex::default(),
            cut: Mutex::default(),
            mute: Mutex::default(),
            hanging: Mutex::default(),
            stuck: Mutex::default(),
            slow: Mutex::default(),
            slow_writes: Mutex::default(),
            slow_keys: Mutex::default(),
            slow_swaps: Mutex::default(),
            swaps: AtomicUsize::default(),
            deaf: Mutex::default(),
            unheard: Mutex::default(),
            late: Mutex::default(),
            cuts_then: Mutex::default(),
            held_back: Mutex::default(),
            hung: Mutex::default(),
            panics: Mutex::default(),
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

    fn open(&self) -> Result<&Shared, StoreError> {
        match *self.cut.lock().unwrap() {
            true => Err(StoreError::Unavailable("cut off".to_owned())),
            false => Ok(&self.shared),
        }
    }

    pub fn cut(&self, cut: bool) {
        *self.cut.lock().unwrap() = cut;
    }

    /// Whoever reads a value next panics.
    pub fn panic_once(&self) {
        *self.panics.lock().unwrap() = true;
    }

    pub fn mute(&self, mute: bool) {
        *self.mute.lock().unwrap() = mute;
    }

    fn is_mute(&self) -> Result<(), StoreError> {
        match *self.mute.lock().unwrap() {
            true => Err(StoreError::Unavailable("mute".to_owned())),
            false => Ok(()),
        }
    }

    /// The next heartbeat gets no answer, those after it do.
    pub fn hang_one_heartbeat(&self) {
        *self.hanging.lock().unwrap() = 1;
    }

    fn hangs(&self) -> bool {
        let mut hanging = self.hanging.lock().unwrap();
        let hangs = *hanging > 0;
        *hanging = hanging.saturating_sub(1);
        hangs
    }

    /// Lists so many replicas that there are too many.
    pub fn list_too_many(&self) {
        let mut rows = self.shared.rows.lock().unwrap();
        for number in 0..=REPLICAS_MAX as u128 {
            let id = ReplicaId(Uuid::from_u128(number));
            let row = rows.replicas.values().next().unwrap().clone();
            rows.replicas.insert(id, ReplicaRow { id, ..row });
        }
    }

    pub fn stick(&self, id: KeyId) {
        *self.stuck.lock().unwrap() = Some(id);
    }

    pub fn slow(&self, by: Duration) {
        *self.slow.lock().unwrap() = by;
    }

    pub fn slow_writes(&self, by: Duration) {
        *self.slow_writes.lock().unwrap() = by;
    }

    pub fn swaps(&self) -> usize {
        self.swaps.load(Ordering::Relaxed)
    }

    pub fn slow_keys(&self, by: Duration) {
        *self.slow_keys.lock().unwrap() = by;
    }

    pub fn slow_swaps(&self, by: Duration) {
        *self.slow_swaps.lock().unwrap() = by;
    }

    pub fn deaf(&self, deaf: bool) {
        *self.deaf.lock().unwrap() = deaf;
    }

    /// The clock of the store shows that much more than the replica's.
    pub fn clock_ahead(&self, seconds: i64) {
        *self.clock_ahead_us.lock().unwrap() = seconds * 1_000_000;
    }

    /// Writes a value past all replicas, with a timestamp of its own.
    pub async fn write_past(&self, id: &KeyId, cell: Cell) {
        let written = self.shared.store.write_data(id, cell).await;
        assert!(matches!(written, Written::Done));
    }

    /// What the store holds of a key.
    pub async fn state(&self, id: &KeyId) -> KeyState {
        self.shared
            .store
            .load(id)
            .await
            .unwrap()
            .unwrap_or_default()
    }

    /// Changes a key past all replicas.
    pub async fn put_state(&self, id: &KeyId, old: &KeyState, new: &KeyState) {
        assert!(self.try_put_state(id, old, new).await);
    }

    /// The same, if nobody changed it before.
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

    /// The next swap of a session gets no answer, and takes effect at [`StoreLink::land`] only.
    pub fn hold_back(&self) {
        *self.late.lock().unwrap() = true;
    }

    /// The same, and nothing else comes through from then on.
    pub fn hold_back_and_cut(&self) {
        self.hold_back();
        *self.cuts_then.lock().unwrap() = true;
    }

    /// Whether one is held back.
    pub fn holds_back(&self) -> bool {
        self.held_back.lock().unwrap().is_some()
    }

    /// What was held back takes effect, if it still can.
    pub async fn land(&self) -> SessionSwap {
        let (expected, row) = self.held_back.lock().unwrap().take().unwrap();
        self.shared.store.swap_session(expected, &row).await
    }

    /// The row of this session is read no more: who asks for it waits.
    pub fn hang(&self, session: SessionId) {
        *self.hung.lock().unwrap() = Some(session);
    }

    pub fn unheard(&self, swaps: u32) {
        *self.unheard.lock().unwrap() = swaps;
    }

    fn is_unheard(&self) -> bool {
        let mut unheard = self.unheard.lock().unwrap();
        let is_unheard = *unheard > 0;
        *unheard = unheard.saturating_sub(1);
        is_unheard
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
        if self.stuck.lock().unwrap().as_ref() == Some(id) {
            return Swap::NotStarted(StoreError::Unavailable("stuck".to_owned()));
        }
        let slow = *self.slow_keys.lock().unwrap();
        if !slow.is_zero() {
            tokio::time::sleep(slow).await;
        }
        let swap = match self.open() {
            Ok(shared) => shared.store.compare_and_swap(id, old, new).await,
            Err(error) => Swap::NotStarted(error),
        };
        match matches!(swap, Swap::Applied) && self.is_unheard() {
            true => Swap::Unknown(StoreError::Unavailable("no answer".to_owned())),
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
        let panics = std::mem::take(&mut *self.panics.lock().unwrap());
        assert!(!panics, "a panic on command");
        self.open()?.store.read_data(id).await
    }

    async fn write_data(&self, id: &KeyId, cell: Cell) -> Written {
        let slow = *self.slow_writes.lock().unwrap();
        if !slow.is_zero() {
            tokio::time::sleep(slow).await;
        }
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
        if *self.hung.lock().unwrap() == Some(id) {
            return std::future::pending().await;
        }
        self.open()?.store.load_session(id).await
    }

    async fn swap_session(&self, expected: u32, row: &SessionRow) -> SessionSwap {
        self.swaps.fetch_add(1, Ordering::Relaxed);
        if std::mem::take(&mut *self.late.lock().unwrap()) {
            if std::mem::take(&mut *self.cuts_then.lock().unwrap()) {
                self.cut(true);
            }
            *self.held_back.lock().unwrap() = Some((expected, row.clone()));
            return SessionSwap::Unknown(StoreError::Unavailable("no answer".to_owned()));
        }
        let slow = *self.slow_swaps.lock().unwrap();
        if !slow.is_zero() {
            tokio::time::sleep(slow).await;
        }
        let swap = match self.open() {
            Ok(shared) => shared.store.swap_session(expected, row).await,
            Err(error) => SessionSwap::NotStarted(error),
        };
        match matches!(swap, SessionSwap::Applied) && self.is_unheard() {
            true => SessionSwap::Unknown(StoreError::Unavailable("no answer".to_owned())),
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
        self.is_mute()
    }

    async fn list_replicas(&self) -> Result<Vec<ReplicaRow>, StoreError> {
        let slow = *self.slow.lock().unwrap();
        if !slow.is_zero() {
            tokio::time::sleep(slow).await;
        }
        let rows = self.open()?.rows.lock().unwrap();
        if rows.replicas.len() > REPLICAS_MAX {
            return Err(StoreError::Damaged("too many".to_owned()));
        }
        Ok(rows.replicas.values().cloned().collect())
    }

    async fn heartbeat(&self, id: ReplicaId, heartbeat: u64) -> Result<(), StoreError> {
        self.is_mute()?;
        if self.hangs() {
            return std::future::pending().await;
        }
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
        let shared = match self.is_mute().and_then(|()| self.open()) {
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
        if *self.deaf.lock().unwrap() {
            return Err(StoreError::Unavailable("deaf".to_owned()));
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
        let ahead_us = *self.clock_ahead_us.lock().unwrap();
        Ok(self.clock.wall_us().saturating_add_signed(ahead_us))
    }
}
