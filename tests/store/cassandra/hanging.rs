//! A node that hangs: its connections stay, and it answers nothing.

use std::time::{Duration, Instant};

use fermata::key::KeyState;
use fermata::lock::KeyId;
use fermata::store::cassandra::{CassandraOptions, CassandraStore};
use fermata::store::{ClusterStore, KeyStore, ReplicaState, StateSwap, Swap};
use tokio::task::block_in_place;
use tokio::time::sleep;

use super::proxy::{CqlProxy, Faults};
use super::{World, support};
use crate::world::{Random, apply, id, replica_row, with_entry};

/// How long a node hangs.
const HANGS: Duration = Duration::from_secs(10);
/// Less than a node is avoided after two time-outs.
const AVOIDED: Duration = Duration::from_secs(9);

/// One who changes a key, and which node is asked first for that.
struct Changes {
    _world: World,
    proxy: CqlProxy,
    store: CassandraStore,
    key: KeyId,
    state: KeyState,
    /// From 1.
    first: usize,
}

impl Changes {
    async fn begin(world: World, key: &str) -> Changes {
        let seed = Random::seeded("a node hangs").next();
        let proxy = CqlProxy::before(&world.cluster.contact_points(), seed);
        let options = CassandraOptions {
            // Less than nodes take to give up: a node that hangs is not waited for that long.
            request_timeout: Duration::from_millis(1_500),
            ..super::driver::options(proxy.contact_points(), world.keyspace.clone())
        };
        let store = CassandraStore::open(options).await.unwrap();
        let mut changes = Changes {
            _world: world,
            proxy,
            store,
            key: id(key),
            state: KeyState::default(),
            first: 0,
        };
        // The first change of a key has a statement of its own.
        changes.make().await;
        let before = changes.requests();
        changes.make().await;
        let after = changes.requests();
        let asked: Vec<_> = (0..3).filter(|one| after[*one] > before[*one]).collect();
        assert_eq!(asked.len(), 1, "a busy machine");
        changes.first = asked[0] + 1;
        // So has what is asked after a time-out.
        let lost = Faults {
            lose_requests: 1.0,
            ..Faults::default()
        };
        changes.proxy.set_before(changes.first, lost);
        let next = changes.next();
        let swap = changes.attempt(next).await;
        println!("warming up: {swap:?}");
        changes.proxy.set(Faults::default());
        let settled = changes.store.load_settled(&changes.key).await.unwrap();
        changes.state = settled.unwrap();
        changes
    }

    /// How many requests each node was sent.
    fn requests(&self) -> [u64; 3] {
        [1, 2, 3].map(|number| self.proxy.counts_before(number).requests)
    }

    /// How many the first one was sent.
    fn asked(&self) -> u64 {
        self.requests()[self.first - 1]
    }

    fn next(&self) -> KeyState {
        with_entry(&self.state, u128::from(self.state.version) + 100)
    }

    /// One more change, however often it takes.
    async fn make(&mut self) {
        let next = self.next();
        apply(&self.store, &self.key, &self.state, &next).await;
        self.state = next;
    }

    /// One attempt, and what came of it where it was not applied.
    async fn attempt(&mut self, next: KeyState) -> Option<Swap> {
        let swap = self.store.compare_and_swap(&self.key, &self.state, &next);
        match swap.await {
            Swap::Applied => {
                self.state = next;
                None
            }
            swap => Some(swap),
        }
    }

    /// Reads the state, however often it takes.
    async fn look(&mut self) {
        loop {
            match self.store.load(&self.key).await {
                Ok(found) => return self.state = found.unwrap_or_default(),
                Err(error) => println!("{error}"),
            }
        }
    }

