//! Several replicas of one process on a store that they share, which call each other unless that is cut.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use fermata::clock::{Clock, SystemClock, SystemIds};
use fermata::engine::{
    EngineError, EngineOptions, Packing, Peer, PeerError, Peers, Presence, Renewed,
};
use fermata::limits::Limits;
use fermata::lock::{KeyId, ReplicaId, SessionId, TableName};
use uuid::Uuid;

use super::history::{CheckedAtEnd, Recorder};
use super::link::{Shared, StoreLink};
use super::recorded::Engine;
use super::world::{PACKED_AT_ONCE, until};

/// Calls between engines of one process.
#[derive(Default)]
pub struct Wires {
    engines: Mutex<BTreeMap<String, Engine>>,
    /// Addresses that cannot be called.
    cut: Mutex<BTreeSet<String>>,
    /// Addresses that do not answer who leaves.
    hangs: Mutex<BTreeSet<String>>,
    /// Keys whose next home was told so.
    handed: Mutex<BTreeSet<String>>,
}

impl Wires {
    /// From here on who leaves hears nothing from this address.
    pub fn hang(&self, address: &str) {
        self.hangs.lock().unwrap().insert(address.to_owned());
    }

    /// Whether the next home of this key was told so.
    pub fn has_handed(&self, key: &str) -> bool {
        self.handed.lock().unwrap().contains(key)
    }

    pub fn cut(&self, address: &str) {
        self.cut.lock().unwrap().insert(address.to_owned());
    }

    fn to(&self, peer: &Peer) -> Option<Engine> {
        if self.cut.lock().unwrap().contains(&peer.peer_address) {
            return None;
        }
        let engines = self.engines.lock().unwrap();
        engines.get(&peer.peer_address).cloned()
    }

    fn reach(&self, peer: &Peer) -> Result<Engine, PeerError> {
        let unreachable = || PeerError::Unreachable("cut".to_owned());
        self.to(peer).ok_or_else(unreachable)
    }
}

struct Wired(Arc<Wires>);

#[async_trait]
impl Peers for Wired {
    fn handed_over(&self, to: &Peer, key: &KeyId, term: u64) {
        self.0.handed.lock().unwrap().insert(key.key.to_string());
        if let Some(engine) = self.0.to(to) {
            let _ = engine.handed_over(key.clone(), term);
        }
    }

    fn session_given(&self, to: &Peer, session: SessionId) {
        if let Some(engine) = self.0.to(to) {
            engine.session_given(session);
        }
    }

    async fn sessions_ended(
        &self,
        to: &Peer,
        sessions: &[SessionId],
    ) -> Result<Vec<SessionId>, PeerError> {
        let engine = self.0.reach(to)?;
        Ok(engine.sessions_ended_elsewhere(sessions.to_vec()).await)
    }

    async fn leaving(&self, to: &Peer, id: ReplicaId) -> Result<(), PeerError> {
        let hangs = self.0.hangs.lock().unwrap().contains(&to.peer_address);
        if hangs {
            std::future::pending::<()>().await;
        }
        self.0.reach(to)?.note_leaving(id);
        Ok(())
    }

    async fn renew_session(&self, to: &Peer, session: SessionId) -> Result<Renewed, PeerError> {
        let kept = self.0.reach(to)?.renew_kept(session).await;
        kept.map_err(PeerError::Refused)
    }
}

/// One replica.
pub struct Replica {
    pub engine: Engine,
    pub link: Arc<StoreLink>,
}

/// Some replicas on one store.
pub struct Service {
    pub replicas: Vec<Replica>,
    pub wires: Arc<Wires>,
    pub history: Recorder,
    /// Whatever was answered in the test.
    _checked: CheckedAtEnd,
}

/// Short, so that a test need not wait long for a replica to be taken for down.
pub const TTL: Duration = Duration::from_millis(2_000);

impl Service {
    pub async fn of(count: usize) -> Service {
        Service::with_ttls(&vec![TTL; count]).await
    }

    /// One replica for each of these replica TTLs.
    pub async fn with_ttls(replica_ttls: &[Duration]) -> Service {
        Service::at(Arc::new(SystemClock), replica_ttls).await
    }

    /// The same, all by this clock.
    pub async fn at(clock: Arc<dyn Clock>, replica_ttls: &[Duration]) -> Service {
        Service::made_of(clock, replica_ttls, &[], |options| options).await
    }

