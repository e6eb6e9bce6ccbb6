//! One client: the real library, doing sections as the seed says, noting what it asks and hears.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fermata::lock::LockRef;
use fermata_client::{
    Client, ClientOptions, CreateError, CriticalError, LockGuard, LockRequest, Lost, LostReason,
    Moment, Mutation, QueueEntry, ReleaseError, Session, SessionRequest, WaitError,
};
use hyper_util::rt::TokioIo;
use tokio::task::JoinHandle;
use tokio::time::sleep;
use tonic::transport::{Channel, Endpoint};

use super::clocks::{HostClock, random_uuid};
use super::counter;
use super::history::{Call, Learned, Op, Outcome};
use super::net::Node;
use super::replica::{addresses, dial};
use super::rng::Rng;
use super::world::World;

/// One host that runs clients, one after the other.
pub struct ClientHost {
    pub host: usize,
    /// Which counter is its.
    number: usize,
    pub name: String,
    clock: Arc<HostClock>,
    rng: Mutex<Rng>,
    running: Mutex<Option<(Node, JoinHandle<()>)>>,
    lives: AtomicU32,
}

impl ClientHost {
    pub fn new(host: usize, number: usize, clock: Arc<HostClock>, rng: Rng) -> ClientHost {
        ClientHost {
            host,
            number,
            name: format!("client-{number}"),
            clock,
            rng: Mutex::new(rng),
            running: Mutex::new(None),
            lives: AtomicU32::new(0),
        }
    }

    pub fn start(&self, world: &Arc<World>) {
        let mut running = self.running.lock().unwrap();
        if running.is_some() {
            return;
        }
        let life = 1 + self.lives.fetch_add(1, Ordering::Relaxed);
        let host = self.host;
        let node = Node { host, life };
        let mut rng = self.rng.lock().unwrap().fork();
        let name: Arc<str> = format!("{}.{life}", self.name).into();
        world.log.note(&name, "starts");
        let caller = Caller {
            client: client(world, node, &self.clock, &mut rng),
            world: Arc::clone(world),
            clock: Arc::clone(&self.clock),
            name,
            number: self.number,
            rng,
            session: None,
        };
        *running = Some((node, tokio::task::spawn_local(caller.run())));
    }

    /// It is gone at once, without a word to anybody, or with its connections breaking.
    pub fn kill(&self, world: &World, is_heard: bool) {
        let Some((node, task)) = self.running.lock().unwrap().take() else {
            return;
        };
        world.log.fault(&self.name, "is killed");
        world.net.kill(node, is_heard);
        task.abort();
    }

    /// It has done all that it had to.
    pub fn is_done(&self) -> bool {
        let running = self.running.lock().unwrap();
        running.as_ref().is_some_and(|(_, task)| task.is_finished())
    }
}

/// The real client, by connections of this process to each replica, beginning with any.
pub fn client(world: &World, node: Node, clock: &Arc<HostClock>, rng: &mut Rng) -> Client {
    let options = ClientOptions {
        ping_interval: Duration::from_secs(1 + rng.below(4)),
        ..ClientOptions::default()
    };
    let replicas = world.replicas.len();
    let first = rng.below(replicas as u64) as usize;
    let connectors = (0..replicas).map(|n| {
        let address = addresses((first + n) % replicas)[0].clone();
        let connect = connector(world, node, &address, &options);
        (address, connect)
    });
    let clock = Arc::clone(clock);
    Client::from_connectors_and_clock(connectors, options.clone(), clock).unwrap()
}

/// Makes connections to a replica.
fn connector(
    world: &World,
    node: Node,
    address: &str,
    options: &ClientOptions,
) -> impl Fn() -> Channel + Send + Sync + use<> {
    let net = world.net.clone();
    let endpoint = Endpoint::from_shared(format!("http://{address}"))
        .unwrap()
        .connect_timeout(options.connect_timeout)
        .http2_keep_alive_interval(options.ping_interval)
        .keep_alive_timeout(options.ping_interval);
    move || {
        let dial = dial(&net, node);
        let connector = tower::service_fn(move |uri| {
            let opened = dial(uri);
            async move { Ok::<_, std::io::Error>(TokioIo::new(opened.await?)) }
        });
        endpoint.connect_with_connector_lazy(connector)
    }
}

struct Caller {
    world: Arc<World>,
    client: Client,
    clock: Arc<HostClock>,
    name: Arc<str>,
    number: usize,
    rng: Rng,
    session: Option<Session>,
}

