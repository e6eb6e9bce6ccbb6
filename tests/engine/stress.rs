//! Many clients, few keys, faults and restarts: whatever happens, one holder at a time, and every
//! section reads what the last one left.

use std::collections::BTreeSet;
use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use fermata::engine::{CreateCall, EngineError, LockStatus};
use fermata::limits::Limits;
use fermata::lock::{EndedAs, Fence, LockRef, SessionId};
use uuid::Uuid;

use super::recorded::Engine;
use super::rng::{Rng, seed};
use super::world::{World, call_of, key, put, session_call, soon};

const CLIENTS: u64 = 8;
const KEYS: u64 = 4;

/// What is known of one key from what its clients were told.
#[derive(Default)]
struct Known {
    holder: Option<u64>,
    fence: Fence,
    /// What a section that begins now may read.
    may_be: BTreeSet<Option<String>>,
    acknowledged: u64,
    unanswered: u64,
}

struct Shared {
    engine: Mutex<Engine>,
    known: Vec<Mutex<Known>>,
    until: Instant,
}

impl Shared {
    fn on(&self) -> bool {
        Instant::now() < self.until
    }
}

struct Client {
    shared: Arc<Shared>,
    name: u64,
    rng: Rng,
    session: SessionId,
    values: u64,
}

fn is_passing(error: &EngineError) -> bool {
    matches!(
        error,
        EngineError::Unavailable(_) | EngineError::WriteUnknown(_) | EngineError::Stopping
    )
}

async fn a_moment() {
    tokio::time::sleep(Duration::from_millis(3)).await;
}

impl Client {
    fn engine(&self) -> Engine {
        let engine = self.shared.engine.lock().unwrap();
        engine.of_client(&format!("client {}", self.name))
    }

    /// Now and then the call is dropped in the middle, as if its client had gone away.
    async fn call<T>(
        &mut self,
        call: impl Future<Output = Result<T, EngineError>>,
    ) -> Result<T, EngineError> {
        if self.rng.below(100) < 85 {
            return soon(call).await;
        }
        let patience = Duration::from_micros(self.rng.below(4_000));
        let answer = tokio::time::timeout(patience, call).await;
        answer.unwrap_or_else(|_| Err(EngineError::Unavailable("given up".to_owned())))
    }

