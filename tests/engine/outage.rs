//! Clients that go on asking while the store does not answer: they are there, whatever they are told (I5, I9).

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use fermata::engine::{Acquired, EngineError, LockStatus};
use fermata::lock::LockRef;

use super::manual_clock::ManualClock;
use super::recorded::Engine;
use super::shared::{Service, some_id};
use super::world::{call, call_of, session_call, soon};

/// No replica is down in the time of a test.
const REPLICA_TTL: Duration = Duration::from_secs(600);
const TTL_MS: u32 = 20_000;
const SECOND: Duration = Duration::from_secs(1);

/// What a call comes to, while time passes.
pub async fn meanwhile<T>(clock: &ManualClock, call: impl Future<Output = T>) -> T {
    let passing = async {
        loop {
            clock.advance(SECOND / 10).await;
            // The store works in time of its own.
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::select! {
        biased;
        answer = soon(call) => answer,
        () = passing => unreachable!(),
    }
}

/// One call for the lock, and a little time after it.
async fn asks(
    engine: &Engine,
    clock: &ManualClock,
    entry: &LockRef,
) -> Result<Acquired, EngineError> {
    let answer = meanwhile(clock, engine.acquire(entry, Duration::ZERO, false)).await;
    clock.advance(SECOND).await;
    answer
}

/// For longer than two TTLs nothing comes through between the replica and its store, and one asks for its lock.
async fn asks_through_an_outage(service: &Service, clock: &ManualClock, entry: &LockRef) {
    let (engine, link) = (service.engine(0), &service.replicas[0].link);
    link.cut(true);
    for _ in 0..45 {
        match asks(engine, clock, entry).await {
            Err(EngineError::Unavailable(_)) => {}
            Ok(acquired) => assert!(matches!(acquired.status, LockStatus::Waiting { .. })),
            other => panic!("{other:?}"),
        }
    }
    link.cut(false);
}

/// The holder before it goes, and its turn has come.
async fn gets_its_turn(service: &Service, clock: &ManualClock, before: &LockRef, entry: &LockRef) {
    let engine = service.engine(0);
    let forced = engine.force_release(before, "ops", "its turn has ended");
    meanwhile(clock, forced).await.unwrap();
    for _ in 0..10 {
        match asks(engine, clock, entry).await {
            Ok(acquired) if matches!(acquired.status, LockStatus::Held { .. }) => return,
            Ok(_) | Err(EngineError::Unavailable(_)) => {}
            Err(error) => panic!("{error:?}"),
        }
    }
    panic!("it never got its turn");
}

async fn service(replicas: usize) -> (Service, Arc<ManualClock>) {
    let clock = ManualClock::new();
    let service = Service::at(Arc::clone(&clock) as _, &vec![REPLICA_TTL; replicas]).await;
    // What was believed by this clock is judged by the tests themselves.
    service.history.leave_unchecked();
    (service, clock)
}

#[tokio::test]
async fn a_waiter_that_goes_on_asking_outlives_an_outage_of_the_store() {
    let (service, clock) = service(1).await;
    let engine = service.engine(0);
    let held = soon(engine.create(call("k", 600_000))).await.unwrap();
    let waiting = soon(engine.create(call("k", TTL_MS))).await.unwrap();
    asks_through_an_outage(&service, &clock, &waiting.lock_ref).await;
    gets_its_turn(&service, &clock, &held.lock_ref, &waiting.lock_ref).await;
}

#[tokio::test]
async fn calls_in_an_outage_of_the_store_keep_a_session_alive_wherever_that_is_kept() {
    for keeper in [0, 1] {
        let (service, clock) = service(2).await;
        let engine = service.engine(0);
        let asked = session_call(some_id(), TTL_MS);
        let session = asked.id;
        let opened = soon(service.engine(keeper).open_session(asked));
        opened.await.unwrap();
        // Both must have seen each other's rows.
        clock.advance(2 * SECOND).await;
        let held = soon(engine.create(call("k", 600_000))).await.unwrap();
        let waiting = soon(engine.create(call_of(session, "k"))).await.unwrap();
        asks_through_an_outage(&service, &clock, &waiting.lock_ref).await;
        gets_its_turn(&service, &clock, &held.lock_ref, &waiting.lock_ref).await;
    }
}
