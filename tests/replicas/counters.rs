//! Counters under locks: whatever happens to replicas and nodes, no increment is lost and none is made twice, fences
//! only rise, and everybody gets a turn.
//!
//! The value of a key says how often each client has counted there. So a client whose put has no known outcome
//! finds out by reading, and what it wanted is known exactly.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use fermata_proto::lock_admin_client::LockAdminClient;
use fermata_proto::{
    CreateLockRefRequest, ListLocksRequest, OpenSessionRequest, RenewSessionRequest,
};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tonic::{Code, Status};
use tonic_types::StatusExt as _;
use uuid::Uuid;

use super::calls::seconds;
use super::sprayed::{Sprayed, may_be_repeated};

pub const CLIENTS: usize = 24;
pub const KEYS: usize = 8;
/// The TTL of sessions and of lockRefs without one: more than that of replicas.
pub const TTL: Duration = Duration::from_secs(15);
/// How often a session is renewed.
const RENEW_EVERY: Duration = Duration::from_secs(2);

type Counts = [u32; CLIENTS];

/// A table in which clients count.
#[derive(Clone, Copy, Debug)]
pub struct CountedTable {
    pub name: &'static str,
    /// How many clients count, on how many keys.
    pub clients: usize,
    pub keys: usize,
    /// The TTL of its lockRefs.
    pub ttl: Duration,
    /// It has sessions, and so homes.
    pub has_sessions: bool,
    pub has_fence: bool,
}

pub const DEFAULT: CountedTable = CountedTable {
    name: "default",
    clients: CLIENTS,
    keys: KEYS,
    ttl: TTL,
    has_sessions: true,
    has_fence: true,
};

/// What one client saw of one section in which it counted.
#[derive(Clone, Debug)]
struct Section {
    key: usize,
    /// The sum of all counts that it wrote.
    sum: u32,
    fence: u64,
    /// When it asked for an entry, and when it held the key.
    asked: Instant,
    held: Instant,
}

/// Why a section did not come to its end.
#[derive(Debug)]
enum Ended {
    /// The lockRef has a newer grant: ask for it.
    Superseded,
    /// The lockRef, or its session, has ended, as this answer says: begin anew.
    Lost(String),
}

/// Clients at work, until they are told to finish.
pub struct Counters {
    table: CountedTable,
    /// How the names of its keys begin.
    name: Arc<str>,
    sprayed: Sprayed,
    finish: Arc<AtomicBool>,
    seen: Arc<Seen>,
    clients: Vec<JoinHandle<[u32; KEYS]>>,
}

#[derive(Default)]
struct Seen {
    sections: Mutex<Vec<Section>>,
    /// Before they were finished.
    lost: Mutex<Vec<LostEntry>>,
}

/// An entry that ended before its section did.
#[derive(Clone, Debug)]
pub struct LostEntry {
    /// How its client heard of it.
    pub answer: String,
    /// Of one that held its key.
    pub held: Option<LostHolder>,
}

/// What the client knew of its lock.
#[derive(Clone, Copy, Debug)]
pub struct LostHolder {
    /// From the answer that it holds the key to the last one that was served under it.
    pub age: Duration,
    /// The last answer said that a crash of the home does not end it.
    pub durable: bool,
}

/// A key that is held, as far as the client knows.
#[derive(Clone, Copy)]
struct Holding {
    since: Instant,
    /// The last answer that was served, and what it said.
    served: Instant,
    durable: bool,
}

/// What came of a run.
pub struct Counted {
    sections: Vec<Section>,
    pub lost: Vec<LostEntry>,
    pub repeats: usize,
}

fn parse(value: &[u8]) -> Counts {
    let mut counts = [0; CLIENTS];
    if !value.is_empty() {
        let text = std::str::from_utf8(value).unwrap();
        let (text, _) = text.split_once(';').unwrap();
        for (count, part) in counts.iter_mut().zip(text.split(',')) {
            *count = part.parse().unwrap();
        }
    }
    counts
}

/// Under one fence only: what is read says which write it was.
fn print(counts: &Counts, fence: u64) -> String {
    format!("{};{fence}", counts.map(|n| n.to_string()).join(","))
}

