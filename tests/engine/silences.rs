//! Waiters without a session whose home is silent: taken over without its agreement once that was so for their TTL, as
//! the one that takes them saw (I9, I10).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use fermata::engine::{Clock as _, Engine, EngineError, Presence};
use fermata::lock::{LockRef, ReplicaId, Seq, SessionId};
use fermata::store::Store as _;
use tokio::task::JoinHandle;

use super::manual_clock::ManualClock;
use super::replicas::acquire;
use super::shared::{Service, some_id};
use super::world::{call, call_of, key, put, session_call, soon, until};

/// No replica is down in the time of a test.
const REPLICA_TTL: Duration = Duration::from_secs(120);
const TTL: Duration = Duration::from_secs(20);
/// What an entry with that TTL is silent for before anybody may end it.
const SILENCE: Duration = Duration::from_millis(22_100);
/// How long a home is silent before anybody asks for what it has.
const UNSEEN: Duration = Duration::from_secs(15);
const STEP: Duration = Duration::from_millis(100);

/// Some replicas, of which the first one is to crash with all entries of the key.
struct World {
    service: Service,
    clock: Arc<ManualClock>,
    /// The id of the first one, until it crashes.
    home: ReplicaId,
}

/// Who serves which entry of the key now.
type Homes = BTreeMap<Seq, ReplicaId>;

impl World {
    async fn of(replicas: usize) -> World {
        let clock = ManualClock::new();
        let service = Service::at(Arc::clone(&clock) as _, &vec![REPLICA_TTL; replicas]).await;
        // What was believed by this clock is judged by the tests themselves.
        service.history.leave_unchecked();
        let home = service.engine(0).replica();
        let world = World {
            service,
            clock,
            home,
        };
        for replica in &world.service.replicas[1..] {
            let known = |_: &Homes| matches!(replica.engine.presence(home), Presence::Live(_));
            world.passes_until(TTL, known).await.unwrap();
        }
        world
    }

    fn taker(&self) -> &Engine {
        self.service.engine(1)
    }

    /// An entry of the one that is to crash.
    async fn enqueue(&self, ttl: Duration) -> LockRef {
        let ttl_ms = u32::try_from(ttl.as_millis()).unwrap();
        let engine = self.service.engine(0);
        soon(engine.create(call("k", ttl_ms)))
            .await
            .unwrap()
            .lock_ref
    }

    /// The same, in a session that one of the replicas keeps.
    async fn entry_in_session(&self, keeper: usize) -> (SessionId, LockRef) {
        let ttl_ms = u32::try_from(TTL.as_millis()).unwrap();
        let open = session_call(some_id(), ttl_ms);
        let keeper = self.service.engine(keeper);
        let (session, _) = soon(keeper.open_session(open)).await.unwrap();
        let create = self.service.engine(0).create(call_of(session, "k"));
        (session, soon(create).await.unwrap().lock_ref)
    }

    /// It crashes, and nobody looks at the key for a while.
    async fn crashes(&self) {
        self.service.kill(0);
        self.clock.advance(UNSEEN).await;
    }

    /// A client comes to the other one with an entry, again and again until that serves it, and waits there.
    fn asks_for(&self, entry: &LockRef) -> JoinHandle<LockRef> {
        self.asks_at(1, entry)
    }

    fn asks_at(&self, number: usize, entry: &LockRef) -> JoinHandle<LockRef> {
        let (taker, home) = (self.service.engine(number).clone(), self.home);
        let (clock, entry) = (Arc::clone(&self.clock), entry.clone());
        tokio::spawn(async move {
            loop {
                match taker.take_over(&entry, home).await {
                    Ok(()) => return acquire(&taker, &entry).await,
                    Err(EngineError::Unavailable(_)) => clock.sleep(STEP).await,
                    Err(error) => panic!("{error:?}"),
                }
            }
        })
    }

    async fn homes(&self) -> Homes {
        let described = soon(self.taker().describe(&key("k"))).await.unwrap();
        let entries = described.state.entries.iter();
        entries.map(|entry| (entry.seq, entry.home)).collect()
    }