    /// So many that answer from memory.
    pub async fn writing_back(count: usize) -> Service {
        let (clock, ttls) = (Arc::new(SystemClock), vec![TTL; count]);
        let service = Service::made_of(clock, &ttls, &[], |options| EngineOptions {
            write_back: BTreeSet::from([TableName::default_table()]),
            ..options
        });
        let service = service.await;
        service.know_each_other().await;
        service
    }

    /// One replica in each of these zones.
    pub async fn in_zones(zones: &[&str]) -> Service {
        let (clock, ttls) = (Arc::new(SystemClock), vec![TTL; zones.len()]);
        let service = Service::made_of(clock, &ttls, zones, |options| options).await;
        service.know_each_other().await;
        service
    }

    /// Two that pack whatever they can at once. They remember no values, which would keep them from that.
    pub async fn packing(write_back: bool) -> Service {
        let tables = BTreeSet::from_iter(write_back.then(TableName::default_table));
        let clock = Arc::new(SystemClock);
        let service = Service::made_of(clock, &[TTL; 2], &[], |options| EngineOptions {
            write_back: tables.clone(),
            packing: PACKED_AT_ONCE,
            limits: Limits {
                remembered_value_bytes_max: 0,
                ..Limits::default()
            },
            ..options
        });
        let service = service.await;
        service.know_each_other().await;
        service
    }

    /// In these zones, as far as there are so many, and with these options changed.
    async fn made_of(
        clock: Arc<dyn Clock>,
        replica_ttls: &[Duration],
        zones: &[&str],
        changed: impl Fn(EngineOptions) -> EngineOptions,
    ) -> Service {
        let shared = Shared::new();
        let history = Recorder::new();
        let mut service = Service {
            replicas: Vec::new(),
            wires: Arc::default(),
            _checked: history.checked_at_end("several replicas"),
            history,
        };
        for (number, &replica_ttl) in replica_ttls.iter().enumerate() {
            let link = StoreLink::to(&shared, &clock);
            let address = format!("replica-{number}");
            let options = changed(EngineOptions {
                clock: Arc::clone(&clock),
                replica_ttl,
                zone: zones.get(number).copied().unwrap_or_default().to_owned(),
                ..service.options(&link, &address)
            });
            let engine = fermata::engine::Engine::start(options).await.unwrap();
            let engine = Engine::new(engine, &service.history, &format!("at {number}"));
            let mut engines = service.wires.engines.lock().unwrap();
            engines.insert(address, engine.clone());
            drop(engines);
            service.replicas.push(Replica { engine, link });
        }
        service
    }

    /// Those of one more replica, by the system's clock.
    pub fn options(&self, link: &Arc<StoreLink>, address: &str) -> EngineOptions {
        EngineOptions {
            store: link.handles(),
            clock: Arc::new(SystemClock),
            ids: Arc::new(SystemIds),
            peers: Arc::new(Wired(Arc::clone(&self.wires))),
            tables: Vec::new(),
            write_back: BTreeSet::new(),
            limits: Limits::default(),
            name: address.to_owned(),
            zone: String::new(),
            address: "test".to_owned(),
            peer_address: address.to_owned(),
            packing: Packing::default(),
            replica_ttl: TTL,
        }
    }

    /// Two replicas that know each other, and the engine of each.
    pub async fn two() -> (Service, Engine, Engine) {
        let service = Service::of(2).await;
        service.know_each_other().await;
        let (a, b) = (service.engine(0).clone(), service.engine(1).clone());
        (service, a, b)
    }

    /// Waits until every replica knows that the others are live.
    pub async fn know_each_other(&self) {
        let engines = || self.replicas.iter().map(|replica| &replica.engine);
        let knows = |one: &Engine, other: &Engine| {
            let presence = one.presence(other.replica());
            matches!(presence, Presence::Local | Presence::Live(_))
        };
        until("the replicas know each other", || async {
            engines().all(|one| engines().all(|other| knows(one, other)))
        })
        .await;
    }

    pub fn engine(&self, number: usize) -> &Engine {
        &self.replicas[number].engine
    }

    /// The replica crashes at once: it answers nobody, and nobody tells the others.
    pub fn kill(&self, number: usize) {
        self.replicas[number].link.cut(true);
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
