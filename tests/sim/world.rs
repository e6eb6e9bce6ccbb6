//! A whole simulation: hosts, network, store, and what goes on among them, from one seed.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Once, OnceLock};
use std::time::Duration;

use fermata::lock::TableName;
use fermata_client::Client;
use tokio::time::sleep;

use super::beliefs::Beliefs;
use super::client::{self, ClientHost};
use super::clocks::{GlobalClock, HostClock};
use super::counter::Counters;
use super::faults;
use super::history::{Learned, Op, Outcome, Recorder};
use super::log::{self, Log};
use super::log_tap;
use super::net::{Net, Node};
use super::replica::ReplicaHost;
use super::rng::Rng;
use super::store::{Cluster, StoreLink, Weather};
use super::system;

/// How long things go wrong.
const TROUBLE: Duration = Duration::from_secs(30);
/// After that everybody who asks has its turn within this …
const TURNS_WITHIN: Duration = Duration::from_secs(60);
/// … and then no entry is left within this.
const EMPTY_WITHIN: Duration = Duration::from_secs(45);

pub struct World {
    pub log: Arc<Log>,
    pub net: Net,
    pub cluster: Arc<Cluster>,
    pub counters: Counters,
    pub history: Recorder,
    pub replicas: Vec<ReplicaHost>,
    pub clients: Vec<ClientHost>,
    /// The tables whose homes answer from memory: all of half of the seeds.
    pub write_back: BTreeSet<TableName>,
    keys: usize,
    is_healed: AtomicBool,
    /// Of all ways to the store, and of each one.
    pub weather: std::sync::Mutex<Vec<Weather>>,
    /// Who ends locks by force.
    operator: OnceLock<Client>,
}

thread_local! {
    /// How many panics there were in this thread. A task that panics takes nobody with it.
    static PANICS: Cell<u64> = const { Cell::new(0) };
}

/// Runs one seed from beginning to end, in a thread of its own.
pub fn run(seed: u64) -> log::Outcome {
    static COUNTED: Once = Once::new();
    COUNTED.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            PANICS.set(PANICS.get() + 1);
            usual(panic);
        }));
    });
    let work = move || {
        system::take_over(seed);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        // What the client library returns is not always seen to be Send.
        let local = tokio::task::LocalSet::new();
        runtime.block_on(local.run_until(simulate(seed)))
    };
    let thread = std::thread::Builder::new().name("simulation".to_owned());
    thread.spawn(work).unwrap().join().unwrap()
}

async fn simulate(seed: u64) -> log::Outcome {
    let mut rng = Rng::new(seed);
    let world = World::new(&mut rng);
    let _heard = log_tap::listen(&world.log);
    for replica in &world.replicas {
        replica.start(&world);
    }
    sleep(Duration::from_millis(500)).await;
    for client in &world.clients {
        client.start(&world);
    }
    faults::trouble(&world, rng.fork(), TROUBLE).await;
    faults::heal(&world);
    world.is_healed.store(true, Ordering::Relaxed);
    world.log.note("world", "all is well from here on");
    let begun = world.log.now();
    while world.log.now() < begun + TURNS_WITHIN && !world.clients.iter().all(ClientHost::is_done) {
        sleep(Duration::from_millis(100)).await;
    }
    for client in world.clients.iter().filter(|client| !client.is_done()) {
        let words = format!("{} got no turn within {TURNS_WITHIN:?}", client.name);
        world.log.violation(words);
    }
    let turns = world.log.now() - begun;
    while world.log.now() < begun + turns + EMPTY_WITHIN && !world.cluster.left().is_empty() {
        sleep(Duration::from_millis(100)).await;
    }
    for left in world.cluster.left() {
        world
            .log
            .violation(format_args!("left in their queue: {left}"));
    }
    let empty = world.log.now() - begun - turns;
    world.log.note(
        "world",
        format_args!(
            "all had their turn after {turns:?}, and no entry was left after {empty:?} more"
        ),
    );
    let packed: u64 = world.replicas.iter().map(ReplicaHost::packed).sum();
    world
        .log
        .note("world", format_args!("keys were packed {packed} times"));
    if let Some(broken) = world.history.broken("simulation") {
        world.log.violation(broken);
    }
    if PANICS.get() > 0 {
        world
            .log
            .violation(format_args!("{} tasks panicked", PANICS.get()));
    }
    world.log.finish()
}