    /// Lets time pass until something is so. How much; none if it was not so by the end of `most`.
    async fn passes_until(
        &self,
        most: Duration,
        holds: impl Fn(&Homes) -> bool,
    ) -> Option<Duration> {
        let begun = self.clock.boot();
        while self.clock.boot() - begun <= most {
            if holds(&self.homes().await) {
                return Some(self.clock.boot() - begun);
            }
            self.clock.advance(STEP).await;
            // The store works in time of its own.
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        None
    }
}

#[tokio::test]
async fn a_waiter_of_a_silent_home_is_taken_over_after_its_ttl_and_the_holder_ends_with_that() {
    let world = World::of(2).await;
    let held = world.enqueue(TTL).await;
    let engine = world.service.engine(0);
    soon(engine.critical_write(&held, put("last words"), 0))
        .await
        .unwrap();
    // Its client is gone, too.
    let gone = world.enqueue(TTL).await;
    let waiting = world.enqueue(TTL).await;
    world.crashes().await;
    let asking = world.asks_for(&waiting);
    let me = world.taker().replica();
    let taken = |homes: &Homes| homes.get(&waiting.seq) == Some(&me);
    let after = world.passes_until(2 * TTL, taken).await.unwrap();
    assert!(after >= SILENCE, "after {after:?}");
    let ended = |homes: &Homes| !homes.contains_key(&held.seq) && !homes.contains_key(&gone.seq);
    let later = world.passes_until(TTL / 2, ended).await;
    assert!(
        later.is_some(),
        "those ahead were watched from then on only"
    );
    let held = soon(asking).await.unwrap();
    let value = soon(world.taker().critical_get(&held, 0)).await.unwrap();
    assert_eq!(value.value.bytes.unwrap(), "last words");
}

#[tokio::test]
async fn a_holder_whose_home_is_silent_is_taken_over_only_once_that_is_down() {
    let world = World::of(2).await;
    let held = world.enqueue(TTL).await;
    let waiting = world.enqueue(TTL).await;
    world.crashes().await;
    let (of_holder, of_waiter) = (world.asks_for(&held), world.asks_for(&waiting));
    let me = world.taker().replica();
    let taken = |homes: &Homes| homes.values().any(|home| *home == me);
    assert_eq!(world.passes_until(SILENCE / 2, taken).await, None);
    // The waiter holds the key before its home was silent for long enough.
    soon(world.taker().force_release(&held, "ops", "stuck"))
        .await
        .unwrap();
    of_holder.abort();
    assert_eq!(world.passes_until(2 * SILENCE, taken).await, None);
    assert!(world.homes().await.contains_key(&waiting.seq));
    assert!(!of_waiter.is_finished());
    let down = |_: &Homes| world.taker().presence(world.home) == Presence::Down;
    world.passes_until(REPLICA_TTL, down).await.unwrap();
    world.passes_until(TTL, taken).await.unwrap();
    soon(of_waiter).await.unwrap();
}

#[tokio::test]
async fn a_waiter_that_is_asked_for_does_not_become_the_holder_of_a_silent_home() {
    let world = World::of(2).await;
    let held = world.enqueue(TTL / 2).await;
    let first = world.enqueue(TTL).await;
    let second = world.enqueue(TTL / 2).await;
    world.crashes().await;
    let (of_first, of_second) = (world.asks_for(&first), world.asks_for(&second));
    let me = world.taker().replica();
    let has = |seq| move |homes: &Homes| homes.get(&seq) == Some(&me);
    let second_after = world.passes_until(SILENCE, has(second.seq)).await.unwrap();
    assert!(second_after < TTL * 3 / 4, "after {second_after:?}");
    // The holder could be ended, but the next one is not here yet.
    let first_after = world.passes_until(SILENCE, has(first.seq)).await.unwrap();
    assert!(second_after + first_after >= SILENCE);
    let ended = |homes: &Homes| !homes.contains_key(&held.seq);
    world.passes_until(TTL / 2, ended).await.unwrap();
    let held = soon(of_first).await.unwrap();
    soon(world.taker().release(&held, None, 0)).await.unwrap();
    soon(of_second).await.unwrap();
}

#[tokio::test]
async fn waiters_that_are_asked_for_at_several_replicas_keep_their_entries() {
    let world = World::of(3).await;
    let held = world.enqueue(TTL).await;
    let first = world.enqueue(TTL).await;
    let second = world.enqueue(TTL).await;
    world.crashes().await;
    // The other one sees the first waiter a little sooner than the one that it is asked for at.
    let of_second = world.asks_at(2, &second);
    world.clock.advance(Duration::from_millis(500)).await;
    let of_first = world.asks_at(1, &first);
    let [b, c] = [1, 2].map(|number| world.service.engine(number));
    let all_moved = |homes: &Homes| homes.values().eq([&b.replica(), &c.replica()]);
    world.passes_until(2 * TTL, all_moved).await.unwrap();
    let ended = |homes: &Homes| !homes.contains_key(&held.seq);
    world.passes_until(TTL / 2, ended).await.unwrap();
    let held = soon(of_first).await.unwrap();
    soon(b.release(&held, None, 0)).await.unwrap();
    let next = |_: &Homes| of_second.is_finished();
    world.passes_until(TTL / 2, next).await.unwrap();
    soon(of_second).await.unwrap();
}

#[tokio::test]
async fn the_session_of_a_holder_is_watched_as_soon_as_the_next_one_waits_and_frees_the_key_at_once()
 {
    let world = World::of(2).await;
    let (session, held) = world.entry_in_session(0).await;
    let (_, waiting) = world.entry_in_session(1).await;
    world.service.kill(0);
    let waits = world.asks_for(&waiting);
    // Not when it is time to look at keys for which nobody waits.
    let link = &world.service.replicas[1].link;
    for _ in 0..20 {
        world.clock.advance(STEP / 5).await;
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(link.has_read(session), "nobody watches it");
    let is_closed = || async { !link.load_session(session).await.unwrap().unwrap().open };
    while !is_closed().await {
        assert!(world.homes().await.contains_key(&held.seq));
        world.clock.advance(STEP).await;
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    // From here on the clock stands still.
    until("the holder is ended", || async {
        !world.homes().await.contains_key(&held.seq)
    })
    .await;
    soon(waits).await.unwrap();
}
