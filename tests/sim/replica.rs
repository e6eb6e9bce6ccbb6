//! One replica: the real engine and the real services, on the simulated network and store. It crashes and starts anew
//! as the seed says; a crashed one's tasks run on for a while, but nothing that they do gets anywhere.

use std::convert::Infallible;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fermata::clock::Ids;
use fermata::engine::{Engine, EngineOptions, Packing};
use fermata::limits::Limits;
use fermata::rpc::call_layer::CallLayer;
use fermata::rpc::peer::{Dial, PeerClient, PeerSecret};
use fermata::rpc::peer_service::PeerRpc;
use fermata::rpc::stopping::Stopping;
use fermata::server::{Server, http2_of_peers};
use futures_util::StreamExt as _;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::sleep;
use tokio_stream::wrappers::UnboundedReceiverStream;

use super::clocks::{HostClock, HostIds, Sleeper};
use super::net::{End, Net, Node};
use super::rng::Rng;
use super::store::StoreLink;
use super::world::World;

/// So that keys are packed, and used again, many times within a seed.
const PACKING: Packing = Packing {
    unused_for: Duration::from_millis(20),
    every: Duration::from_millis(50),
    parts: 1,
};

/// One host that runs replicas, one after the other.
pub struct ReplicaHost {
    pub host: usize,
    pub name: String,
    pub clock: Arc<HostClock>,
    replica_ttl: Duration,
    zone: String,
    keys_max: usize,
    /// Whether it remembers values: keys of which it does are not packed.
    remembers: bool,
    rng: Mutex<Rng>,
    running: Mutex<Option<Running>>,
    lives: AtomicU32,
    /// How many times those that are gone packed a key.
    packed: AtomicU64,
    /// When its machine was moved last.
    moved_at: Mutex<Option<Duration>>,
}

struct Running {
    node: Node,
    link: Arc<StoreLink>,
    engine: Engine,
    serving: JoinHandle<()>,
    /// Asks for an orderly end.
    stop: Option<oneshot::Sender<()>>,
}

/// Where clients, and other replicas, call a host.
pub fn addresses(host: usize) -> [String; 2] {
    [format!("replica-{host}:1"), format!("replica-{host}:2")]
}

/// The connections of a process, to any address of the form `replica-N:port`.
pub fn dial(net: &Net, node: Node) -> Dial {
    let net = net.clone();
    Arc::new(move |uri| {
        let net = net.clone();
        Box::pin(async move {
            let address = uri.authority().map(ToString::to_string).unwrap_or_default();
            let host = address
                .strip_prefix("replica-")
                .and_then(|rest| rest.split(':').next());
            let host = host
                .and_then(|host| host.parse().ok())
                .unwrap_or(usize::MAX);
            let end: End = net.connect(node, host, &address).await?;
            Ok(Box::new(end) as Box<dyn fermata::rpc::peer::Wire>)
        })
    })
}

impl ReplicaHost {
    pub fn new(
        host: usize,
        replica_ttl: Duration,
        clock: Arc<HostClock>,
        mut rng: Rng,
    ) -> ReplicaHost {
        ReplicaHost {
            host,
            name: format!("replica-{host}"),
            clock,
            replica_ttl,
            keys_max: [2, 1_000][rng.below(2) as usize],
            zone: ["", "north", "south"][rng.below(3) as usize].to_owned(),
            remembers: rng.below(3) == 0,
            rng: Mutex::new(rng),
            running: Mutex::new(None),
            lives: AtomicU32::new(0),
            packed: AtomicU64::new(0),
            moved_at: Mutex::default(),
        }
    }

    pub fn is_running(&self) -> bool {
        self.running.lock().unwrap().is_some()
    }

    /// How many times a key was packed here.
    pub fn packed(&self) -> u64 {
        let running = self.running.lock().unwrap();
        let packed = running.as_ref().map(|one| one.engine.counts().packed_keys);
        self.packed.load(Ordering::Relaxed) + packed.unwrap_or(0)
    }

    /// The way to the store of the one that runs.
    pub fn link(&self) -> Option<Arc<StoreLink>> {
        let running = self.running.lock().unwrap();
        running.as_ref().map(|running| Arc::clone(&running.link))
    }

    /// Its virtual machine is to be moved; for how long it stands still then. Not twice within two replica TTLs.
    pub fn move_guest(&self, now: Duration) -> Option<Duration> {
        let mut moved_at = self.moved_at.lock().unwrap();
        if moved_at.is_some_and(|at| now - at < 2 * self.replica_ttl) {
            return None;
        }
        *moved_at = Some(now);
        Some(self.replica_ttl / 20)
    }