impl Counters {
    /// Every third client has a session, the others lockRefs that keep themselves alive.
    pub fn start(sprayed: Sprayed) -> Counters {
        Counters::start_named("counter", sprayed)
    }

    /// The same, on keys whose names begin so: nobody has counted there before.
    pub fn start_named(name: &str, sprayed: Sprayed) -> Counters {
        Counters::start_in(DEFAULT, name, sprayed)
    }

    /// The same in this table.
    pub fn start_in(table: CountedTable, name: &str, sprayed: Sprayed) -> Counters {
        let name: Arc<str> = name.into();
        let finish = Arc::new(AtomicBool::new(false));
        let seen = Arc::new(Seen::default());
        let clients = (0..table.clients)
            .map(|me| {
                let client = CountingClient::new(table, &name, me, &sprayed, &seen);
                tokio::spawn(client.run(Arc::clone(&finish)))
            })
            .collect();
        Counters {
            table,
            name,
            sprayed,
            finish,
            seen,
            clients,
        }
    }

    /// How many sections were finished so far.
    pub fn finished(&self) -> usize {
        self.seen.sections.lock().unwrap().len()
    }

    /// Waits until so many more sections were finished.
    pub async fn more(&self, sections: usize) {
        let until = self.finished() + sections;
        let reached = async {
            while self.finished() < until {
                sleep(Duration::from_millis(20)).await;
            }
        };
        timeout(Duration::from_secs(120), reached)
            .await
            .expect("nobody gets a turn");
    }

    /// Ends the run, and sees that every counter says what was counted.
    pub async fn finish(self) -> Counted {
        self.finish.store(true, Ordering::Relaxed);
        let mut mine = Vec::new();
        for client in self.clients {
            mine.push(client.await.unwrap());
        }
        let mut reader = CountingClient::new(self.table, &self.name, 0, &self.sprayed, &self.seen);
        for key in 0..self.table.keys {
            let counts = reader.read(key).await;
            for (me, mine) in mine.iter().enumerate() {
                assert_eq!(counts[me], mine[key], "client {me} on key {key}");
            }
        }
        nobody_is_left(self.table, &self.sprayed).await;
        let counted = Counted {
            sections: self.seen.sections.lock().unwrap().clone(),
            lost: self.seen.lost.lock().unwrap().clone(),
            repeats: self.sprayed.repeats(),
        };
        if self.table.has_fence {
            counted.check_fences();
        }
        for lost in &counted.lost {
            assert!(!lost.is_broken(), "{lost}");
        }
        counted
    }
}

/// Waits until no entry is left in any queue: all were given back, or their liveness has ended by now.
async fn nobody_is_left(table: CountedTable, sprayed: &Sprayed) {
    let until = Instant::now() + table.ttl + Duration::from_secs(15);
    loop {
        let mut admin = LockAdminClient::new(sprayed.channel());
        let ask = ListLocksRequest {
            table: table.name.to_owned(),
            ..Default::default()
        };
        let listed = admin.list_locks(ask).await;
        match listed.map(|listed| listed.into_inner().locks) {
            Ok(locks) if locks.is_empty() => return,
            left => assert!(Instant::now() < until, "left in their queues: {left:#?}"),
        }
        sleep(Duration::from_millis(200)).await;
    }
}

impl fmt::Display for LostEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.held {
            None => write!(f, "in the queue: {}", self.answer),
            Some(LostHolder { age, durable }) => {
                let durable = if durable { "durable" } else { "volatile" };
                write!(f, "{durable} holder of {age:.1?}: {}", self.answer)
            }
        }
    }
}

impl LostEntry {
    /// Of a holder that was lost with its home though an answer had said that it cannot be.
    pub fn is_broken(&self) -> bool {
        self.held.is_some_and(|held| held.durable) && self.answer.contains("NO_LONGER_KEPT")
    }
}

impl Counted {
    pub fn sections(&self) -> usize {
        self.sections.len()
    }

    fn check_fences(&self) {
        for key in 0..KEYS {
            let mut of_key: Vec<&Section> = self.sections.iter().filter(|s| s.key == key).collect();
            of_key.sort_by_key(|section| section.sum);
            for pair in of_key.windows(2) {
                assert!(pair[0].sum < pair[1].sum, "one sum twice: {pair:?}");
                assert!(pair[0].fence < pair[1].fence, "a fence fell: {pair:?}");
            }
        }
    }

