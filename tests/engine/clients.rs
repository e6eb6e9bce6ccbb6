//! Clients that lock keys, read, write, give calls up, and leave locks behind. They go on wherever a key is by now, and whatever
//! fails. What they are told is judged by the history.

use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use fermata::engine::{CreateCall, EngineError, LockStatus};
use fermata::lock::{EndReason, EndedAs, LockRef, SessionId};
use tokio::task::JoinHandle;

use super::recorded::Engine;
use super::rng::Rng;
use super::shared::some_id;
use super::world::{call_of, key, put, session_call, soon};

/// For so much longer they go on where not enough has happened.
const LONGER: Duration = Duration::from_secs(60);
pub const LONG_TTL_MS: u32 = 600_000;
/// The shortest that there is: of a session that is left to expire.
const SHORT_TTL_MS: u32 = 1_000;

pub fn name_of(at: u64) -> String {
    format!("k{at}")
}

/// What all clients of a test share.
pub struct Crowd {
    /// The replicas.
    pub engines: Mutex<Vec<Engine>>,
    keys: u64,
    /// So many of a hundred calls are dropped in the middle, as if their client had gone away.
    given_up_percent: u64,
    until: Instant,
    /// Sections that came to their end.
    pub done: AtomicU64,
    /// Locks that had to be asked for again while they were held.
    pub asked_again: AtomicU64,
}

impl Crowd {
    pub fn new(engines: Vec<Engine>, keys: u64, given_up_percent: u64) -> Arc<Crowd> {
        let seconds = std::env::var("FERMATA_STRESS_SECONDS").map_or(6, |s| s.parse().unwrap());
        Arc::new(Crowd {
            engines: Mutex::new(engines),
            keys,
            given_up_percent,
            until: Instant::now() + Duration::from_secs(seconds),
            done: AtomicU64::new(0),
            asked_again: AtomicU64::new(0),
        })
    }

    pub fn is_on(&self) -> bool {
        let now = Instant::now();
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let is_enough = of(&self.done) > 50 && of(&self.asked_again) > 0;
        // On a busy machine it takes longer.
        now < self.until || (now < self.until + LONGER && !is_enough)
    }

    pub fn start(self: &Arc<Self>, clients: u64, rng: &mut Rng) -> Vec<JoinHandle<()>> {
        let client = |name| Client {
            name,
            crowd: Arc::clone(self),
            at: 0,
            rng: rng.fork(),
        };
        let clients = (0..clients).map(client);
        clients.map(|client| tokio::spawn(client.run())).collect()
    }
}

struct Client {
    name: u64,
    crowd: Arc<Crowd>,
    /// Which replica is asked first.
    at: usize,
    rng: Rng,
}

/// How the entry has ended, if it has.
fn end_of(error: &EngineError) -> Option<&EndedAs> {
    match error {
        EngineError::Ended(end) | EngineError::EndedDuringWrite(end) => Some(end),
        _ => None,
    }
}

/// What is not left behind lives by a long session: nothing but its client ends it (I5, I6, I8).
fn ended_by_its_client(end: &EndedAs) {
    let by_it = matches!(
        end,
        EndedAs::Released | EndedAs::Lost(EndReason::Forced { .. })
    );
    assert!(by_it, "{end:?}");
}

/// The key was handed over or taken over, or may have been.
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
    fn engine(&self) -> Engine {
        let engines = self.crowd.engines.lock().unwrap();
        let engine = &engines[self.at % engines.len()];
        engine.of_client(&format!("client {}", self.name))
    }

    /// Asks the home, wherever the key is by now, until it is neither being handed over nor unsure.
    async fn ask<T, F>(&mut self, call: impl Fn(Engine) -> F) -> Result<T, EngineError>
    where
        F: Future<Output = Result<T, EngineError>>,
    {
        loop {
            let call = call(self.engine());
            let answer = if self.rng.below(100) < self.crowd.given_up_percent {
                let patience = Duration::from_micros(self.rng.below(4_000));
                let answer = tokio::time::timeout(patience, call).await;
                answer.unwrap_or_else(|_| Err(EngineError::Unavailable("given up".to_owned())))
            } else {
                soon(call).await
            };
            match answer {
                Err(EngineError::Elsewhere { .. }) => self.at += 1,
                Err(
                    EngineError::Unavailable(_)
                    | EngineError::Silent
                    | EngineError::Stopping
                    | EngineError::Releasing,
                ) => self.pause(3).await,
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

    async fn close_session(&mut self, session: SessionId) {
        let closed = self.ask(|engine| async move { engine.close_session(session).await });
        closed.await.unwrap();
    }

    async fn run(mut self) {
        let mut session = self.open_session(LONG_TTL_MS).await;
        while self.crowd.is_on() {
            let name = name_of(self.rng.below(self.crowd.keys));
            match self.rng.below(12) {
                0 => {
                    let short = self.open_session(SHORT_TTL_MS).await;
                    self.section(call_of(short, &name), true).await;
                }
                1 => {
                    self.section(call_of(session, &name), true).await;
                    self.close_session(session).await;
                    session = self.open_session(LONG_TTL_MS).await;
                }
                _ => self.section(call_of(session, &name), false).await,
            }
        }
        self.close_session(session).await;
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
            Err(EngineError::SessionEnded | EngineError::Ended(_)) if is_left => return,
            Err(error) => panic!("{error}"),
        };
        // Under another grant each time: a hand-over ends the one before.
        while let Some(held) = self.wait(&entry, is_left).await {
            if self.hold(&held).await && (is_left || self.release(&held).await) {
                self.crowd.done.fetch_add(1, Ordering::Relaxed);
                return;
            }
        }
    }

    /// The lock, unless its entry has ended.
    async fn wait(&mut self, entry: &LockRef, is_left: bool) -> Option<LockRef> {
        loop {
            let (read_value, wait) = (self.rng.below(2) == 0, self.rng.ms(0, 500));
            let acquired =
                self.ask(|engine| async move { engine.acquire(entry, wait, read_value).await });
            match acquired.await {
                Ok(acquired) if matches!(acquired.status, LockStatus::Held { .. }) => {
                    return Some(acquired.lock_ref);
                }
                Ok(_) => {}
                Err(EngineError::Ended(end)) => {
                    if !is_left {
                        ended_by_its_client(&end);
                    }
                    return None;
                }
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// Whether it has the lock still.
    fn has_lock(&self, done: Result<(), EngineError>) -> bool {
        match done {
            Ok(()) => true,
            Err(error) if is_regranted(&error) => {
                self.crowd.asked_again.fetch_add(1, Ordering::Relaxed);
                false
            }
            Err(error) if end_of(&error).is_some() => false,
            Err(error) => panic!("{error}"),
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
            if !self.has_lock(done) {
                return false;
            }
        }
        let engines = self.crowd.engines.lock().unwrap().clone();
        if let [one, other] = &engines[..]
            && self.rng.below(8) == 0
        {
            // Given once its holder was silent for a second.
            let (from, to) = match self.at % 2 {
                0 => (one, other),
                _ => (other, one),
            };
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
        match released.as_ref().err().and_then(end_of) {
            Some(end) => ended_by_its_client(end),
            None => return self.has_lock(released),
        }
        true
    }
}