    async fn open_session(&mut self) {
        let id = Uuid::new_v4();
        loop {
            let engine = self.engine();
            let opened = engine.open_session(session_call(id, 600_000));
            match self.call(opened).await {
                Ok(_) => break self.session = SessionId(id),
                Err(error) if is_passing(&error) => a_moment().await,
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// Ends the session and whatever lives by it.
    async fn close_session(&mut self) {
        loop {
            let engine = self.engine();
            match self.call(engine.close_session(self.session)).await {
                Ok(_) => break,
                Err(error) if is_passing(&error) => a_moment().await,
                Err(error) => panic!("{error}"),
            }
        }
    }

    async fn run(mut self) {
        self.open_session().await;
        while self.shared.on() {
            let at = self.rng.below(KEYS);
            let create = call_of(self.session, &format!("k{at}"));
            if !self.section(at as usize, create).await {
                self.close_session().await;
                self.open_session().await;
            }
        }
        self.close_session().await;
    }

    /// One entry, from its beginning to its end. False if it was left behind.
    async fn section(&mut self, at: usize, create: CreateCall) -> bool {
        let mut found: Option<LockRef> = None;
        let lock_ref = loop {
            let engine = self.engine();
            match self.call(engine.create(create.clone())).await {
                Ok(created) => {
                    let entry = created.lock_ref.without_grant();
                    assert!(
                        found.is_none_or(|f| f == entry),
                        "a second entry for one call"
                    );
                    if self.rng.below(4) > 0 {
                        break entry;
                    }
                    found = Some(entry);
                }
                Err(_) if self.rng.below(10) == 0 => return false,
                Err(error) if is_passing(&error) => a_moment().await,
                Err(error) => panic!("{error}"),
            }
        };
        loop {
            if self.rng.below(50) == 0 || (!self.shared.on() && self.rng.below(3) == 0) {
                return false;
            }
            let wait = Duration::from_millis(self.rng.below(100));
            let engine = self.engine();
            let read_value = self.rng.below(2) == 0;
            match self.call(engine.acquire(&lock_ref, wait, read_value)).await {
                Ok(acquired) => {
                    let LockStatus::Held { grant, value } = acquired.status else {
                        continue;
                    };
                    let is_new = self.enter(at, grant);
                    let value =
                        value.map(|v| v.bytes.map(|b| String::from_utf8(b.to_vec()).unwrap()));
                    let done = self.hold(at, &acquired.lock_ref, is_new, value).await;
                    self.leave(at);
                    if done {
                        return self.release(at, &acquired.lock_ref).await;
                    }
                }
                Err(error) if is_passing(&error) => a_moment().await,
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// Whether the grant is one that nobody was told before.
    fn enter(&self, at: usize, grant: Fence) -> bool {
        let mut known = self.shared.known[at].lock().unwrap();
        assert_eq!(known.holder, None, "two holders of key {at}");
        assert!(grant >= known.fence, "fence {grant} after {}", known.fence);
        known.holder = Some(self.name);
        let is_new = grant > known.fence;
        known.fence = grant;
        is_new
    }

    fn leave(&self, at: usize) {
        self.shared.known[at].lock().unwrap().holder = None;
    }

    fn read(&self, at: usize, value: &Option<String>, settles: bool) {
        let mut known = self.shared.known[at].lock().unwrap();
        assert!(
            known.may_be.contains(value),
            "key {at}: read {value:?}, not one of {:?}",
            known.may_be
        );
        if settles {
            known.may_be = BTreeSet::from([value.clone()]);
        }
    }

    /// Whatever the holder does. False if it has to ask for the lock again.
    async fn hold(
        &mut self,
        at: usize,
        held: &LockRef,
        is_new: bool,
        first: Option<Option<String>>,
    ) -> bool {
        // What is read stays until the holder writes. While it has a write that was not answered, it
        // does not.
        let mut settles = is_new;
        if let Some(value) = first {
            self.read(at, &value, settles);
        }
        for _ in 0..self.rng.below(6) {
            let engine = self.engine();
            let result = if self.rng.below(2) == 0 {
                let got = self.call(engine.critical_get(held, 0)).await;
                got.map(|done| {
                    let bytes = done.value.bytes;
                    let value = bytes.map(|b| String::from_utf8(b.to_vec()).unwrap());
                    self.read(at, &value, settles);
                })
            } else {
                let value = self.value();
                self.shared.known[at]
                    .lock()
                    .unwrap()
                    .may_be
                    .insert(Some(value.clone()));
                let wrote = self.call(engine.critical_write(held, put(&value), 0)).await;
                self.wrote(at, value, wrote.is_ok());
                settles = wrote.is_ok();
                wrote.map(|_| ())
            };
            match result {
                Ok(()) => {}
                Err(EngineError::GrantSuperseded) => return false,
                Err(error) if is_passing(&error) => {
                    a_moment().await;
                    if self.rng.below(3) == 0 {
                        return false;
                    }
                }
                Err(error) => panic!("{error}"),
            }
        }
        true
    }

    fn value(&mut self) -> String {
        self.values += 1;
        format!("{}/{}", self.name, self.values)
    }

    fn wrote(&self, at: usize, value: String, acknowledged: bool) {
        let mut known = self.shared.known[at].lock().unwrap();
        if acknowledged {
            known.may_be = BTreeSet::from([Some(value)]);
            known.acknowledged += 1;
        } else {
            known.unanswered += 1;
        }
    }

    async fn release(&mut self, at: usize, held: &LockRef) -> bool {
        let mut last = (self.rng.below(2) == 0).then(|| self.value());
        if let Some(value) = &last {
            self.shared.known[at]
                .lock()
                .unwrap()
                .may_be
                .insert(Some(value.clone()));
        }
        loop {
            let engine = self.engine();
            let carried = last.take();
            // Whoever comes next may begin as soon as this is committed.
            let released = engine.release(held, carried.as_deref().map(put), 0);
            match self.call(released).await {
                Ok(_) => return true,
                Err(EngineError::Ended(EndedAs::Released)) => return true,
                // Taken over in a restart: the entry is released under any grant.
                Err(EngineError::GrantSuperseded | EngineError::Releasing) => a_moment().await,
                Err(error) if is_passing(&error) => a_moment().await,
                Err(error) => panic!("{error}"),
            }
            if self.rng.below(20) == 0 {
                return false;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_holder_at_a_time_reads_what_the_last_one_left_whatever_fails() {
    let seconds = std::env::var("FERMATA_STRESS_SECONDS").map_or(6, |s| s.parse().unwrap());
    let seed = seed(20_261_121);
    let mut rng = Rng::new(seed);
    let mut limits = Limits::default();
    if rng.below(2) == 0 {
        // Every read reaches the store.
        limits.remembered_value_bytes_max = 0;
    }
    let mut world = World::packing(limits).await;
    world.history.seed(seed);
    let shared = Arc::new(Shared {
        engine: Mutex::new(world.engine.clone()),
        known: (0..KEYS)
            .map(|_| {
                Mutex::new(Known {
                    may_be: BTreeSet::from([None]),
                    ..Known::default()
                })
            })
            .collect(),
        until: Instant::now() + Duration::from_secs(seconds),
    });
    let clients: Vec<_> = (0..CLIENTS)
        .map(|name| {
            let client = Client {
                shared: Arc::clone(&shared),
                name,
                rng: rng.fork(),
                session: SessionId(Uuid::nil()),
                values: 0,
            };
            tokio::spawn(client.run())
        })
        .collect();
    while shared.on() {
        let percent = rng.below(15);
        world.store.fail_randomly(rng.next(), percent);
        tokio::time::sleep(Duration::from_millis(300 + rng.below(900))).await;
        if rng.below(2) == 0 {
            world = world.restart().await;
            *shared.engine.lock().unwrap() = world.engine.clone();
        }
        assert!(
            !clients.iter().any(|c| c.is_finished() && shared.on()),
            "a client failed"
        );
    }
    for client in clients {
        client.await.unwrap();
    }
    world.store.fail_randomly(0, 0);
    for at in 0..KEYS {
        let name = format!("k{at}");
        world.until_free(&name).await;
        let last = world.create(&name).await.lock_ref;
        let last = world.acquire(&last).await;
        let value = world.get(&last).await.unwrap();
        world.release(&last).await.unwrap();
        let known = shared.known[at as usize].lock().unwrap();
        assert!(
            known.may_be.contains(&value),
            "{value:?} not of {:?}",
            known.may_be
        );
        assert!(last.grant > Some(known.fence));
        eprintln!(
            "{} {}: {} writes acknowledged, {} unanswered",
            key(&name),
            known.fence,
            known.acknowledged,
            known.unanswered
        );
        assert!(known.acknowledged > 0);
    }
    eprintln!("{:?}", world.engine.counts());
    assert_eq!(world.engine.counts().sessions, 0);
}