    /// When each turn came, and how long its client had waited for it, from the call that asked for an entry.
    pub fn waits(&self) -> impl Iterator<Item = (Instant, Duration)> {
        let waited = |section: &Section| section.held.saturating_duration_since(section.asked);
        self.sections
            .iter()
            .map(move |section| (section.held, waited(section)))
    }

    /// The longest that anybody waited for a turn, counted from `healed` where it began before.
    pub fn longest_wait_after(&self, healed: Instant) -> Duration {
        let waits = self.sections.iter().map(|section| {
            let from = section.asked.max(healed);
            section.held.saturating_duration_since(from)
        });
        waits.max().unwrap_or_default()
    }
}

/// A client on its way through all keys.
struct CountingClient {
    table: CountedTable,
    name: Arc<str>,
    me: usize,
    sprayed: Sprayed,
    seen: Arc<Seen>,
    session: Option<Session>,
    holding: Option<Holding>,
}

/// An open session that is renewed until this is dropped.
struct Session {
    id: String,
    renewing: JoinHandle<()>,
}

impl Drop for Session {
    fn drop(&mut self) {
        self.renewing.abort();
    }
}

/// A key that is held.
struct Held {
    /// Without and with its grant.
    lock_ref: String,
    granted: String,
    fence: u64,
}

impl CountingClient {
    fn new(
        table: CountedTable,
        name: &Arc<str>,
        me: usize,
        sprayed: &Sprayed,
        seen: &Arc<Seen>,
    ) -> CountingClient {
        CountingClient {
            table,
            name: Arc::clone(name),
            me,
            sprayed: sprayed.of_client(me),
            seen: Arc::clone(seen),
            session: None,
            holding: None,
        }
    }

    /// Counts on one key after the other; how often on each.
    async fn run(mut self, finish: Arc<AtomicBool>) -> [u32; KEYS] {
        let mut mine = [0; KEYS];
        let mut key = self.me % self.table.keys;
        while !finish.load(Ordering::Relaxed) {
            mine[key] += 1;
            while let Err(Ended::Lost(answer)) = self.section(key, mine[key]).await {
                let held = self.holding.map(|holding| LostHolder {
                    age: holding.served.duration_since(holding.since),
                    durable: holding.durable,
                });
                let lost = LostEntry { answer, held };
                self.seen.lost.lock().unwrap().push(lost);
            }
            key = (key + 1) % self.table.keys;
        }
        mine
    }

    /// Counts up to `target`, unless an earlier section of unknown outcome did.
    async fn section(&mut self, key: usize, target: u32) -> Result<(), Ended> {
        let asked = Instant::now();
        self.holding = None;
        let lock_ref = self.create(key).await?;
        let mut held = self.acquire(lock_ref).await?;
        let at = Instant::now();
        let mut counts = loop {
            match self.get(&held).await {
                Ok(counts) => break counts,
                Err(Ended::Superseded) => held = self.acquire(held.lock_ref).await?,
                Err(lost) => return Err(lost),
            }
        };
        if counts[self.me] < target {
            counts[self.me] += 1;
            assert_eq!(counts[self.me], target, "client {} on key {key}", self.me);
            loop {
                // In the same section, so the same value: one of unknown outcome is written again.
                match self.put(&held, &counts).await {
                    Ok(()) => break,
                    Err(Ended::Superseded) => held = self.acquire(held.lock_ref).await?,
                    Err(lost) => return Err(lost),
                }
            }
            self.seen.sections.lock().unwrap().push(Section {
                key,
                sum: counts.iter().sum(),
                fence: held.fence,
                asked,
                held: at,
            });
        }
        self.release(&held).await;
        Ok(())
    }

    /// What is in a key, read under its lock.
    async fn read(&mut self, key: usize) -> Counts {
        loop {
            let Ok(lock_ref) = self.create(key).await else {
                continue;
            };
            let Ok(held) = self.acquire(lock_ref).await else {
                continue;
            };
            let read = self.get(&held).await;
            self.release(&held).await;
            if let Ok(counts) = read {
                return counts;
            }
        }
    }

