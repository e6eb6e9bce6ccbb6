//! A client whose replica goes away, or is out of its reach, goes on through another one by itself: with its session,
//! the lock that it holds, and its entry in the queue of one that it waits for.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use fermata::engine::REPLICA_TTL;
use fermata_client::{
    BootClock, Client, Clock as _, LockGuard, LockRequest, QueueEntry, Session, SessionRequest,
};
use nix::sys::signal::Signal;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::block_in_place;
use tokio::time::{sleep, timeout};

use super::kills::home_of_key;
use super::replica::{PATIENCE, Replica};
use super::world::World;

/// More than the TTL of replicas: what has less crashes with a replica that is killed.
const TTL: Duration = Duration::from_secs(20);
/// How long a replica is paused: until the others take it for down.
const PAUSE: Duration = Duration::from_secs(8);
/// How long a client is cut off from a replica that the others can reach.
const CUT: Duration = Duration::from_secs(5);
/// How long a replica may take to stop where nothing needs time: half of what it is given.
const STOP_MAX: Duration = Duration::from_secs(5);
/// What the holder writes after each fault.
const WRITES: usize = 10;

/// Passes connections on to a replica, and while it is told to, nothing at all, though all stay open.
struct Line {
    address: SocketAddr,
    cut: watch::Sender<bool>,
}

impl Line {
    async fn to(replica: String) -> Line {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (cut, is_cut) = watch::channel(false);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(pass(client, replica.clone(), is_cut.clone()));
            }
        });
        Line { address, cut }
    }
}

async fn pass(mut client: TcpStream, replica: String, mut is_cut: watch::Receiver<bool>) {
    let Ok(()) = is_cut.wait_for(|cut| !*cut).await.map(drop) else {
        return;
    };
    // A replica that does not run refuses it.
    let Ok(mut server) = TcpStream::connect(replica).await else {
        return;
    };
    tokio::select! {
        _ = copy_bidirectional(&mut client, &mut server) => return,
        _ = is_cut.wait_for(|cut| *cut) => {}
    }
    // Open, and silent; whoever gives it up does so by itself.
    let _ = is_cut.wait_for(|cut| !*cut).await;
}

/// A holder and one that waits behind it, whose calls and streams go to the replica at which the fault is.
struct Both {
    holder: Session,
    guard: LockGuard,
    waiter: Session,
    entry: QueueEntry,
}

impl Both {
    async fn start(endpoints: &[String]) -> Both {
        let session = async || {
            let client = Client::connect(endpoints).unwrap();
            client.open_session(SessionRequest::new().ttl(TTL)).await
        };
        let holder = session().await.unwrap();
        let guard = holder.lock("k").await.unwrap();
        let waiter = session().await.unwrap();
        let entry = waiter.enqueue(LockRequest::new("k")).await.unwrap();
        Both {
            holder,
            guard,
            waiter,
            entry,
        }
    }