    /// Starts a new one, unless one runs.
    pub fn start(&self, world: &Arc<World>) {
        if self.is_running() {
            return;
        }
        let life = 1 + self.lives.fetch_add(1, Ordering::Relaxed);
        let host = self.host;
        let node = Node { host, life };
        let mut rng = self.rng.lock().unwrap().fork();
        let name = format!("{}.{life}", self.name);
        world.log.note(&name, "starts");
        let link = StoreLink::new(&world.cluster, name.clone(), &self.clock, rng.fork());
        world.weather(self.host, &link);
        let mut limits = Limits {
            // Keys are forgotten, and taken over from itself.
            active_keys_max: self.keys_max,
            ..Limits::default()
        };
        if !self.remembers {
            limits.remembered_value_bytes_max = 0;
        }
        let engine = Engine::waiting(Vec::new(), limits, "it starts");
        world.cluster.runs(&engine);
        let ids: Arc<dyn Ids> = Arc::new(HostIds::new(rng.fork()));
        let secret = PeerSecret::parse("the secret of the replicas").unwrap();
        let peers = PeerClient::new(secret, &Limits::default()).with_dial(dial(&world.net, node));
        let peers = Arc::new(peers);
        let [for_clients, for_peers] = addresses(self.host);
        let options = || EngineOptions {
            store: link.store(),
            clock: Arc::new(Sleeper(Arc::clone(&self.clock))),
            ids: Arc::clone(&ids),
            peers: Arc::clone(&peers) as _,
            tables: Vec::new(),
            write_back: world.write_back.clone(),
            limits: Limits::default(),
            name: self.name.clone(),
            zone: self.zone.clone(),
            address: for_clients.clone(),
            peer_address: for_peers.clone(),
            packing: PACKING,
            replica_ttl: self.replica_ttl,
        };
        let tries: Vec<EngineOptions> = (0..STARTS_MAX).map(|_| options()).collect();
        let beginning = begin(engine.clone(), tries);
        let ends = |address: &str| {
            UnboundedReceiverStream::new(world.net.listen(node, address)).map(Ok::<_, Infallible>)
        };
        let (clients, others) = (ends(&for_clients), ends(&for_peers));
        let (stop, stopped) = oneshot::channel::<()>();
        let grace = rng.ms(500, 8_000);
        let server = Server::new(engine.clone(), Arc::clone(&ids))
            .with_peers(Arc::clone(&peers), Vec::new())
            .with_grace(grace);
        let (end_streams, stopping) = Stopping::pair();
        let service = PeerRpc::new(engine.clone(), stopping.clone(), ids).guarded(&peers);
        let between = http2_of_peers(&Limits::default())
            .layer(CallLayer::new(&Limits::default(), stopping))
            .add_service(service)
            .serve_with_incoming(others);
        let (log, served) = (Arc::clone(&world.log), engine.clone());
        let (net, ended) = (world.net.clone(), Arc::clone(&link));
        let serving = tokio::spawn(async move {
            let to_clients = server.serve(clients, async move {
                let _ = stopped.await;
            });
            tokio::pin!(to_clients);
            let work = async { tokio::join!(between, beginning) };
            tokio::pin!(work);
            tokio::select! {
                biased;
                ended = &mut to_clients => log.note(&name, format_args!("stopped: {ended:?}")),
                _ = &mut work => log.violation("the service between replicas ended"),
            }
            end_streams.now();
            served.leave(grace).await;
            log.note(&name, "handed over, and ends");
            net.kill(node, true);
            ended.kill();
        });
        *self.running.lock().unwrap() = Some(Running {
            node,
            link,
            engine,
            serving,
            stop: Some(stop),
        });
    }

    /// It is gone at once. `is_heard`: only the process, so that its connections break; else they fall silent.
    pub fn kill(&self, world: &World, is_heard: bool) {
        let Some(running) = self.running.lock().unwrap().take() else {
            return;
        };
        let packed = running.engine.counts().packed_keys;
        self.packed.fetch_add(packed, Ordering::Relaxed);
        let how = match is_heard {
            true => "is killed",
            false => "falls silent for good",
        };
        world.log.fault(&self.name, how);
        running.link.kill();
        world.net.kill(running.node, is_heard);
        running.serving.abort();
        running.engine.stop();
        // Nothing of that gets anywhere; its tasks end.
        tokio::spawn(async move { running.engine.leave(Duration::from_secs(10)).await });
    }

    /// One runs, and was not asked to stop.
    pub fn revive(&self, world: &Arc<World>) {
        let is_stopping = {
            let running = self.running.lock().unwrap();
            running
                .as_ref()
                .is_some_and(|running| running.stop.is_none())
        };
        if is_stopping {
            self.kill(world, true);
        }
        self.start(world);
    }

    /// It is asked to stop, and has a while to do so.
    pub fn stop(&self, world: &World) {
        let mut running = self.running.lock().unwrap();
        if let Some(stop) = running.as_mut().and_then(|running| running.stop.take()) {
            world.log.fault(&self.name, "is asked to stop");
            let _ = stop.send(());
        }
    }
}

/// How often a start is tried.
const STARTS_MAX: usize = 40;

/// Starts the engine, as `serve` does on a cluster.
async fn begin(engine: Engine, tries: Vec<EngineOptions>) {
    let mut pause = Duration::from_millis(100);
    for options in tries {
        if engine.begin(options).await.is_ok() {
            break;
        }
        sleep(pause).await;
        pause = (pause * 2).min(Duration::from_secs(5));
    }
    std::future::pending::<()>().await;
}