/// What a loss tells of the entry.
fn learned(lost: &Lost) -> Learned {
    match lost.reason {
        // Known by its own clock only.
        LostReason::ValidityEnded | LostReason::NeverIssued | LostReason::Unknown => {
            Learned::Nothing
        }
        LostReason::Released => Learned::Released,
        _ => Learned::Ended,
    }
}

/// What is known of a critical call that failed. That it was lost on the way says nothing of what was done.
fn failed(error: &CriticalError) -> Outcome {
    match error {
        CriticalError::Lost(lost) => Outcome::Unknown(learned(lost)),
        _ => Outcome::Unknown(Learned::Nothing),
    }
}

fn done_or_unknown<T, E>(done: &Result<T, E>) -> Outcome {
    match done {
        Ok(_) => Outcome::Done,
        Err(_) => Outcome::Unknown(Learned::Nothing),
    }
}

/// What came of a section.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Section {
    /// A read and a write of the holder were acknowledged.
    Counted,
    InVain,
}

/// Something that is asked for.
struct LockAttempt {
    call: Call,
    name: String,
}

/// A key that is held.
struct Held {
    guard: Arc<LockGuard>,
    key: String,
    lock_ref: LockRef,
}

impl Held {
    fn seq(&self) -> u64 {
        self.lock_ref.seq.0
    }
}

impl Caller {
    async fn run(mut self) {
        while !self.world.is_healed() {
            let pause = self.ms(0, 600);
            sleep(pause).await;
            let key = self.world.key(&mut self.rng);
            let limit = match self.rng.below(6) {
                0 => Duration::ZERO,
                1 => self.ms(10, 500),
                _ => self.ms(1_000, 20_000),
            };
            self.section(&key, limit).await;
        }
        // Whoever asks now gets its turn, and counts.
        for key in self.world.keys() {
            while self.section(&key, Duration::from_secs(10)).await != Section::Counted {
                let pause = self.ms(10, 200);
                sleep(pause).await;
            }
        }
        self.close().await;
        self.world.log.note(&self.name, "is done");
    }

    fn ms(&mut self, least: u64, most: u64) -> Duration {
        self.rng.ms(least, most)
    }

    fn say(&self, what: impl std::fmt::Display) {
        self.world.log.note(&self.name, what);
    }

    /// Begins to ask for something.
    fn asks(&self, op: Op, key: &str) -> LockAttempt {
        let log = &self.world.log;
        log.operation();
        let name = format!("{op:?}");
        let name = name.split(['(', ' ']).next().unwrap_or_default();
        let name = format!("{name} {key}");
        self.say(format_args!("{name} ..."));
        let call = self.world.history.call(&self.name, op, |event| {
            event.key = key.into();
        });
        LockAttempt { call, name }
    }

    /// What came of it.
    fn hears<T, E: std::fmt::Display>(
        &self,
        asked: LockAttempt,
        outcome: Outcome,
        done: &Result<T, E>,
    ) {
        let LockAttempt { call, name } = asked;
        call.came_to(outcome);
        match done {
            Ok(_) => self.say(format_args!("{name}: {outcome:?}")),
            Err(error) => self.say(format_args!("{name}: {outcome:?}: {error}")),
        }
    }

    /// Sometimes in a session, which may be given up and opened anew.
    async fn lives_by_session(&mut self) -> bool {
        if !self.number.is_multiple_of(2) {
            return false;
        }
        if self.rng.below(12) == 0 {
            self.close().await;
        }
        if let Some(session) = &self.session
            && session.valid_until().is_none()
        {
            self.session = None;
        }
        if self.session.is_none() {
            let mut request = SessionRequest::new().ttl(self.ms(2_000, 10_000));
            if self.rng.below(4) == 0 {
                request = request.disconnect_grace(self.ms(500, 2_000));
            }
            match self.client.open_session(request).await {
                Ok(session) => {
                    self.say(format_args!(
                        "session {} of {:?}",
                        session.text(),
                        session.ttl()
                    ));
                    self.session = Some(session);
                }
                Err(error) => self.say(format_args!("no session: {error}")),
            }
        }
        self.session.is_some()
    }

    async fn close(&mut self) {
        let Some(session) = self.session.take() else {
            return;
        };
        let mut asked = self.asks(Op::CloseSession, "");
        asked.call.event.session = Some(session.text().into());
        let closed = session.close().await;
        self.hears(asked, done_or_unknown(&closed), &closed);
    }

