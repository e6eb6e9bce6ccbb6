//! Keys are packed a few milliseconds after each call: also those that came from another replica, and while clients work and
//! keys go from one replica to the other.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fermata::engine::{CreateCall, EngineError, LockStatus};
use fermata::limits::Limits;
use fermata::lock::{LockRef, SessionId};

use super::recorded::Engine;
use super::replicas::{LONG, acquire, create, session, write};
use super::rng::{Rng, seed};
use super::shared::{Service, some_id};
use super::world::{World, call_of, key, put, session_call, soon, until};

const CLIENTS: u64 = 12;
/// So many that a holder is mostly alone, and the one before it gone for a while: else a key is not packed.
const KEYS: u64 = 40;
/// For so much longer they go on where not enough has happened.
const LONGER: Duration = Duration::from_secs(60);
const LONG_TTL_MS: u32 = 600_000;
/// The shortest that there is: of a session that is left to expire.
const SHORT_TTL_MS: u32 = 1_000;

struct Client {
    name: u64,
    engines: [Engine; 2],
    /// Which of them is asked first.
    at: usize,
    rng: Rng,
    until: Instant,
    /// Sections that came to their end.
    done: Arc<AtomicU64>,
    /// Locks that went to the other replica while they were held.
    regranted: Arc<AtomicU64>,
}

fn name_of(at: u64) -> String {
    format!("k{at}")
}

/// The entry has ended.
fn has_ended(error: &EngineError) -> bool {
    matches!(
        error,
        EngineError::Ended(_) | EngineError::EndedDuringWrite(_)
    )
}

/// The key was handed over, or may have been.
fn is_regranted(error: &EngineError) -> bool {
    matches!(
        error,
        EngineError::GrantSuperseded
            | EngineError::SupersededDuringWrite
            | EngineError::ReleasingDuringWrite
            | EngineError::WriteUnknown(_)
    )
}

impl Client {
    fn on(&self) -> bool {
        let now = Instant::now();
        // On a busy machine it takes longer.
        now < self.until || (now < self.until + LONGER && !self.is_enough())
    }

    fn is_enough(&self) -> bool {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        of(&self.done) > 50 && of(&self.regranted) > 0
    }

    /// Asks the home, wherever the key is by now, until it is neither being handed over nor unsure.
    async fn ask<T, F>(&mut self, call: impl Fn(Engine) -> F) -> Result<T, EngineError>
    where
        F: Future<Output = Result<T, EngineError>>,
    {
        loop {
            let engine = self.engines[self.at].of_client(&format!("client {}", self.name));
            match soon(call(engine)).await {
                Err(EngineError::Elsewhere { .. }) => self.at = 1 - self.at,
                Err(EngineError::Unavailable(_) | EngineError::Silent | EngineError::Releasing) => {
                    self.pause(3).await;
                }
                answer => return answer,
            }
        }
    }

    async fn pause(&mut self, ms_max: u64) {
        let pause = self.rng.ms(0, ms_max);
        tokio::time::sleep(pause).await;
    }

    async fn open_session(&mut self, ttl_ms: u32) -> SessionId {
        let call = session_call(some_id(), ttl_ms);
        let opened = self.ask(|engine| {
            let call = call.clone();
            async move { engine.open_session(call).await }
        });
        opened.await.unwrap();
        call.id
    }

    async fn run(mut self) {
        let mut session = self.open_session(LONG_TTL_MS).await;
        while self.on() {
            let name = name_of(self.rng.below(KEYS));
            match self.rng.below(12) {
                0 => {
                    let short = self.open_session(SHORT_TTL_MS).await;
                    self.section(call_of(short, &name), true).await;
                }
                1 => {
                    self.section(call_of(session, &name), true).await;
                    let closed =
                        self.ask(|engine| async move { engine.close_session(session).await });
                    closed.await.unwrap();
                    session = self.open_session(LONG_TTL_MS).await;
                }
                _ => self.section(call_of(session, &name), false).await,
            }
        }
    }

    /// From the beginning of an entry to its end, or until it is left behind.
    async fn section(&mut self, create: CreateCall, is_left: bool) {
        let made = self.ask(|engine| {
            let create = create.clone();
            async move { engine.create(create).await }
        });
        let entry = match made.await {
            Ok(made) => made.lock_ref,
            // It was too slow for its short session.
            Err(EngineError::SessionEnded) => return,
            Err(error) => panic!("{error}"),
        };
        // Under another grant each time: a hand-over ends the one before.
        while let Some(held) = self.wait(&entry).await {
            if self.hold(&held).await && (is_left || self.release(&held).await) {
                self.done.fetch_add(1, Ordering::Relaxed);
                return;
            }
        }
    }

