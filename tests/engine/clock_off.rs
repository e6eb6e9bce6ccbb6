//! A replica whose clock is wrong, and fences that would run away from the clock (I2, I3).

use std::sync::Arc;
use std::time::Duration;

use fermata::clock::Clock as _;
use fermata::engine::{EngineError, LockStatus, Presence};
use fermata::key::KeyState;
use fermata::lock::{Fence, LockRef};
use fermata::store::Cell;

use super::manual_clock::ManualClock;
use super::outage::meanwhile;
use super::recorded::Engine;
use super::shared::Service;
use super::world::{call, key, put};

/// No replica is down in the time of a test.
const REPLICA_TTL: Duration = Duration::from_secs(600);
const TTL_MS: u32 = 60_000;
const SECOND: Duration = Duration::from_secs(1);
const HOUR_S: i64 = 3_600;
const DAY_US: u64 = 24 * 3_600 * 1_000_000;

struct World {
    service: Service,
    clock: Arc<ManualClock>,
}

impl World {
    async fn of(replicas: usize) -> World {
        let clock = ManualClock::new();
        let service = Service::at(Arc::clone(&clock) as _, &vec![REPLICA_TTL; replicas]).await;
        // What was believed by this clock is judged by the tests themselves.
        service.history.leave_unchecked();
        World { service, clock }
    }

    fn engine(&self) -> &Engine {
        self.service.engine(0)
    }

    async fn meanwhile<T>(&self, call: impl Future<Output = T>) -> T {
        meanwhile(&self.clock, call).await
    }

    async fn create(&self, id: &str) -> Result<LockRef, EngineError> {
        let created = self.meanwhile(self.engine().create(call(id, TTL_MS))).await;
        created.map(|created| created.lock_ref)
    }

    async fn acquire(&self, entry: &LockRef) -> Result<LockStatus, EngineError> {
        let asking = self.engine().acquire(entry, Duration::ZERO, false);
        self.meanwhile(asking).await.map(|a| a.status)
    }

    /// From now on the clock of the first replica is that much behind the store's, and it knows.
    async fn set_clock(&self, behind_s: i64) {
        self.service.replicas[0]
            .link
            .set(|faults| faults.clock_ahead_us = behind_s * 1_000_000);
        let wants_off = behind_s.abs() > 60;
        for _ in 0..40 {
            if self.engine().ready().is_err() == wants_off {
                return;
            }
            self.clock.advance(SECOND).await;
        }
        panic!("it never noticed");
    }

    async fn state(&self, id: &str) -> KeyState {
        let described = self.meanwhile(self.engine().describe_row(&key(id))).await;
        described.unwrap().state
    }
}

fn names_the_clock<T: std::fmt::Debug>(answer: Result<T, EngineError>) {
    let error = answer.unwrap_err().to_string();
    assert!(error.contains("clock"), "{error}");
}

#[tokio::test]
async fn a_replica_whose_clock_is_wrong_makes_no_holder_and_serves_those_that_it_has() {
    let world = World::of(1).await;
    let held = world.create("k").await.unwrap();
    world.set_clock(2 * HOUR_S).await;
    names_the_clock(world.create("other").await);
    assert_eq!(world.state("other").await.entries.len(), 0);
    let waiting = world.create("k").await.unwrap();
    let engine = world.engine();
    // More than its fence had timestamps for.
    for n in 1..40 {
        let done = world
            .meanwhile(engine.critical_write(&held, put(&n.to_string()), 0))
            .await;
        done.unwrap();
    }
    let read = world
        .meanwhile(engine.critical_get(&held, 0))
        .await
        .unwrap();
    assert_eq!(read.value.bytes.unwrap(), "39");
    assert_eq!(
        world.meanwhile(engine.release(&held, None, 0)).await,
        Ok(false)
    );
    let fence = world.state("k").await.fence;
    // For longer than it might stay without being claimed.
    for _ in 0..6 {
        names_the_clock(world.acquire(&waiting).await);
        world.clock.advance(20 * SECOND).await;
    }
    let state = world.state("k").await;
    assert_eq!(
        (state.head(), state.grant, state.fence),
        (waiting.seq, Fence::NONE, fence)
    );
    world.set_clock(0).await;
    world.clock.advance(2 * SECOND).await;
    let status = world.acquire(&waiting).await.unwrap();
    assert!(
        matches!(status, LockStatus::Held { grant, .. } if grant > fence),
        "{status:?}"
    );
}

#[tokio::test]
async fn a_clock_that_is_set_is_noticed_before_the_next_grant() {
    let world = World::of(1).await;
    world.create("k").await.unwrap();
    world.clock.set_wall_back(2 * Duration::from_secs(3_600));
    names_the_clock(world.create("other").await);
    // The store's was set as well, in this test: so it agrees at the next read.
    for _ in 0..40 {
        world.clock.advance(SECOND).await;
        if world.create("other").await.is_ok() {
            return;
        }
    }
    panic!("it grants no more");
}

#[tokio::test]
async fn another_replica_grants_what_one_with_a_wrong_clock_cannot() {
    let world = World::of(2).await;
    let (a, b) = (world.engine(), world.service.engine(1));
    let home = a.replica();
    while !matches!(b.presence(home), Presence::Live(_)) {
        world.clock.advance(SECOND).await;
    }
    let held = world.create("k").await.unwrap();
    let waiting = world.create("k").await.unwrap();
    world.set_clock(2 * HOUR_S).await;
    world.meanwhile(a.release(&held, None, 0)).await.unwrap();
    names_the_clock(world.acquire(&waiting).await);
    world.meanwhile(b.take_over(&key("k"), home)).await.unwrap();
    let acquired = world
        .meanwhile(b.acquire(&waiting, Duration::ZERO, false))
        .await;
    let status = acquired.unwrap().status;
    assert!(matches!(status, LockStatus::Held { .. }), "{status:?}");
}

#[tokio::test]
async fn a_value_from_more_than_two_days_ahead_of_the_clock_is_refused_by_name() {
    let world = World::of(1).await;
    let link = &world.service.replicas[0].link;
    let now = world.clock.wall_us();
    for (id, days) in [("far", 3), ("near", 1)] {
        let cell = Cell {
            value: Some("ahead".into()),
            timestamp: now + days * DAY_US,
        };
        link.write_past(&key(id), cell).await;
    }
    let error = world.create("far").await.unwrap_err();
    assert!(matches!(error, EngineError::KeyUsedUp(_)), "{error:?}");
    let timestamp = (now + 3 * DAY_US).to_string();
    assert!(error.to_string().contains(&timestamp), "{error}");
    assert_eq!(world.state("far").await, KeyState::default());
    world.create("near").await.unwrap();
}

#[tokio::test]
async fn a_holder_that_meets_a_value_from_far_ahead_learns_so_and_keeps_its_lock() {
    let world = World::of(1).await;
    let engine = world.engine();
    let held = world.create("k").await.unwrap();
    let cell = Cell {
        value: Some("ahead".into()),
        timestamp: world.clock.wall_us() + 3 * DAY_US,
    };
    world.service.replicas[0]
        .link
        .write_past(&key("k"), cell)
        .await;
    let read = world
        .meanwhile(engine.critical_get(&held, 0))
        .await
        .unwrap();
    assert_eq!(read.value.bytes.unwrap(), "ahead");
    let refused = world
        .meanwhile(engine.critical_write(&held, put("v"), 0))
        .await;
    assert!(
        matches!(refused, Err(EngineError::KeyUsedUp(_))),
        "{refused:?}"
    );
    assert_eq!(
        world.meanwhile(engine.release(&held, None, 0)).await,
        Ok(false)
    );
}
