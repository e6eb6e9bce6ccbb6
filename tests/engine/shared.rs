//! A store that several engines of one process share, as Cassandra is shared: the embedded one, with rows of
//! replicas and questions in memory. Replicas can be cut off from it, and from each other.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use fermata::engine::{
    Engine, EngineError, EngineOptions, Peer, PeerError, Peers, Renewed, SystemClock, SystemIds,
};
use fermata::limits::Limits;
use fermata::lock::{Key, KeyId, ReplicaId, SessionId, State, TableName};
use fermata::store::embedded::{EmbeddedOptions, EmbeddedStore};
use fermata::store::{
    Cell, Listed, Question, ReplicaRow, SessionRow, SessionSwap, Store, StoreError, Swap, Written,
};
use tempfile::TempDir;
use uuid::Uuid;

/// Rows that the embedded store has no use for.
#[derive(Default)]
struct Rows {
    replicas: BTreeMap<ReplicaId, ReplicaRow>,
    questions: Vec<(Question, bool)>,
}

pub struct Shared {
    store: EmbeddedStore,
    rows: Mutex<Rows>,
    _directory: TempDir,
}

/// The way of one replica to the store.
pub struct Way {
    shared: Arc<Shared>,
    /// Nothing comes through: reads and writes.
    cut: Mutex<bool>,
    /// Only beats do not come through.
    mute: Mutex<bool>,
    /// The key that cannot be changed through it.
    stuck: Mutex<Option<KeyId>>,
    /// How long what was loaded takes to come back.
    slow: Mutex<Duration>,
    /// How many swaps of sessions take effect without an answer that says so.
    unheard: Mutex<u32>,
}

impl Way {
    fn open(&self) -> Result<&Shared, StoreError> {
        match *self.cut.lock().unwrap() {
            true => Err(StoreError::Unavailable("cut off".to_owned())),
            false => Ok(&self.shared),
        }
    }

    pub fn cut(&self, cut: bool) {
        *self.cut.lock().unwrap() = cut;
    }

    pub fn mute(&self, mute: bool) {
        *self.mute.lock().unwrap() = mute;
    }

    pub fn stick(&self, id: KeyId) {
        *self.stuck.lock().unwrap() = Some(id);
    }

    pub fn slow(&self, by: Duration) {
        *self.slow.lock().unwrap() = by;
    }

    pub fn unheard(&self, swaps: u32) {
        *self.unheard.lock().unwrap() = swaps;
    }
}

#[async_trait]
impl Store for Way {
    fn kind(&self) -> &'static str {
        "shared"
    }

    fn ready(&self) -> Result<(), StoreError> {
        self.open().map(drop)
    }

    fn is_exclusive(&self) -> bool {
        false
    }

    async fn load(&self, id: &KeyId) -> Result<Option<State>, StoreError> {
        let loaded = self.open()?.store.load(id).await;
        let slow = *self.slow.lock().unwrap();
        if !slow.is_zero() {
            tokio::time::sleep(slow).await;
        }
        loaded
    }

    async fn compare_and_swap(&self, id: &KeyId, old: &State, new: &State) -> Swap {
        if self.stuck.lock().unwrap().as_ref() == Some(id) {
            return Swap::NotStarted(StoreError::Unavailable("stuck".to_owned()));
        }
        match self.open() {
            Ok(shared) => shared.store.compare_and_swap(id, old, new).await,
            Err(error) => Swap::NotStarted(error),
        }
    }

    async fn read_data(&self, id: &KeyId) -> Result<Option<Cell>, StoreError> {
        self.open()?.store.read_data(id).await
    }

    async fn write_data(&self, id: &KeyId, cell: Cell) -> Written {
        match self.open() {
            Ok(shared) => shared.store.write_data(id, cell).await,
            Err(error) => Written::NotStarted(error),
        }
    }

    async fn list_live(
        &self,
        table: &TableName,
        after: Option<&Key>,
        limit: usize,
    ) -> Result<Vec<Listed>, StoreError> {
        self.open()?.store.list_live(table, after, limit).await
    }

    async fn load_session(&self, id: SessionId) -> Result<Option<SessionRow>, StoreError> {
        self.open()?.store.load_session(id).await
    }

    async fn swap_session(&self, expected: u32, row: &SessionRow) -> SessionSwap {
        let swap = match self.open() {
            Ok(shared) => shared.store.swap_session(expected, row).await,
            Err(error) => SessionSwap::NotStarted(error),
        };
        let mut unheard = self.unheard.lock().unwrap();
        if *unheard > 0 && matches!(swap, SessionSwap::Applied) {
            *unheard -= 1;
            return SessionSwap::Unknown(StoreError::Unavailable("no answer".to_owned()));
        }
        swap
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

    async fn announce_replica(&self, row: &ReplicaRow) -> Result<(), StoreError> {
        let rows = &self.open()?.rows;
        rows.lock().unwrap().replicas.insert(row.id, row.clone());
        Ok(())
    }

    async fn list_replicas(
        &self,
        after: Option<ReplicaId>,
        limit: usize,
    ) -> Result<Vec<ReplicaRow>, StoreError> {
        let rows = self.open()?.rows.lock().unwrap();
        let above = rows
            .replicas
            .values()
            .filter(|row| after.is_none_or(|after| row.id > after));
        Ok(above.take(limit).cloned().collect())
    }

    async fn beat(&self, id: ReplicaId, beat: u64, stopped: bool) -> Result<(), StoreError> {
        if *self.mute.lock().unwrap() {
            return Err(StoreError::Unavailable("mute".to_owned()));
        }
        let mut rows = self.open()?.rows.lock().unwrap();
        if let Some(row) = rows.replicas.get_mut(&id)
            && row.beat < beat
        {
            row.beat = beat;
            row.stopped = stopped;
        }
        Ok(())
    }

    async fn ask_replica(&self, question: &Question) -> Result<(), StoreError> {
        let mut rows = self.open()?.rows.lock().unwrap();
        rows.questions.push((question.clone(), false));
        Ok(())
    }

    async fn questions(&self, home: ReplicaId) -> Result<Vec<Question>, StoreError> {
        let rows = self.open()?.rows.lock().unwrap();
        let open = rows
            .questions
            .iter()
            .filter(|(q, yes)| q.home == home && !yes);
        Ok(open.map(|(q, _)| q.clone()).collect())
    }

    async fn consent(&self, question: &Question) -> Result<(), StoreError> {
        let mut rows = self.open()?.rows.lock().unwrap();
        for (asked, yes) in &mut rows.questions {
            *yes |= asked.id == question.id;
        }
        Ok(())
    }

    async fn has_consent(&self, question: &Question) -> Result<bool, StoreError> {
        let rows = self.open()?.rows.lock().unwrap();
        Ok(rows
            .questions
            .iter()
            .any(|(q, yes)| q.id == question.id && *yes))
    }
}

