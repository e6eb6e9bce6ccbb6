//! Sessions with a `disconnect_grace` on several replicas: a client that goes frees its locks soon, whichever replica
//! it was connected to.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use fermata_proto::{CreateLockRefRequest, KeepAliveRequest, OpenSessionRequest};
use tokio::sync::mpsc;
use tokio::task::block_in_place;
use tokio::time::timeout;
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::ReceiverStream;

use super::replica::Replica;
use super::sprayed::Sprayed;
use super::world::World;

/// Beside a TTL of 30 s.
const GRACE: Duration = Duration::from_millis(500);
/// Less than that TTL.
const LATE: Duration = Duration::from_secs(20);
const ROUNDS: usize = 4;

async fn create(client: &Sprayed, session: &str) -> String {
    let ask = CreateLockRefRequest {
        key: "k".to_owned(),
        session: session.to_owned(),
        ..Default::default()
    };
    client.create(ask).await.unwrap()
}

/// Waits for the lock, for less than the TTL of who has it, and gives it back: how long it took since then.
async fn next_has_it(client: &Sprayed, lock_ref: String, since: Instant) -> Duration {
    let acquired = timeout(LATE, client.acquire(&lock_ref)).await;
    let acquired = acquired.expect("as soon as that").unwrap();
    let after = since.elapsed();
    client.release(&acquired.lock_ref).await.unwrap();
    // Its last renewal was answered after that: it was safe for its grace from there.
    assert!(after >= GRACE, "taken away from a live holder: {after:?}");
    after
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_ends_at_another_replica_than_the_session_s_ends_the_session() {
    let Some(world) = World::of(2).await else {
        return;
    };
    let (keeper, other) = (&world.replicas[0], &world.replicas[1]);
    let next = world.at(0);
    for round in 0..ROUNDS {
        let open = OpenSessionRequest {
            disconnect_grace: prost_types::Duration::try_from(GRACE).ok(),
            ..Default::default()
        };
        let opened = keeper.client().open_session(open).await.unwrap();
        let session = opened.into_inner().session;
        let (asks, queue) = mpsc::channel(1);
        let stream = other.client().keep_alive(ReceiverStream::new(queue)).await;
        let mut answers = stream.unwrap().into_inner();
        let ping = KeepAliveRequest {
            session: session.clone(),
        };
        asks.send(ping.clone()).await.unwrap();
        answers.next().await.unwrap().unwrap();
        create(&world.at(0), &session).await;
        let waiting = create(&next, "").await;
        let sent = Instant::now();
        asks.send(ping).await.unwrap();
        let answer = answers.next().await.unwrap().unwrap();
        assert_eq!(
            answer.valid_for,
            prost_types::Duration::try_from(GRACE).ok()
        );
        drop((asks, answers));
        let after = next_has_it(&next, waiting, sent).await;
        eprintln!(
            "round {round}: the next one has the lock after {} ms",
            after.as_millis()
        );
    }
}

/// `fermata lock` through one replica, whose command ends once nobody writes to it any more.
fn lock(through: &Replica) -> (Child, ChildStdout) {
    let mut locked = Command::new(env!("CARGO_BIN_EXE_fermata"))
        .args(["lock", "--disconnect-grace", "500ms", "k", "--"])
        .args(["sh", "-c", "echo holding; cat"])
        .env("FERMATA_ENDPOINT", through.endpoint())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut says = BufReader::new(locked.stdout.take().unwrap());
    let mut line = String::new();
    says.read_line(&mut line).unwrap();
    assert_eq!(line, "holding\n");
    (locked, says.into_inner())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_lock_of_a_killed_client_is_free_after_its_grace_through_any_replica() {
    let Some(world) = World::of(2).await else {
        return;
    };
    for round in 0..ROUNDS {
        let one = &world.replicas[round % 2];
        let (mut locked, _says) = block_in_place(|| lock(one));
        let next = world.at((round + 1) % 2);
        let waiting = create(&next, "").await;
        let killed = Instant::now();
        locked.kill().unwrap();
        let after = next_has_it(&next, waiting, killed).await;
        eprintln!(
            "round {round}: the next one has the lock {} ms after SIGKILL",
            after.as_millis()
        );
        locked.wait().unwrap();
    }
}
