//! An agent of several replicas: it goes to the home of a key itself, and its programs keep their locks when a replica is killed.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use fermata_client::{Client, LockRequest};
use nix::sys::signal::Signal;
use tokio::time::{sleep, timeout};

use super::kills::{KEY, home_of_key};
use super::replica::{PATIENCE, Replica};
use super::world::World;

/// Longer than a stopped replica needs to be declared down.
const TTL: Duration = Duration::from_secs(30);
/// For calls that no replica delays.
const AT_ONCE: Duration = Duration::from_secs(3);

struct Agent(Child);

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Agent {
    fn of<'a>(socket: &Path, replicas: impl Iterator<Item = &'a Replica>) -> Agent {
        let endpoints = replicas.flat_map(|replica| ["--endpoint".to_owned(), replica.endpoint()]);
        let agent = Command::new(env!("CARGO_BIN_EXE_fermata"))
            .args(["agent", "--listen", &format!("unix:{}", socket.display())])
            .args(endpoints)
            .stdin(Stdio::null())
            .spawn();
        Agent(agent.unwrap())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_go_to_the_home_and_a_lock_outlives_its_replica() {
    let Some(mut world) = World::that_waits(3).await else {
        return;
    };
    let home = home_of_key(&world).await;
    let others = (0..3).filter(|at| *at != home).collect::<Vec<_>>();
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("agent.sock");
    let order = [others[0], home, others[1]].map(|at| &world.replicas[at]);
    let _agent = Agent::of(&socket, order.into_iter());
    let client = Client::connect([format!("unix:{}", socket.display())]).unwrap();
    // The first replica in the order answers the create, and names the home.
    let guard = client.lock(LockRequest::new(KEY).ttl(TTL)).await.unwrap();

    let first = &world.replicas[others[0]];
    first.signal(Signal::SIGSTOP);
    for round in 0..20 {
        let put = timeout(AT_ONCE, guard.put(round.to_string())).await;
        put.expect("the stopped replica was asked").unwrap();
    }
    first.signal(Signal::SIGCONT);

    while !guard.durable() {
        sleep(Duration::from_millis(20)).await;
    }
    world.replicas[home].kill();
    let reading = async {
        loop {
            match guard.get().await {
                Ok(value) => return value,
                Err(error) => eprintln!("not yet: {error}"),
            }
            sleep(Duration::from_millis(100)).await;
        }
    };
    let value = timeout(PATIENCE, reading).await.expect("another home");
    assert_eq!(value.as_deref(), Some(&b"19"[..]));
    assert!(client.try_lock(KEY).await.unwrap().is_none());
    guard.release().await.unwrap();
    client.lock(KEY).await.unwrap().release().await.unwrap();
}