    /// Asks for the key, and counts once it is held.
    async fn section(&mut self, key: &str, limit: Duration) -> Section {
        let in_session = self.lives_by_session().await;
        let ttl = self.ms(2_000, 10_000);
        let request = LockRequest::new(key).ttl(ttl).owner(self.name.to_string());
        let op = Op::Create {
            request: random_uuid(&mut self.rng),
        };
        let session = self.session.clone().filter(|_| in_session);
        let mut asked = self.asks(op, key);
        asked.call.event.session = session.as_ref().map(|session| session.text().into());
        let entry = match &session {
            Some(session) => session.enqueue(request).await,
            None => self.client.enqueue(request).await,
        };
        let outcome = match &entry {
            Ok(entry) => {
                if let Ok(lock_ref) = LockRef::parse(entry.lock_ref(), "") {
                    asked.call.event.names(&lock_ref);
                }
                asked.call.event.until = Some(self.global(entry.valid_until()));
                Outcome::Done
            }
            Err(CreateError::Unavailable(_) | CreateError::Other(_)) => {
                Outcome::Unknown(Learned::Nothing)
            }
            Err(_) => Outcome::Refused(Learned::Nothing),
        };
        self.hears(asked, outcome, &entry);
        let Ok(mut entry) = entry else {
            return Section::InVain;
        };
        let lock_ref = LockRef::parse(entry.lock_ref(), "").unwrap();
        let Some(held) = self.wait(&mut entry, key, &lock_ref, limit).await else {
            // One that was lost while it waited was made again.
            let lock_ref = LockRef::parse(entry.lock_ref(), "").unwrap();
            if self.rng.below(2) == 0 {
                let mut asked = self.asks(Op::Release(None), key);
                asked.call.event.names(&lock_ref);
                let given_up = entry.give_up().await;
                self.hears(asked, done_or_unknown(&given_up), &given_up);
            } else {
                self.gives_back(&lock_ref);
            }
            return Section::InVain;
        };
        self.count(held).await
    }

    /// It is dropped, and so given back in the background.
    fn gives_back(&self, lock_ref: &LockRef) {
        self.say(format_args!("drops {lock_ref}"));
        let call = self
            .world
            .history
            .call(&self.name, Op::Release(None), |event| {
                event.names(lock_ref);
            });
        drop(call);
    }

    async fn wait(
        &self,
        entry: &mut QueueEntry,
        key: &str,
        lock_ref: &LockRef,
        limit: Duration,
    ) -> Option<Held> {
        let mut asked = self.asks(Op::Acquire, key);
        let event = &mut asked.call.event;
        event.names(lock_ref);
        let waited = entry.wait(Some(limit)).await;
        let lock_ref = LockRef::parse(entry.lock_ref(), "").unwrap();
        let event = &mut asked.call.event;
        event.names(&lock_ref);
        let outcome = match &waited {
            Ok(guard) => {
                event.grant = Some(guard.fencing_token());
                event.until = self.until(guard);
                Outcome::Done
            }
            Err(WaitError::TimedOut { .. }) => {
                event.until = Some(self.global(entry.valid_until()));
                Outcome::Done
            }
            Err(WaitError::Lost(lost)) => Outcome::Refused(learned(lost)),
            Err(_) => Outcome::Unknown(Learned::Nothing),
        };
        self.hears(asked, outcome, &waited);
        let guard = Arc::new(waited.ok()?);
        let held = Held {
            guard,
            key: key.to_owned(),
            lock_ref,
        };
        let World { log, cluster, .. } = &*self.world;
        let who = (&*self.name, key, held.seq());
        cluster
            .beliefs
            .begin(log, who, &held.guard, &cluster.row(key));
        Some(held)
    }

    /// A moment of its clock in the time of the simulation, a little earlier.
    fn global(&self, moment: Moment) -> Duration {
        const MARGIN: Duration = Duration::from_millis(2);
        self.clock.in_global_time(moment).saturating_sub(MARGIN)
    }

    /// Until when it is sure of the lock.
    fn until(&self, guard: &LockGuard) -> Option<Duration> {
        Some(self.global(guard.valid_until()?))
    }

    /// Notes a critical call. It was answered under the grant that is known by then.
    fn answered<T>(&self, held: &Held, mut asked: LockAttempt, done: &Result<T, CriticalError>) {
        let event = &mut asked.call.event;
        event.grant = Some(held.guard.fencing_token());
        let outcome = match done {
            Ok(_) => {
                event.until = self.until(&held.guard);
                Outcome::Done
            }
            Err(error) => failed(error),
        };
        self.hears(asked, outcome, done);
    }

