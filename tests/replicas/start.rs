//! A replica may be started before its cluster, and before its tables.

use std::time::{Duration, Instant};

use fermata::engine::REPLICA_TTL;
use fermata_proto::{CreateLockRefRequest, OpenSessionRequest, RenewSessionRequest};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::block_in_place;
use tokio::time::sleep;
use tonic::{Code, Status};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use uuid::Uuid;

use super::calls::seconds;
use super::replica::{Client, PATIENCE, Replica, Setup};
use super::support::{self, Signal};
use super::world::World;

async fn health(replica: &Replica, service: &str) -> ServingStatus {
    let ask = HealthCheckRequest {
        service: service.to_owned(),
    };
    let mut health = HealthClient::new(replica.channel());
    health.check(ask).await.unwrap().into_inner().status()
}

/// Of a key that nobody used before: one of a replica that was killed stands still until that is down.
async fn create(replica: &Replica) -> Result<(), Status> {
    let ask = CreateLockRefRequest {
        key: Uuid::new_v4().to_string(),
        ..Default::default()
    };
    replica.client().create_lock_ref(ask).await.map(drop)
}

/// It listens and lives, and serves nobody yet.
async fn waits(replica: &Replica) {
    assert_eq!(health(replica, "").await, ServingStatus::NotServing);
    assert_eq!(health(replica, "liveness").await, ServingStatus::Serving);
    let refused = create(replica).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable);
    assert!(refused.message().contains("Cassandra"), "{refused:?}");
}

async fn becomes_ready(replica: &Replica) {
    is_healthy(replica).await;
    create(replica).await.unwrap();
}

async fn is_healthy(replica: &Replica) {
    block_in_place(|| replica.serving());
    let until = std::time::Instant::now() + PATIENCE;
    while health(replica, "").await != ServingStatus::Serving {
        assert!(std::time::Instant::now() < until, "it is not ready");
        sleep(Duration::from_millis(50)).await;
    }
}

/// Waits until its log says so.
async fn says(replica: &Replica, words: &str) {
    let until = std::time::Instant::now() + PATIENCE;
    while !replica.log().contains(words) {
        assert!(
            std::time::Instant::now() < until,
            "no {words:?} in\n{}",
            replica.log_end()
        );
        sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_waits_for_cassandra_and_becomes_ready_when_it_comes() {
    let Some(world) = World::that_waits(0).await else {
        return;
    };
    let absent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = absent.local_addr().unwrap();
    drop(absent);
    let replica = Replica::start(Setup {
        contact_points: vec![address.to_string()],
        ..world.setup()
    });
    waits(&replica).await;
    says(&replica, "cannot start yet: Cassandra cannot be reached").await;
    let node = world.contact_points().remove(0);
    let listener = TcpListener::bind(address).await.unwrap();
    tokio::spawn(async move {
        while let Ok((mut here, _)) = listener.accept().await {
            let mut there = TcpStream::connect(&node).await.unwrap();
            tokio::spawn(async move {
                let _ = copy_bidirectional(&mut here, &mut there).await;
            });
        }
    });
    becomes_ready(&replica).await;
}

/// For how long a node that hangs may hold up what needs a majority; 30 s, where it is waited for.
const HELD_UP_MAX: Duration = Duration::from_secs(15);
/// The same of a start. The driver waits for 7 s at each node that hangs.
const START_HELD_UP_MAX: Duration = Duration::from_secs(6);

/// A node that hangs until this is dropped.
struct Hanging(usize);

impl Hanging {
    fn node(number: usize) -> Hanging {
        block_in_place(|| support::signal(number, Signal::SIGSTOP)).unwrap();
        Hanging(number)
    }
}

impl Drop for Hanging {
    fn drop(&mut self) {
        block_in_place(|| support::signal(self.0, Signal::SIGCONT)).unwrap();
    }
}

/// Starts a replica while a node hangs.
async fn starts(node: usize, setup: Setup) {
    let begun = Instant::now();
    let replica = Replica::start(setup);
    is_healthy(&replica).await;
    let took = begun.elapsed();
    println!("node {node} hangs: ready after {took:.1?}");
    assert!(
        took < START_HELD_UP_MAX,
        "node {node} hangs: ready after {took:.1?}"
    );
    create(&replica).await.unwrap();
}

/// Renews a session whose replica was just killed, at another one, until that has taken it over.
async fn goes_on(node: usize, mut client: Client, renew: RenewSessionRequest) {
    let killed = Instant::now();
    while let Err(status) = client.renew_session(renew.clone()).await {
        assert_eq!(status.code(), Code::Unavailable, "{status:?}");
        assert!(killed.elapsed() < PATIENCE, "{status:?}");
        sleep(Duration::from_millis(100)).await;
    }
    let took = killed.elapsed();
    println!("node {node} hangs: taken over after {took:.1?}");
    assert!(
        took < REPLICA_TTL + HELD_UP_MAX,
        "node {node} hangs: taken over after {took:.1?}"
    );
}

/// The two at once, since each node hangs for as long as either takes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_a_node_hangs_a_replica_starts_and_a_session_of_a_killed_one_goes_on() {
    let Some(mut world) = World::with_nodes_of_its_own(2).await else {
        return;
    };
    let open = OpenSessionRequest {
        ttl: Some(seconds(Duration::from_secs(300))),
        ..Default::default()
    };
    // The one that is named first, and one that only the others name.
    for node in [1, 3] {
        let opened = world.replicas[0].client().open_session(open.clone()).await;
        let renew = RenewSessionRequest {
            session: opened.unwrap().into_inner().session,
        };
        let hanging = Hanging::node(node);
        block_in_place(|| world.replicas[0].kill());
        let goes_on = tokio::spawn(goes_on(node, world.replicas[1].client(), renew));
        let mut setup = world.setup();
        if node != 1 {
            setup.contact_points.truncate(1);
        }
        starts(node, setup).await;
        goes_on.await.unwrap();
        drop(hanging);
        block_in_place(|| {
            world.wait_for_nodes();
            world.replicas[0].start_again();
            world.replicas[0].serving();
        });
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_without_tables_says_which_command_makes_them_and_goes_on_when_they_are_there() {
    let Some(world) = World::without_tables().await else {
        return;
    };
    let mut replica = Replica::start(world.setup());
    waits(&replica).await;
    let status = block_in_place(|| replica.stop());
    assert_eq!(status.code(), Some(0), "while it waits");
    replica.start_again();
    waits(&replica).await;
    let command = format!(
        "fermata schema apply --contact-points {} --keyspace {}",
        world.contact_points().join(","),
        world.keyspace
    );
    says(&replica, &command).await;
    world.make_tables().await;
    becomes_ready(&replica).await;
    let status = block_in_place(|| replica.stop());
    assert_eq!(status.code(), Some(0));
}
