//! What operators are shown of keys whose homes answer from memory, by each replica of a service.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use fermata::clock::{Clock, SystemClock, SystemIds};
use fermata::engine::{
    CreateCall, CreatedLockRef, Engine, EngineError, EngineOptions, KeyFilter, LiveBy, Mutation,
    Presence,
};
use fermata::lock::{Key, KeyId, LockRef, Mode, TableName, Tag};
use fermata::server::{Server, bind};
use fermata_proto::lock_admin_client::LockAdminClient;
use fermata_proto::{
    DescribeActivityRequest, DescribeLockRequest, DescribeLockResponse, ListLocksRequest,
    LockSummary,
};
use tonic::transport::Channel;
use uuid::Uuid;

use crate::ask;
use crate::link::{Shared, StoreLink};
use crate::peers::client;
use crate::says::Says;
use crate::world::{done, options, until};

const TTL: Duration = Duration::from_secs(5);

struct Replica {
    engine: Engine,
    link: Arc<StoreLink>,
    admin: LockAdminClient<Channel>,
    address: String,
    /// Dropped, it no longer serves: clients and replicas cannot call it, and it lives on.
    server: tokio::task::JoinHandle<()>,
}

async fn start(shared: &Arc<Shared>, number: usize, write_back: bool) -> Replica {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let link = StoreLink::to(shared, &clock);
    let listener = bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let peer_listener = bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let peers = Arc::new(client());
    let engine = Engine::start(EngineOptions {
        peers: peers.clone(),
        write_back: match write_back {
            true => BTreeSet::from([TableName::default_table()]),
            false => BTreeSet::new(),
        },
        name: format!("replica-{number}"),
        address: address.clone(),
        peer_address: peer_listener.local_addr().unwrap().to_string(),
        replica_ttl: TTL,
        ..options(link.handles())
    })
    .await
    .unwrap();
    let server = Server::new(engine.clone(), Arc::new(SystemIds))
        .with_peers(peers, vec![peer_listener])
        .serve_tcp(vec![listener], std::future::pending());
    let server = tokio::spawn(async move { drop(server.await) });
    let admin = LockAdminClient::connect(format!("http://{address}"));
    Replica {
        engine,
        link,
        admin: admin.await.unwrap(),
        address,
        server,
    }
}

/// Three that know each other.
async fn three(write_back: bool) -> Vec<Replica> {
    let shared = Shared::new();
    let mut replicas = Vec::new();
    for number in 0..3 {
        replicas.push(start(&shared, number, write_back).await);
    }
    let knows = |one: &Replica, other: &Replica| {
        let presence = one.engine.presence(other.engine.replica());
        matches!(presence, Presence::Local | Presence::Live(_))
    };
    let knows_all = |one| replicas.iter().all(|other| knows(one, other));
    until(async || replicas.iter().all(knows_all)).await;
    replicas
}

fn key(key: &str) -> KeyId {
    KeyId {
        table: TableName::default_table(),
        key: Key::parse(key, Key::BYTES_MAX).unwrap(),
    }
}

impl Replica {
    /// Makes an entry here: this replica is the home of a key that is new.
    async fn create(&self, name: &str) -> CreatedLockRef {
        let call = CreateCall {
            waited: Duration::ZERO,
            id: key(name),
            tag: Tag::from_bits(Uuid::new_v4().as_u128()),
            live_by: LiveBy::Ttl(60_000),
            mode: Mode::Exclusive,
            owner: "billing".to_owned(),
            identity: String::new(),
            share_of: "".into(),
            read_value: false,
        };
        self.engine.create(call).await.unwrap()
    }

    async fn release(&self, lock_ref: &LockRef) {
        self.engine.release(lock_ref, None, 0).await.unwrap();
    }