impl World {
    fn new(rng: &mut Rng) -> Arc<World> {
        let log = Arc::new(Log::new());
        let net = Net::new(&log, rng.fork());
        let beliefs = Arc::new(Beliefs::default());
        let cluster = Cluster::new(&log, &beliefs, rng.fork());
        let replicas = 2 + rng.below(2) as usize;
        let clients = 3 + rng.below(4) as usize;
        let clock = |rng: &mut Rng, host: usize| {
            let clock = HostClock::new(&log, rng);
            let off = clock.off_ppm();
            log.note(
                "world",
                format_args!("the clock of host {host} is {off} ppm off"),
            );
            clock
        };
        let replica_ttl = Duration::from_secs(4 + rng.below(7));
        let replicas: Vec<ReplicaHost> = (0..replicas)
            .map(|host| ReplicaHost::new(host, replica_ttl, clock(rng, host), rng.fork()))
            .collect();
        let clients: Vec<ClientHost> = (0..clients)
            .map(|number| {
                let host = replicas.len() + number;
                ClientHost::new(host, number, clock(rng, host), rng.fork())
            })
            .collect();
        let history = Recorder::at(Arc::new(GlobalClock(Arc::clone(&log))));
        let operators_clock = clock(rng, replicas.len() + clients.len());
        let write_back: BTreeSet<TableName> = match rng.below(2) {
            0 => BTreeSet::new(),
            _ => BTreeSet::from([TableName::default_table()]),
        };
        log.note("world", format_args!("write-back: {write_back:?}"));
        let world = Arc::new(World {
            write_back,
            weather: std::sync::Mutex::new(vec![Weather::default(); replicas.len()]),
            log,
            net,
            cluster,
            counters: Counters::default(),
            history,
            keys: 1 + rng.below(3) as usize,
            is_healed: AtomicBool::new(false),
            operator: OnceLock::new(),
            replicas,
            clients,
        });
        let host = world.replicas.len() + world.clients.len();
        let node = Node { host, life: 1 };
        let operator = client::client(&world, node, &operators_clock, &mut rng.fork());
        let _ = world.operator.set(operator);
        world
    }

    pub fn is_healed(&self) -> bool {
        self.is_healed.load(Ordering::Relaxed)
    }

    pub fn keys(&self) -> Vec<String> {
        (0..self.keys).map(|n| format!("key-{n}")).collect()
    }

    pub fn key(&self, rng: &mut Rng) -> String {
        format!("key-{}", rng.below(self.keys as u64))
    }

    /// A way to the store begins in the weather of its host.
    pub fn weather(&self, host: usize, link: &StoreLink) {
        let weather = self.weather.lock().unwrap()[host];
        link.set(|of_way| *of_way = weather);
    }

    /// The weather of one host's way to the store changes.
    pub fn change_weather(&self, host: usize, change: impl Fn(&mut Weather)) {
        change(&mut self.weather.lock().unwrap()[host]);
        if let Some(link) = self.replicas[host].link() {
            link.set(change);
        }
    }

    /// Ends the lock of whoever holds the key, by force.
    pub async fn force(&self, key: &str) {
        let Some(holder) = self.cluster.holder(key) else {
            return;
        };
        let name = holder.name().to_string();
        self.log
            .fault("operator", format_args!("ends {name} by force"));
        self.cluster.beliefs.force(key, holder.seq.0);
        let Some(operator) = self.operator.get() else {
            return;
        };
        let call = self.history.call(&"operator".into(), Op::Force, |event| {
            event.names(&holder);
        });
        let forced = operator
            .force_release(&name, "the seed says so", "operator")
            .await;
        self.log.note(
            "operator",
            format_args!("ended {name}: {:?}", forced.is_ok()),
        );
        call.came_to(match forced {
            Ok(_) => Outcome::Done,
            Err(_) => Outcome::Unknown(Learned::Nothing),
        });
    }
}