    /// Writes while the waiter waits, and sees that all is as before the fault; then the waiter's turn comes.
    async fn go_on(self, what: &str, fault: impl Future<Output = ()>) {
        let ids = [self.holder.id(), self.waiter.id()].map(str::to_owned);
        let held = without_grant(&self.guard.lock_ref());
        let mut entry = self.entry;
        let waited_for = entry.lock_ref().to_owned();
        let waiting = tokio::spawn(async move { entry.wait(None).await });
        // So that the fault meets an open wait, and a stream that was answered.
        self.guard.put("before").await.unwrap();
        sleep(Duration::from_secs(1)).await;
        // Until it is durable it is promised no longer than its home is sure.
        let left = || Some(BootClock.now().until(self.guard.valid_until()?));
        while left() < Some(REPLICA_TTL) {
            self.guard.put("before").await.unwrap();
            sleep(Duration::from_millis(100)).await;
        }

        let begun = Instant::now();
        let writing = async {
            let mut longest = Duration::ZERO;
            for number in 0..WRITES {
                let sent = Instant::now();
                while let Err(error) = self.guard.put(format!("{what} {number}")).await {
                    assert!(self.guard.is_valid(), "{what}: {error}");
                    assert!(sent.elapsed() < PATIENCE, "{what}: {error}");
                }
                longest = longest.max(sent.elapsed());
                sleep(Duration::from_millis(100)).await;
            }
            longest
        };
        let ((), longest) = tokio::join!(fault, writing);
        let token = self.guard.fencing_token();
        eprintln!(
            "{what}: over after {:.1?}, the longest write {longest:.1?}, {:?}",
            begun.elapsed(),
            self.guard.state()
        );
        assert!(self.guard.is_valid(), "{what}");
        assert!(self.holder.valid_until().is_some(), "{what}");
        assert_eq!(without_grant(&self.guard.lock_ref()), held, "{what}");
        assert!(!waiting.is_finished(), "{what}: it is not its turn");
        self.guard.release().await.unwrap();

        let next = timeout(PATIENCE, waiting).await.unwrap().unwrap().unwrap();
        assert_eq!(without_grant(&next.lock_ref()), waited_for, "{what}");
        assert!(next.fencing_token() > token, "{what}");
        let last = format!("{what} {}", WRITES - 1);
        assert_eq!(next.get().await.unwrap().unwrap(), last, "{what}");
        next.release().await.unwrap();
        assert_eq!([self.holder.id(), self.waiter.id()], ids, "{what}");
        for session in [self.holder, self.waiter] {
            assert!(session.valid_until().is_some(), "{what}");
            assert!(
                !session.close().await.unwrap(),
                "{what}: it had ended before"
            );
        }
    }
}

fn without_grant(lock_ref: &str) -> String {
    lock_ref.split('@').next().unwrap().to_owned()
}

/// Three replicas, and a line to each.
struct Service {
    world: World,
    lines: Vec<Line>,
}

impl Service {
    async fn start() -> Option<Service> {
        let world = World::that_waits(3).await?;
        let mut lines = Vec::new();
        for replica in &world.replicas {
            lines.push(Line::to(replica.endpoint().replace("http://", "")).await);
        }
        Some(Service { world, lines })
    }

    /// For a client: the one at which the fault is comes first, and gets all calls.
    fn endpoints(&self, at: usize) -> [String; 3] {
        [0, 1, 2].map(|n| format!("http://{}", self.lines[(at + n) % 3].address))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_does_not_reach_its_replica_goes_on_at_another_one() {
    let Some(service) = Service::start().await else {
        return;
    };
    let (world, lines) = (&service.world, &service.lines);
    let at = home_of_key(world).await;
    let both = Both::start(&service.endpoints(at)).await;
    both.go_on("cut off", async {
        lines[at].cut.send_replace(true);
        sleep(CUT).await;
        lines[at].cut.send_replace(false);
    })
    .await;

    let at = home_of_key(world).await;
    let both = Both::start(&service.endpoints(at)).await;
    both.go_on("paused", async {
        world.replicas[at].signal(Signal::SIGSTOP);
        sleep(PAUSE).await;
        world.replicas[at].signal(Signal::SIGCONT);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_whose_replica_ends_goes_on_with_its_session_its_lock_and_its_entry() {
    let Some(mut service) = Service::start().await else {
        return;
    };
    let at = home_of_key(&service.world).await;
    let both = Both::start(&service.endpoints(at)).await;
    both.go_on("stopped", stop(&mut service.world.replicas[at]))
        .await;
    start_again(&mut service.world.replicas[at]);

    // Its waits are at another one, through it.
    let at = (home_of_key(&service.world).await + 1) % 3;
    let both = Both::start(&service.endpoints(at)).await;
    both.go_on(
        "stopped, and not the home",
        stop(&mut service.world.replicas[at]),
    )
    .await;
    start_again(&mut service.world.replicas[at]);

    let at = home_of_key(&service.world).await;
    let both = Both::start(&service.endpoints(at)).await;
    both.go_on("killed", async { service.world.replicas[at].kill() })
        .await;
}

async fn stop(replica: &mut Replica) {
    let answered = Instant::now();
    let status = block_in_place(|| replica.stop());
    assert!(status.success(), "{status}");
    // Waits through it, at another replica, would go on for most of the time that it may take.
    assert!(answered.elapsed() < STOP_MAX, "{:?}", answered.elapsed());
}

fn start_again(replica: &mut Replica) {
    replica.start_again();
    block_in_place(|| replica.serving());
}