/// Calls between engines of one process.
#[derive(Default)]
pub struct Wires {
    engines: Mutex<BTreeMap<String, Engine>>,
    /// Addresses that cannot be called.
    cut: Mutex<BTreeSet<String>>,
}

impl Wires {
    pub fn cut(&self, address: &str) {
        self.cut.lock().unwrap().insert(address.to_owned());
    }

    fn to(&self, peer: &Peer) -> Option<Engine> {
        if self.cut.lock().unwrap().contains(&peer.address) {
            return None;
        }
        self.engines.lock().unwrap().get(&peer.address).cloned()
    }
}

struct Wired(Arc<Wires>);

#[async_trait]
impl Peers for Wired {
    fn hint(&self, to: &Peer, key: &KeyId, version: u64) {
        if let Some(engine) = self.0.to(to) {
            engine.hinted(key.clone(), version);
        }
    }

    fn session_over(&self, to: &Peer, session: SessionId) {
        if let Some(engine) = self.0.to(to) {
            engine.session_hinted(session);
        }
    }

    async fn renew_session(&self, to: &Peer, session: SessionId) -> Result<Renewed, PeerError> {
        match self.0.to(to) {
            Some(engine) => engine.renew_for(session).await.map_err(PeerError::Refused),
            None => Err(PeerError::Unreachable("cut".to_owned())),
        }
    }
}

/// One replica.
pub struct Replica {
    pub engine: Engine,
    pub way: Arc<Way>,
}

/// Some replicas on one store.
pub struct Service {
    pub replicas: Vec<Replica>,
    pub wires: Arc<Wires>,
}

/// Short, so that a test need not wait long for a replica to be taken for down.
pub const TTL: Duration = Duration::from_millis(2_000);

impl Service {
    pub async fn of(count: usize) -> Service {
        let directory = tempfile::tempdir().unwrap();
        let options = EmbeddedOptions {
            cache_bytes: 4 * 1024 * 1024,
            ..EmbeddedOptions::new(directory.path())
        };
        let shared = Arc::new(Shared {
            store: EmbeddedStore::open(options).unwrap(),
            rows: Mutex::default(),
            _directory: directory,
        });
        let mut service = Service {
            replicas: Vec::new(),
            wires: Arc::default(),
        };
        for number in 0..count {
            let way = Arc::new(Way {
                shared: Arc::clone(&shared),
                cut: Mutex::default(),
                mute: Mutex::default(),
                stuck: Mutex::default(),
                slow: Mutex::default(),
                unheard: Mutex::default(),
            });
            let address = format!("replica-{number}");
            let engine = Engine::start(EngineOptions {
                store: Arc::clone(&way) as Arc<dyn Store>,
                clock: Arc::new(SystemClock),
                ids: Arc::new(SystemIds),
                peers: Arc::new(Wired(Arc::clone(&service.wires))),
                tables: Vec::new(),
                limits: Limits::default(),
                address: "test".to_owned(),
                peer_address: address.clone(),
                replica_ttl: TTL,
            })
            .await
            .unwrap();
            let mut engines = service.wires.engines.lock().unwrap();
            engines.insert(address, engine.clone());
            drop(engines);
            service.replicas.push(Replica { engine, way });
        }
        service
    }

    /// Two replicas, and the engine of each.
    pub async fn two() -> (Service, Engine, Engine) {
        let service = Service::of(2).await;
        let (a, b) = (service.engine(0).clone(), service.engine(1).clone());
        (service, a, b)
    }

    pub fn engine(&self, number: usize) -> &Engine {
        &self.replicas[number].engine
    }

    /// The replica dies at once: it answers nobody, and nobody tells the others.
    pub fn kill(&self, number: usize) {
        self.replicas[number].way.cut(true);
        self.wires.cut(&format!("replica-{number}"));
        self.replicas[number].engine.stop();
    }
}

/// Whose it is, if an error says so.
pub fn elsewhere<T: std::fmt::Debug>(answer: Result<T, EngineError>) -> ReplicaId {
    match answer {
        Err(EngineError::Elsewhere { home, .. }) => home,
        other => panic!("not elsewhere: {other:?}"),
    }
}

/// A request_id.
pub fn some_id() -> Uuid {
    Uuid::new_v4()
}
