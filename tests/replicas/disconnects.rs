//! Sessions with a `disconnect_grace` on several replicas: a client that goes frees its locks soon, whichever replica
//! it was connected to.

use std::time::{Duration, Instant};

use fermata_proto::{CreateLockRefRequest, KeepAliveRequest, OpenSessionRequest};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::ReceiverStream;

use super::sprayed::Sprayed;
use super::world::World;

/// Beside a TTL of 30 s.
const GRACE: Duration = Duration::from_millis(500);
/// Less than that TTL.
const LATE: Duration = Duration::from_secs(20);
const ROUNDS: usize = 2;

async fn create(client: &Sprayed, session: &str) -> String {
    let ask = CreateLockRefRequest {
        key: "k".to_owned(),
        session: session.to_owned(),
        ..Default::default()
    };
    client.create(ask).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_ends_at_another_replica_than_the_session_s_ends_the_session() {
    let Some(world) = World::that_waits(2).await else {
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
        // For less than the TTL of who has it.
        let acquired = timeout(LATE, next.acquire(&waiting)).await;
        let acquired = acquired.expect("as soon as that").unwrap();
        let after = sent.elapsed();
        next.release(&acquired.lock_ref).await.unwrap();
        // Its last renewal was answered after that: it was safe for its grace from there.
        assert!(after >= GRACE, "taken away from a live holder: {after:?}");
        eprintln!(
            "round {round}: the next one has the lock after {} ms",
            after.as_millis()
        );
    }
}