    /// Holds a key of which the store learns nothing from now on: its first use was before.
    async fn hold_by_memory(&self, name: &str) -> LockRef {
        let first = self.create(name).await.lock_ref;
        self.release(&first).await;
        // The end of what the row lists.
        until(async || self.link.state(&key(name)).await.entries.is_empty()).await;
        self.link.stick(key(name));
        self.create(name).await.lock_ref
    }

    /// Holds a key, and its row says so.
    async fn hold_by_row(&self, name: &str) -> LockRef {
        let held = self.create(name).await.lock_ref;
        until(async || {
            let acquired = self.engine.acquire(&held, Duration::ZERO, false).await;
            acquired.unwrap().durable
        })
        .await;
        held
    }

    async fn describe(&self, key: &str) -> DescribeLockResponse {
        let mut admin = self.admin.clone();
        done(admin.describe_lock(ask::describe(key))).await
    }

    /// All keys, page by page.
    async fn list(&self, page_size: i32) -> Vec<LockSummary> {
        let mut ask = ListLocksRequest {
            page_size,
            ..Default::default()
        };
        let mut all = Vec::new();
        let mut admin = self.admin.clone();
        loop {
            let page = done(admin.list_locks(ask.clone())).await;
            all.extend(page.locks);
            ask.page_token = page.next_page_token;
            if ask.page_token.is_empty() {
                return all;
            }
        }
    }
}