    async fn read(&self, held: &Held) -> Option<Vec<u64>> {
        let clients = self.world.clients.len();
        let mut asked = self.asks(Op::Get, &held.key);
        asked.call.event.names(&held.lock_ref);
        asked.call.event.grant = Some(held.guard.fencing_token());
        let read = held.guard.get().await;
        asked.call.event.read = read.as_ref().ok().cloned();
        self.answered(held, asked, &read);
        let value = read.ok()?;
        let counts = counter::parse(value.as_deref(), clients);
        let is_forced = self.world.cluster.beliefs.is_forced(&held.key, held.seq());
        if !is_forced {
            let counters = &self.world.counters;
            counters.read(&self.world.log, &self.name, &held.key, &counts);
        }
        Some(counts)
    }

    /// Reads, adds one, writes; or only looks.
    async fn count(&mut self, held: Held) -> Section {
        let Some(mut counts) = self.read(&held).await else {
            return self.leave(held, None).await;
        };
        let pause = match self.rng.below(20) {
            0 => self.ms(500, 8_000),
            1..6 => self.ms(50, 500),
            _ => self.ms(0, 30),
        };
        sleep(pause).await;
        if self.rng.below(4) == 0 {
            // Only looks: what it saw, and what it sees now, is what the next one sees.
            self.read(&held).await;
            return self.leave(held, None).await;
        }
        counts[self.number] += 1;
        let mine = counts[self.number];
        let tag = format!("{}/{:x}", self.name, self.rng.next());
        let value = counter::print(&counts, &tag);
        if self.rng.below(4) == 0 {
            return self.leave(held, Some((mine, value))).await;
        }
        self.world.counters.asked(&held.key, self.number, mine);
        let mut asked = self.asks(Op::Put(Some(value.clone().into())), &held.key);
        asked.call.event.names(&held.lock_ref);
        asked.call.event.grant = Some(held.guard.fencing_token());
        let put = held.guard.put(value).await;
        self.answered(&held, asked, &put);
        if put.is_ok() {
            self.acknowledged(&held.key, held.seq(), mine);
        }
        if self.rng.below(3) == 0 {
            self.read(&held).await;
        }
        self.leave(held, None).await;
        match put {
            Ok(_) => Section::Counted,
            Err(_) => Section::InVain,
        }
    }

    fn acknowledged(&self, key: &str, seq: u64, count: u64) {
        let world = &self.world;
        // After an end by force an acknowledgement promises nothing.
        if !world.cluster.beliefs.is_forced(key, seq) {
            let counters = &world.counters;
            counters.acknowledged(&world.log, &self.name, key, self.number, count);
        }
    }

    /// Gives the key back, perhaps with a last write; or forgets to.
    async fn leave(&mut self, held: Held, put: Option<(u64, String)>) -> Section {
        let Held {
            guard,
            key,
            lock_ref,
        } = held;
        let is_lost = guard.valid_until().is_none();
        let Ok(guard) = Arc::try_unwrap(guard) else {
            self.world.log.violation("a guard is in two hands");
            return Section::InVain;
        };
        if put.is_none() && self.rng.below(6) == 0 {
            self.gives_back(&lock_ref);
            drop(guard);
            return Section::InVain;
        }
        let grant = guard.fencing_token();
        let op = Op::Release(put.as_ref().map(|(_, value)| Some(value.clone().into())));
        if let Some((count, _)) = &put {
            self.world.counters.asked(&key, self.number, *count);
        }
        let mut asked = self.asks(op, &key);
        asked.call.event.names(&lock_ref);
        asked.call.event.grant = Some(grant);
        let released = match &put {
            Some((_, value)) => {
                guard
                    .release_with(Mutation::Put(value.clone().into()))
                    .await
            }
            None => guard.release().await,
        };
        let outcome = match &released {
            Ok(()) => Outcome::Done,
            Err(ReleaseError::Lost(lost)) if !is_lost => Outcome::Unknown(learned(lost)),
            Err(_) => Outcome::Unknown(Learned::Nothing),
        };
        self.hears(asked, outcome, &released);
        let (Ok(()), Some((count, _))) = (released, put) else {
            return Section::InVain;
        };
        self.acknowledged(&key, lock_ref.seq.0, count);
        Section::Counted
    }
}
