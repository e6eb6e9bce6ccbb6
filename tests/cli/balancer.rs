//! The Rust client behind a load balancer that closes every connection when it gets old, in the middle of whatever
//! goes on over it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use fermata_client::{Client, LockRequest, SessionRequest};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{sleep, timeout};

use super::world::World;

/// How old a connection gets.
const AGE: Duration = Duration::from_millis(300);
/// So that nothing lives on for long by a renewal of before.
const TTL: Duration = Duration::from_secs(2);
const GRACE: Duration = Duration::from_millis(1_000);
/// Several times the TTL, and many connections.
const WRITES: usize = 60;

/// Passes connections on, and closes each after [`AGE`]. Counts them.
struct Balancer {
    address: SocketAddr,
    closed: Arc<AtomicUsize>,
}

impl Balancer {
    async fn before(server: &str) -> Balancer {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let closed = Arc::new(AtomicUsize::new(0));
        let (server, count) = (server.to_owned(), Arc::clone(&closed));
        tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                let (server, count) = (server.clone(), Arc::clone(&count));
                tokio::spawn(async move {
                    let mut server = TcpStream::connect(server).await.unwrap();
                    let passed = copy_bidirectional(&mut client, &mut server);
                    if timeout(AGE, passed).await.is_err() {
                        count.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
        });
        Balancer { address, closed }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_are_closed_for_their_age_disturb_nobody() {
    let world = World::new();
    let server = world.endpoint.trim_start_matches("http://");
    let balancer = Balancer::before(server).await;
    let client = Client::connect([format!("http://{}", balancer.address)]).unwrap();
    let request = SessionRequest::new().ttl(TTL).disconnect_grace(GRACE);
    let session = client.open_session(request).await.unwrap();
    let guard = session.lock("k").await.unwrap();
    let token = guard.fencing_token();
    // One that waits, and lives by itself.
    let mut entry = client
        .enqueue(LockRequest::new("k").ttl(TTL))
        .await
        .unwrap();
    let entry_before = entry.lock_ref().to_owned();
    let waiting = tokio::spawn(async move { entry.wait(None).await });

    for number in 0..WRITES {
        guard.put(number.to_string()).await.unwrap();
        assert!(guard.is_valid(), "write {number}");
        sleep(Duration::from_millis(100)).await;
    }
    let closed = balancer.closed.load(Ordering::Relaxed);
    assert!(closed >= 10, "{closed} connections");
    assert_eq!(guard.fencing_token(), token, "never taken over");
    guard.release().await.unwrap();

    let next = waiting.await.unwrap().unwrap();
    assert!(next.lock_ref().starts_with(&entry_before));
    let last = (WRITES - 1).to_string();
    assert_eq!(next.get().await.unwrap().unwrap(), last);
    next.release().await.unwrap();
    assert!(session.valid_until().is_some(), "it lived to the end");
    // True where the first try was cut off before its answer came.
    session.close().await.unwrap();
}