    /// The lock, unless its entry has ended.
    async fn wait(&mut self, entry: &LockRef) -> Option<LockRef> {
        loop {
            let (read_value, wait) = (self.rng.below(2) == 0, self.rng.ms(0, 500));
            let acquired =
                self.ask(|engine| async move { engine.acquire(entry, wait, read_value).await });
            match acquired.await {
                Ok(acquired) if matches!(acquired.status, LockStatus::Held { .. }) => {
                    return Some(acquired.lock_ref);
                }
                Ok(_) => {}
                Err(EngineError::Ended(_)) => return None,
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// Reads and writes, with pauses in which the key is packed, and now and then one in which it is handed over. Whether it
    /// has the lock still.
    async fn hold(&mut self, held: &LockRef) -> bool {
        for _ in 0..self.rng.below(8) {
            let ms_max = [12, 12, 12, 300][self.rng.below(4) as usize];
            self.pause(ms_max).await;
            let done = if self.rng.below(2) == 0 {
                let got = self.ask(|engine| async move { engine.critical_get(held, 0).await });
                got.await.map(drop)
            } else {
                let value = format!("{}/{:x}", self.name, self.rng.next());
                let value = &value;
                let wrote = self
                    .ask(|engine| async move { engine.critical_write(held, put(value), 0).await });
                wrote.await.map(drop)
            };
            match done {
                Ok(()) => {}
                Err(error) if is_regranted(&error) => {
                    self.regranted.fetch_add(1, Ordering::Relaxed);
                    return false;
                }
                Err(error) if has_ended(&error) => return false,
                Err(error) => panic!("{error}"),
            }
        }
        if self.rng.below(8) == 0 {
            // Given once its holder was silent for a second.
            let (from, to) = (&self.engines[self.at], &self.engines[1 - self.at]);
            let _ = to.take_over(&key(held.key.as_str()), from.replica()).await;
        }
        true
    }

    /// Whether it was given back, or ended otherwise.
    async fn release(&mut self, held: &LockRef) -> bool {
        let last = format!("{}/last/{:x}", self.name, self.rng.next());
        let last = Some(last.as_str()).filter(|_| self.rng.below(2) == 0);
        let released = match self.rng.below(10) {
            0 => {
                let forced = self
                    .ask(|engine| async move { engine.force_release(held, "op", "a test").await });
                forced.await.map(drop)
            }
            _ => {
                let released =
                    self.ask(|engine| async move { engine.release(held, last.map(put), 0).await });
                released.await.map(drop)
            }
        };
        match released {
            Ok(()) => true,
            Err(error) if has_ended(&error) => true,
            Err(error) if is_regranted(&error) => {
                self.regranted.fetch_add(1, Ordering::Relaxed);
                false
            }
            Err(error) => panic!("{error}"),
        }
    }
}

/// Asks for keys through the store, each for the replica that is not its home.
async fn move_keys(engines: [Engine; 2], mut rng: Rng) {
    let mut asked = tokio::task::JoinSet::new();
    loop {
        let (id, to) = (key(&name_of(rng.below(KEYS))), rng.below(2) as usize);
        let (to, from) = (engines[to].clone(), engines[1 - to].replica());
        // One that is not there, or is in use for long, stays where it is.
        asked.spawn(async move { to.take_over(&id, from).await.is_ok() });
        while asked.try_join_next().is_some() {}
        tokio::time::sleep(rng.ms(10, 50)).await;
    }
}

async fn stress(write_back: bool) {
    let seconds = std::env::var("FERMATA_STRESS_SECONDS").map_or(6, |s| s.parse().unwrap());
    let seed = seed(20_261_124);
    let mut rng = Rng::new(seed);
    let service = Service::packing(write_back).await;
    service.history.seed(seed);
    let engines = [service.engine(0).clone(), service.engine(1).clone()];
    let until = Instant::now() + Duration::from_secs(seconds);
    let (done, regranted) = (Arc::<AtomicU64>::default(), Arc::<AtomicU64>::default());
    let moving = tokio::spawn(move_keys(engines.clone(), rng.fork()));
    let clients: Vec<_> = (0..CLIENTS)
        .map(|name| {
            let client = Client {
                name,
                engines: engines.clone(),
                at: 0,
                rng: rng.fork(),
                until,
                done: Arc::clone(&done),
                regranted: Arc::clone(&regranted),
            };
            tokio::spawn(client.run())
        })
        .collect();
    for client in clients {
        client.await.unwrap();
    }
    moving.abort();
    assert!(moving.await.unwrap_err().is_cancelled());
    let counts = engines.map(|engine| engine.counts());
    let sum = |count: fn(&fermata::engine::Counts) -> u64| counts.iter().map(count).sum::<u64>();
    let (packed, handed) = (sum(|c| c.packed_keys), sum(|c| c.hand_overs));
    let (done, regranted) = (
        done.load(Ordering::Relaxed),
        regranted.load(Ordering::Relaxed),
    );
    eprintln!(
        "{done} sections, {packed} times packed, {handed} hand-overs, {regranted} of what was held"
    );
    assert!(done > 20 && packed > 20, "{counts:?}");
    assert!(handed > 0 && regranted > 0, "{counts:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_that_a_restart_took_over_are_packed_before_anybody_asks_for_them() {
    let world = World::packing(Limits::default()).await;
    let session = world.open_session(LONG_TTL_MS).await;
    let mut made = Vec::new();
    for at in 0..20 {
        made.push(world.create_in(session, &name_of(at)).await);
    }
    let world = world.restart().await;
    until("all are packed", || async {
        world.engine.counts().packed_keys >= 20
    })
    .await;
    let held = world.acquire(&made[7]).await;
    world.put(&held, "after").await.unwrap();
    assert_eq!(world.get(&held).await, Ok(Some("after".to_owned())));
    world.engine.close_session(session).await.unwrap();
    world.until_free(&name_of(8)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_that_were_locked_once_are_packed_and_make_room_for_others() {
    let world = World::packing(Limits {
        active_keys_max: 20,
        ..Limits::default()
    })
    .await;
    for at in 0..20 {
        let once = world.create(&name_of(at)).await.lock_ref;
        world.release(&once).await.unwrap();
    }
    let counts = || world.engine.counts();
    until("all are packed", || async { counts().packed_keys >= 20 }).await;
    world.store.forget_log();
    world.create(&name_of(7)).await;
    let terms: Vec<u64> = world.store.log().swaps.iter().map(|s| s.term()).collect();
    assert_eq!(terms, [1], "its home knows it still");
    for at in 20..30 {
        world.create(&name_of(at)).await;
    }
    assert_eq!(counts().forgotten_keys, 10);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_was_packed_is_still_of_the_machine_that_locked_it() {
    let world = World::packing(Limits {
        active_keys_max: 20,
        ..Limits::default()
    })
    .await;
    let session = world.open_session(LONG_TTL_MS).await;
    let call = |id: &str| CreateCall {
        share_of: "10.0.0.1".into(),
        ..call_of(session, id)
    };
    let mut made = Vec::new();
    for at in 0..18 {
        let created = soon(world.engine.create(call(&name_of(at)))).await;
        made.push(created.unwrap().lock_ref);
    }
    until("all are packed", || async {
        world.engine.counts().packed_keys >= 18
    })
    .await;
    for lock_ref in &made {
        world.acquire(lock_ref).await;
    }
    let more = soon(world.engine.create(call("more"))).await;
    assert!(
        matches!(more, Err(EngineError::ShareUsed { .. })),
        "{more:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn packed_locks_are_handed_over_at_a_stop_and_packed_there() {
    let service = Service::packing(true).await;
    let (a, b) = (service.engine(0), service.engine(1));
    let session = session(b, LONG_TTL_MS).await;
    let mut made = Vec::new();
    for at in 0..20 {
        made.push(create(a, call_of(session, &name_of(at))).await.lock_ref);
    }
    // Once they are durable.
    until("all are packed", || async { a.counts().packed_keys >= 20 }).await;
    a.stop();
    a.leave(LONG).await;
    until("all are packed again", || async {
        b.counts().packed_keys >= 20
    })
    .await;
    let held = acquire(b, &made[7]).await;
    assert!(held.grant > made[7].grant);
    write(b, &held, "of b").await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_is_packed_between_calls_goes_on_as_it_was() {
    stress(false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_is_packed_between_calls_goes_on_as_it_was_with_write_back() {
    stress(true).await;
}
