//! Two replicas, and many clients that all want one key: each gets its share of turns, and the replicas do not
//! spend their time on conflicts.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use fermata_proto::CreateLockRefRequest;
use tokio::task::{JoinHandle, block_in_place};
use tokio::time::{sleep, timeout};
use tonic::Status;
use tonic_types::StatusExt as _;
use uuid::Uuid;

use super::calls::seconds;
use super::replica::{PATIENCE, Replica};
use super::sprayed::Sprayed;
use super::world::World;

/// No lockRef is to end by it: all are waited with, or held.
const TTL: Duration = Duration::from_secs(600);

/// A lock that lasts is granted so often at most: its key moves where its home is not served, which is seldom.
const GRANTS_MAX: usize = 10;

/// How many turns each client gets on the average; other than 4 with `FERMATA_HAMMER_ROUNDS`.
fn rounds() -> usize {
    let rounds = std::env::var("FERMATA_HAMMER_ROUNDS");
    rounds.map_or(4, |rounds| {
        rounds.parse().expect("FERMATA_HAMMER_ROUNDS is a number")
    })
}

/// Sections that were finished, by client.
#[derive(Default)]
struct Finished(Vec<AtomicUsize>);

impl Finished {
    fn by_client(&self) -> Vec<usize> {
        let one = |finished: &AtomicUsize| finished.load(Ordering::Relaxed);
        self.0.iter().map(one).collect()
    }

    fn all(&self) -> usize {
        self.by_client().iter().sum()
    }
}

/// One that stays with its replica.
struct Client {
    sprayed: Sprayed,
    me: usize,
}

impl Client {
    async fn create(&self) -> String {
        let ask = CreateLockRefRequest {
            key: "anvil".to_owned(),
            request_id: Uuid::new_v4().to_string(),
            ttl: Some(seconds(TTL)),
            owner: format!("client {}", self.me),
            ..Default::default()
        };
        self.sprayed.create(ask).await.unwrap()
    }

    /// Adds to the counter at each turn, from the one of `first` on, until so many sections were finished by all.
    async fn count(self, first: String, finished: Arc<Finished>, sections: usize) {
        let mut entry = first;
        loop {
            self.section(&entry).await;
            finished.0[self.me].fetch_add(1, Ordering::Relaxed);
            if finished.all() >= sections {
                return;
            }
            entry = self.create().await;
        }
    }

    /// A holder that is not served for a second, as on a machine that stands still, may see its key move to the other
    /// replica: its lock lasts, with another grant.
    async fn section(&self, entry: &str) {
        let mut counted = None;
        for _ in 0..GRANTS_MAX {
            let granted = self.sprayed.acquire(entry).await.unwrap().lock_ref;
            match self.raise(&granted, &mut counted).await {
                Ok(()) => return,
                Err(status) if is_superseded(&status) => {}
                Err(status) => panic!("client {}: {status:?}", self.me),
            }
        }
        panic!(
            "client {}: each of {GRANTS_MAX} grants was superseded",
            self.me
        );
    }

    /// Counts once, however often it is made for one entry: nobody else writes while that holds the key.
    async fn raise(&self, granted: &str, counted: &mut Option<usize>) -> Result<(), Status> {
        let count = match *counted {
            Some(count) => count,
            None => *counted.insert(self.read(granted).await? + 1),
        };
        self.sprayed.put(granted, count.to_string()).await?;
        self.sprayed.release(granted).await
    }

    async fn read(&self, granted: &str) -> Result<usize, Status> {
        let got = self.sprayed.get(granted).await?;
        Ok(match std::str::from_utf8(&got.value).unwrap() {
            "" => 0,
            count => count.parse().unwrap(),
        })
    }
}

fn is_superseded(status: &Status) -> bool {
    let reason = status.get_details_error_info().map(|info| info.reason);
    reason.as_deref() == Some("GRANT_SUPERSEDED")
}

/// What a replica says of its keys when it stops.
#[derive(Debug)]
struct Said {
    changes: u64,
    conflicts: u64,
}