    async fn create(&mut self, key: usize) -> Result<String, Ended> {
        let session = match self.me % 3 {
            0 if self.table.has_sessions => self.session().await,
            _ => String::new(),
        };
        let ask = CreateLockRefRequest {
            key: format!("{}-{key}", self.name),
            request_id: Uuid::new_v4().to_string(),
            table: self.table.name.to_owned(),
            ttl: session.is_empty().then(|| seconds(self.table.ttl)),
            session,
            owner: format!("client {}", self.me),
            ..Default::default()
        };
        let created = self.sprayed.create(ask).await;
        created.map_err(|status| self.ended("create", &status))
    }

    /// Waits for the key, however often it takes.
    async fn acquire(&mut self, lock_ref: String) -> Result<Held, Ended> {
        let acquired = self.sprayed.acquire(&lock_ref).await;
        let acquired = acquired.map_err(|status| self.ended("acquire", &status))?;
        let now = Instant::now();
        // A holder whose grant is newer than it knew goes on.
        self.holding = Some(Holding {
            since: self.holding.map_or(now, |holding| holding.since),
            served: now,
            durable: acquired.durable,
        });
        Ok(Held {
            lock_ref,
            granted: acquired.lock_ref,
            fence: acquired.fencing_token,
        })
    }

    async fn get(&mut self, held: &Held) -> Result<Counts, Ended> {
        let got = self.sprayed.get(&held.granted).await;
        let got = got.map_err(|status| self.ended("get", &status))?;
        self.served(got.durable);
        Ok(parse(&got.value))
    }

    async fn put(&mut self, held: &Held, counts: &Counts) -> Result<(), Ended> {
        let put = self
            .sprayed
            .put(&held.granted, print(counts, held.fence))
            .await;
        let put = put.map_err(|status| self.ended("put", &status))?;
        self.served(put.durable);
        Ok(())
    }

    /// Notes what an answer under the lock says.
    fn served(&mut self, durable: bool) {
        if let Some(holding) = &mut self.holding {
            holding.served = Instant::now();
            holding.durable = durable;
        }
    }

    async fn release(&mut self, held: &Held) {
        if let Err(status) = self.sprayed.release(&held.granted).await {
            self.ended("release", &status);
        }
    }

    /// The session of this client; another one where it was lost.
    async fn session(&mut self) -> String {
        if let Some(session) = self.session.as_ref().filter(|s| !s.renewing.is_finished()) {
            return session.id.clone();
        }
        let ask = OpenSessionRequest {
            ttl: Some(seconds(TTL)),
            request_id: Uuid::new_v4().to_string(),
            owner: format!("client {}", self.me),
            disconnect_grace: None,
        };
        let open = self
            .sprayed
            .call(ask, Duration::ZERO, |mut client, ask| async move {
                client.open_session(ask).await
            });
        let opened = open.await.unwrap();
        let (sprayed, id) = (self.sprayed.clone(), opened.session.clone());
        let renewing = tokio::spawn(async move {
            loop {
                sleep(RENEW_EVERY).await;
                let ask = RenewSessionRequest {
                    session: id.clone(),
                };
                let renew = sprayed.once(ask, Duration::ZERO, |mut client, ask| async move {
                    client.renew_session(ask).await
                });
                // One that has ended is opened anew by the next section.
                if let Err(status) = renew.await
                    && !may_be_repeated(&status)
                {
                    return;
                }
            }
        });
        let id = opened.session;
        self.session = Some(Session {
            id: id.clone(),
            renewing,
        });
        id
    }

    /// What a refusal means for the section.
    fn ended(&mut self, what: &str, status: &Status) -> Ended {
        let details = status.get_error_details();
        let reason = details.error_info().map_or("", |info| &*info.reason);
        assert_eq!(
            status.code(),
            Code::FailedPrecondition,
            "{what}: {status:?}"
        );
        if reason == "GRANT_SUPERSEDED" {
            return Ended::Superseded;
        }
        // Whatever it was of; the next section finds out.
        self.session = None;
        Ended::Lost(format!("{what}: {reason}: {}", status.message()))
    }
}
