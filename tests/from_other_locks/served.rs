//! A server with a table of each protocol, its clients, and something to lock.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use fermata_client::{Client, LockRequest};
use fermata_proto::DescribeLockResponse;
use tokio::task::JoinSet;

use super::process::{Ends, Serve};

pub const HOMES: &str = "homes";
pub const MUSIC: &str = "music";
pub const BAKERY: &str = "bakery";
/// A bakery that guards values without a fence.
pub const UNFENCED: &str = "unfenced";
/// Rows with lock columns, and values without a fence.
pub const ROWS: &str = "rows";
/// A table of each protocol.
pub const TABLES: [&str; 4] = [HOMES, MUSIC, BAKERY, ROWS];

/// Longer than any wait here takes.
pub const LONG: Duration = Duration::from_secs(60);

pub struct Served {
    pub serve: Serve,
    pub client: Client,
}

impl Served {
    pub fn start() -> Served {
        let serve = Serve::with(&[
            ("TABLES__HOMES__PROTOCOL", "home"),
            ("TABLES__MUSIC__PROTOCOL", "music"),
            ("TABLES__BAKERY__PROTOCOL", "bakery"),
            ("TABLES__UNFENCED__PROTOCOL", "bakery"),
            ("TABLES__UNFENCED__ALLOW_UNFENCED", "true"),
            ("TABLES__ROWS__PROTOCOL", "column-prefix"),
            ("TABLES__ROWS__ALLOW_UNFENCED", "true"),
        ]);
        let client = Client::connect([serve.endpoint()]).unwrap();
        Served { serve, client }
    }

    /// As many clients at work at the same time, each with connections of its own, as processes have. Returns once all are done.
    pub async fn contend<F>(&self, clients: usize, work: impl Fn(Client) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let mut contenders = JoinSet::new();
        for _ in 0..clients {
            let client = Client::connect([self.serve.endpoint()]).unwrap();
            contenders.spawn(work(client));
        }
        contenders.join_all().await;
    }

    /// A process that holds a key. It ends with SIGKILL where this is dropped, and releases nothing.
    pub fn holding_process(&self, table: &str, key: &str, ttl: &str) -> Ends {
        let child = Command::new(env!("CARGO_BIN_EXE_fermata"))
            .args(["--endpoint", &self.serve.endpoint(), "--table", table])
            .args(["lock", key, "--ttl", ttl])
            .stdout(Stdio::piped())
            .spawn();
        let mut holder = Ends(child.unwrap());
        let mut lock_ref = String::new();
        let mut stdout = BufReader::new(holder.0.stdout.take().unwrap());
        stdout.read_line(&mut lock_ref).unwrap();
        assert!(lock_ref.starts_with(&format!("{table}/{key}#")));
        holder
    }

    /// The queue of a key.
    pub async fn queue(&self, table: &str, key: &str) -> Queue {
        let described = self.client.describe_lock(table, key, 1_000).await.unwrap();
        Queue::of(described)
    }

    /// Until nobody holds a key, and nobody waits for it.
    pub async fn until_free(&self, table: &str, key: &str) {
        let free = async {
            while self.queue(table, key).await != Queue::default() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(LONG, free).await.unwrap();
    }

    /// Whether the key can be locked at once.
    pub async fn is_free(&self, table: &str, key: &str) -> bool {
        let request = LockRequest::new(key).table(table);
        match self.client.try_lock(request).await.unwrap() {
            Some(guard) => guard.release().await.is_ok(),
            None => false,
        }
    }
}

/// The names of entries.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Queue {
    pub holder: Option<String>,
    pub waiters: Vec<String>,
}

impl Queue {
    fn of(described: DescribeLockResponse) -> Queue {
        assert!(described.holders.len() <= 1, "{described:?}");
        let mut holders = described.holders.into_iter();
        let waiters = described.waiters.into_iter();
        Queue {
            holder: holders.next().map(|entry| entry.name),
            waiters: waiters.map(|entry| entry.name).collect(),
        }
    }
}

/// Something that one may use at a time. If two do it says so, or loses an update.
#[derive(Clone, Default)]
pub struct Resource(Arc<(AtomicUsize, AtomicU64)>);

impl Resource {
    pub async fn update(&self) {
        let (inside, count) = &*self.0;
        assert_eq!(inside.fetch_add(1, SeqCst), 0, "two are inside");
        let before = count.load(SeqCst);
        tokio::time::sleep(Duration::from_millis(2)).await;
        count.store(before + 1, SeqCst);
        inside.fetch_sub(1, SeqCst);
    }

    pub fn updates(&self) -> u64 {
        self.0.1.load(SeqCst)
    }
}