    /// The first one hangs: two requests are in vain there, though they take effect by way of another node, and none after
    /// these for as long as it is avoided.
    async fn hung(&mut self) {
        let since = Instant::now();
        for _ in 0..2 {
            let (next, asked) = (self.next(), self.asked());
            let swap = self.attempt(next).await;
            assert!(swap.is_none(), "{swap:?}");
            assert_eq!(self.asked(), asked + 1);
        }

        let (mut applied, mut late) = (0, 0);
        let mut asked = self.asked();
        while since.elapsed() < AVOIDED {
            let next = self.next();
            let swap = self.attempt(next).await;
            assert_eq!(self.asked(), asked, "{:.1?}: {swap:?}", since.elapsed());
            match swap {
                None => applied += 1,
                Some(swap) => {
                    println!("{:.1?}: {swap:?}", since.elapsed());
                    late += 1;
                    self.look().await;
                    // A read may be sent there: it is sent to another one as well.
                    asked = self.asked();
                }
            }
            sleep(Duration::from_millis(20)).await;
        }
        println!("{applied} applied while a node hung, {late} not");
        // Others may wait for it as well until they know that it hangs, and a machine may be busy.
        assert!(late <= 3 && applied > 10, "{applied} applied, {late} not");
    }

    /// The first one goes on: soon all changes are made there again.
    async fn healed(&mut self) {
        let (since, asked) = (Instant::now(), self.asked());
        while self.asked() == asked {
            assert!(since.elapsed() < Duration::from_secs(60), "not asked again");
            self.make().await;
            sleep(Duration::from_millis(20)).await;
        }
        println!("asked again after {:.1?}", since.elapsed());
        let mut in_a_row = 0;
        while in_a_row < 10 {
            assert!(since.elapsed() < Duration::from_secs(60), "not always");
            let asked = self.asked();
            self.make().await;
            in_a_row = match self.asked() > asked {
                true => in_a_row + 1,
                false => 0,
            };
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_coordinator_that_hangs_is_asked_last_after_two_time_outs_until_it_answers_again() {
    let Some(world) = World::shared().await else {
        return;
    };
    let mut changes = Changes::begin(world, "hangs").await;
    // Keep-alives are answered, so that no connection is given up, and nothing else is.
    let hangs = Faults {
        lose_requests: 1.0,
        lose_queries: true,
        ..Faults::default()
    };
    changes.proxy.set_before(changes.first, hangs);
    changes.hung().await;
    changes.proxy.set_before(changes.first, Faults::default());
    changes.healed().await;
}

/// A connection that was lost is made again at once, by somebody who may have to prepare all statements there before anything
/// else.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_is_connected_again_and_prepares_nothing_is_in_the_way_of_few_changes() {
    let Some(world) = World::shared().await else {
        return;
    };
    let mut changes = Changes::begin(world, "connected again").await;
    let prepares_nothing = Faults {
        lose_prepares: true,
        ..Faults::default()
    };
    changes.proxy.set_before(changes.first, prepares_nothing);
    changes.proxy.break_connections(changes.first);
    let since = Instant::now();
    let (mut applied, mut not) = (0, 0);
    while since.elapsed() < Duration::from_secs(5) {
        let next = changes.next();
        match changes.attempt(next).await {
            None => applied += 1,
            Some(swap) => {
                println!("{:.1?}: {swap:?}", since.elapsed());
                not += 1;
                changes.look().await;
            }
        }
        sleep(Duration::from_millis(20)).await;
    }
    println!("{applied} applied, {not} not");
    assert!(not <= 3 && applied > 10, "{applied} applied, {not} not");
    changes.proxy.set(Faults::default());
    changes.healed().await;
}

/// How often a key was read, and the longest time in which it was not.
#[derive(Clone, Copy, Debug)]
struct Stood {
    still: Duration,
    loads: u32,
}

/// Reads a key again and again for so long.
async fn reads(store: &CassandraStore, key: KeyId, span: Duration) -> Stood {
    let begun = Instant::now();
    let mut last = begun;
    let mut stood = Stood {
        still: Duration::ZERO,
        loads: 0,
    };
    while begun.elapsed() < span {
        if store.load(&key).await.is_ok() {
            stood.loads += 1;
            stood.still = stood.still.max(last.elapsed());
            last = Instant::now();
        }
        sleep(Duration::from_millis(100)).await;
    }
    stood.still = stood.still.max(last.elapsed());
    stood
}

/// Two of three nodes have all that a majority needs: a key that is read by way of the third as well is held up for as long
/// as its reads wait before they ask another one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_hangs_is_in_the_way_of_no_key_for_long_and_then_of_no_new_statement() {
    let Some(world) = World::make_alone(&["default"]).await else {
        return;
    };
    let store = world.store().await;
    let keys: Vec<KeyId> = (0..24).map(|n| id(&format!("k{n}"))).collect();
    for key in &keys {
        let old = KeyState::default();
        apply(&store, key, &old, &with_entry(&old, 1)).await;
    }
    let all = |span| {
        let all = keys.iter().map(|key| reads(&store, key.clone(), span));
        futures_util::future::join_all(all)
    };
    let mut before = all(Duration::from_secs(2)).await;
    let paused = Paused::node(3);
    let mut stood = all(HANGS).await;
    // A change of a key that is there is another statement. It is prepared at every node that is connected: by now the
    // one that answers no keep-alives is not.
    let old = with_entry(&KeyState::default(), 1);
    let next = with_entry(&old, 2);
    let swap = store.compare_and_swap(&keys[0], &old, &next).await;
    drop(paused);
    assert!(matches!(swap, Swap::Applied), "a new statement: {swap:?}");
    for (name, stood) in [("before", &mut before), ("hung", &mut stood)] {
        stood.sort_by_key(|key| key.still);
        let still: Vec<_> = stood.iter().map(|key| key.still).collect();
        let loads: u32 = stood.iter().map(|key| key.loads).sum();
        println!("{name}: {loads} loads; each key stood still for {still:.1?}");
    }
    let still = stood.last().unwrap().still;
    assert!(still < HANGS / 2, "a key stood still for {still:.1?}");
    block_in_place(|| world.cluster.wait_until_up(&|_| {})).unwrap();
}

/// A node that is paused until this is dropped.
pub struct Paused(usize);

impl Paused {
    pub fn node(number: usize) -> Paused {
        block_in_place(|| support::signal(number, support::Signal::SIGSTOP)).unwrap();
        Paused(number)
    }
}

impl Drop for Paused {
    fn drop(&mut self) {
        block_in_place(|| support::signal(self.0, support::Signal::SIGCONT)).unwrap();
    }
}

/// Who replicas are, and which of them is gone, is asked of one node first, and given up after two seconds: others are asked
/// soon.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_answers_keep_alives_alone_is_in_the_way_of_two_changes_of_what_replicas_share()
{
    let Some(world) = World::make(&["default"]).await else {
        return;
    };
    let seed = Random::seeded("a node hangs, for what replicas share").next();
    let proxy = CqlProxy::before(&world.cluster.contact_points(), seed);
    let options = super::driver::options(proxy.contact_points(), world.keyspace.clone());
    let store = CassandraStore::open(options).await.unwrap();
    store.prepare_ahead(&[]).await;
    let row = replica_row(1);
    store.announce_replica(&row).await.unwrap();
    let mut lives = 1..;
    let mut state = row.state;
    for node in 1..=3 {
        let lost = Faults {
            lose_requests: 1.0,
            lose_queries: true,
            ..Faults::default()
        };
        proxy.set_before(node, lost);
        let mut tries = 0;
        loop {
            tries += 1;
            assert!(tries <= 4, "node {node} is asked again and again");
            let next = ReplicaState::Up(100 + lives.next().unwrap());
            let swap = store.swap_state(row.id, state, next);
            match tokio::time::timeout(Duration::from_secs(2), swap).await {
                Ok(StateSwap::Applied) => {
                    state = next;
                    break;
                }
                // It took effect, and nobody heard so.
                Ok(StateSwap::Conflict(Some(other))) => state = other,
                other => println!("node {node}, try {tries}: {other:?}"),
            }
        }
        proxy.set(Faults::default());
    }
}