impl Said {
    /// Stops the replica, and reads its log.
    fn by(replica: &mut Replica) -> Said {
        let status = replica.stop();
        assert!(status.success(), "{status}");
        let log = replica.log();
        let last = log.lines().last().unwrap_or_default();
        let count = |field: &str| -> u64 {
            let values = last.split(' ').filter_map(|word| word.strip_prefix(field));
            let values: Vec<&str> = values.filter_map(|rest| rest.strip_prefix('=')).collect();
            let [value] = values[..] else {
                panic!("no {field} in {last:?}");
            };
            value.parse().unwrap()
        };
        Said {
            changes: count("changes"),
            conflicts: count("conflicts"),
        }
    }
}

/// Lets all count, and looks at the counter, at who had how many turns, and at what the replicas say of it.
async fn hammer(what: &str, many: usize, mut world: World) -> Vec<Said> {
    let client = |me: usize| Client {
        sprayed: world.at(me % world.replicas.len()).of_client(me),
        me,
    };
    let clients: Vec<Client> = (0..many).map(client).collect();
    let channels: Vec<Sprayed> = clients.iter().map(|c| c.sprayed.clone()).collect();
    let finished = Arc::new(Finished(
        (0..many).map(|_| AtomicUsize::default()).collect(),
    ));
    let sections = rounds() * many;
    // One after the other, so that each turn is of another replica than the one before it.
    let mut entries = Vec::new();
    for client in &clients {
        entries.push(client.create().await);
    }
    let begun = Instant::now();
    let counting: Vec<JoinHandle<()>> = std::iter::zip(clients, entries)
        .map(|(client, entry)| tokio::spawn(client.count(entry, Arc::clone(&finished), sections)))
        .collect();
    for round in 1..=rounds() {
        let reached = async {
            while finished.all() < round * many {
                sleep(Duration::from_millis(5)).await;
            }
        };
        let reached = timeout(PATIENCE, reached).await;
        reached.unwrap_or_else(|_| panic!("round {round}: {:?}", finished.by_client()));
    }
    let took = begun.elapsed();
    let turns = finished.by_client();
    for client in counting {
        client.await.unwrap();
    }

    let reader = Client {
        sprayed: channels[0].clone(),
        me: 0,
    };
    let granted = reader.sprayed.acquire(&reader.create().await).await;
    let granted = granted.unwrap().lock_ref;
    let counted = reader.read(&granted).await.unwrap();
    reader.sprayed.release(&granted).await.unwrap();
    let said: Vec<Said> = block_in_place(|| world.replicas.iter_mut().map(Said::by).collect());

    let fewest = turns.iter().min().copied().unwrap();
    let all: usize = turns.iter().sum();
    let conflicts: u64 = said.iter().map(|said| said.conflicts).sum();
    let changes: u64 = said.iter().map(|said| said.changes).sum();
    let repeats: usize = channels.iter().map(Sprayed::repeats).sum();
    eprintln!(
        "{what}: {all} sections in {took:.1?}; of {:.1} that a client made on the average, the slowest {fewest}; \
         {conflicts} conflicts for {changes} changes; {repeats} repeats; {said:?}",
        all as f64 / many as f64
    );
    assert_eq!(counted, finished.all(), "{what}: the counter");
    assert!(2 * fewest * many >= all, "{what}: the slowest of {turns:?}");
    assert!(5 * conflicts < changes, "{what}: {said:?}");
    said
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_64_clients_want_through_two_replicas_gives_each_its_share() {
    let Some(world) = World::of(2).await else {
        return;
    };
    hammer("two replicas", 64, world).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicas_that_cannot_call_each_other_share_a_hot_key_without_many_conflicts() {
    let Some(world) = World::of_strangers(2).await else {
        return;
    };
    let said = hammer("two strangers", 16, world).await;
    let changes: u64 = said.iter().map(|said| said.changes).sum();
    for one in &said {
        assert!(
            4 * one.changes > changes,
            "one of them changed the key alone: {said:?}"
        );
    }
}