fn names(listed: &[LockSummary]) -> Vec<&str> {
    listed.iter().map(|lock| lock.key.as_str()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_replica_shows_a_holder_that_only_memory_has_and_ends_it() {
    let replicas = three(true).await;
    let home = &replicas[0];
    let held = home.hold_by_memory("k").await;
    let waiting = home.create("k").await.lock_ref;
    for replica in &replicas {
        let shown = replica.describe("k").await;
        assert!(!shown.from_row, "{shown:?}");
        let of = shown.home.unwrap();
        assert_eq!(of.replica, home.engine.replica().to_string());
        assert_eq!((of.address, of.term), (home.address.clone(), 1));
        let [holder] = shown.holders.as_slice() else {
            panic!("{:?}", shown.holders);
        };
        assert_eq!(holder.name, held.name().to_string());
        assert!(!holder.durable && holder.lease_left.is_some(), "{holder:?}");
        assert_eq!(shown.waiter_count, 1);
        assert_eq!(shown.waiters[0].name, waiting.name().to_string());
        let listed = replica.list(9).await;
        assert_eq!(names(&listed), ["k"]);
        let listed_holder = listed[0].holder.clone().unwrap();
        assert_eq!(listed_holder.name, holder.name);
        assert!(!listed_holder.durable && listed[0].waiters == 1);
    }
    // The entry that another replica lists is one that it ends, once the row can be changed.
    home.link.stick(key("another"));
    let listed = replicas[2].list(9).await.remove(0).holder.unwrap();
    let force = ask::force(&listed.name, "stuck");
    let mut admin = replicas[2].admin.clone();
    assert!(done(admin.force_release(force)).await.was_holder);
    let put = Mutation::Put(Bytes::from_static(b"late"));
    let late = home.engine.critical_write(&held, put, 0).await;
    assert!(matches!(late, Err(EngineError::Ended(_))), "{late:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_ended_at_the_home_is_not_listed_though_its_row_has_it() {
    let replicas = three(true).await;
    let home = &replicas[0];
    let gone = home.hold_by_row("gone").await;
    home.create("there").await;
    home.link.stick(key("gone"));
    // It is answered once the row has it.
    let (engine, lock_ref) = (home.engine.clone(), gone.clone());
    tokio::spawn(async move { engine.release(&lock_ref, None, 0).await });
    until(async || home.describe("gone").await.holders.is_empty()).await;
    assert_eq!(home.link.state(&key("gone")).await.entries.len(), 1);
    for replica in &replicas {
        assert_eq!(names(&replica.list(9).await), ["there"]);
        let shown = replica.describe("gone").await;
        assert!(!shown.from_row && shown.holders.is_empty(), "{shown:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_home_that_cannot_be_asked_leaves_its_row_and_that_is_said() {
    let replicas = three(true).await;
    let (home, other) = (&replicas[0], &replicas[1]);
    home.hold_by_memory("k").await;
    home.hold_by_row("row").await;
    home.server.abort();
    let began = Instant::now();
    let shown = other.describe("k").await;
    assert!(shown.from_row && shown.holders.is_empty(), "{shown:?}");
    let of = shown.home.unwrap();
    assert_eq!(of.replica, home.engine.replica().to_string());
    let listed = other.list(9).await;
    assert_eq!(names(&listed), ["row"]);
    assert!(began.elapsed() < TTL, "{:?}", began.elapsed());
    // Nobody took it over by looking.
    let state = other.link.state(&key("k")).await;
    let named = state.home.map(|home| (home.replica, home.term));
    assert_eq!(named, Some((home.engine.replica(), 1)));
}

#[tokio::test]
async fn a_replica_that_does_not_say_what_it_serves_is_not_waited_for() {
    let (_says, silent) = Says::start(None).await;
    let (peers, within) = (client(), Duration::from_millis(300));
    let began = Instant::now();
    let ask = DescribeLockRequest::default();
    let shown = peers.describe_key(&silent, &ask, within).await;
    assert!(shown.is_err());
    let filter = KeyFilter {
        table: TableName::default_table(),
        after: None,
        prefix: String::new(),
        contended: false,
    };
    let listed = peers.list_keys(&silent, &filter, 9, &[], within).await;
    assert!(listed.is_none());
    assert!(began.elapsed() < TTL, "{:?}", began.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_go_through_the_memory_of_all_replicas_in_the_order_of_keys() {
    let replicas = three(true).await;
    let mut expected = Vec::new();
    for number in 0..11 {
        let name = format!("k{number:02}");
        // One home has most of them, one none.
        let home = &replicas[usize::from(number % 4 != 0)];
        home.create(&name).await;
        if number % 2 == 1 {
            let again = home.create(&name).await.lock_ref;
            home.release(&again).await;
        }
        expected.push(name);
    }
    for replica in &replicas {
        for page_size in [1, 2, 3, 100] {
            assert_eq!(names(&replica.list(page_size).await), expected);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_write_through_all_is_durable_and_the_home_tells_the_leases() {
    let replicas = three(false).await;
    let held = replicas[0].create("k").await.lock_ref;
    for replica in &replicas {
        let shown = replica.describe("k").await;
        assert!(!shown.from_row);
        assert!(shown.holders[0].durable && shown.holders[0].lease_left.is_some());
        assert!(replica.list(9).await[0].holder.as_ref().unwrap().durable);
    }
    replicas[0].release(&held).await;
    let shown = replicas[1].describe("never").await;
    assert!(shown.from_row && shown.home.is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_replica_did_as_a_home_is_counted() {
    let replicas = three(true).await;
    let home = &replicas[0];
    for _ in 0..5 {
        let held = home.create("k").await.lock_ref;
        home.release(&held).await;
    }
    home.hold_by_row("given").await;
    home.engine.stop();
    home.engine.leave(Duration::from_secs(10)).await;
    let counts = home.engine.counts();
    assert_eq!(counts.durable_grants + counts.volatile_grants, 6);
    assert!(counts.volatile_grants >= 4, "{counts:?}");
    assert!(counts.background_commits >= 1, "{counts:?}");
    assert!(counts.hand_overs >= 1, "{counts:?}");
    let mut admin = replicas[1].admin.clone();
    // Somebody serves what was given.
    until(async || {
        let did = done(admin.describe_activity(DescribeActivityRequest::default())).await;
        let homes = did.replicas.iter().filter_map(|one| one.as_home);
        homes.map(|counts| counts.received_keys).sum::<u64>() > 0
    })
    .await;
}
