//! For how long a key has been held, as operators see it once somebody waits.

use std::time::Duration;

use super::manual_clock::ManualClock;
use super::world::{World, call};

const LONG_TTL_MS: u32 = 600_000;

const fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Time passes in which nothing happens; of that no lease has to last for more than a second.
async fn pass(clock: &ManualClock, span: Duration) {
    clock.jump(span - s(1)).await;
    clock.advance(s(1)).await;
}

fn held_for(world: &World, name: &str) -> Option<Duration> {
    let did = world.engine.activity(10).unwrap();
    let of_key = |busy: &&fermata::engine::BusyKey| busy.id.key.as_str() == name;
    let busy = did.busiest.iter().find(of_key);
    busy.and_then(|busy| busy.held_for)
}

#[tokio::test]
async fn a_holder_is_as_old_as_its_grant_though_its_key_was_forgotten_meanwhile() {
    let (world, clock) = World::by_hand().await;
    let create = async || {
        let created = world.engine.create(call("k", LONG_TTL_MS)).await;
        created.unwrap().lock_ref
    };
    let first = create().await;
    let second = create().await;
    // It waits for so long, which is none of its time as the holder.
    pass(&clock, s(30)).await;
    world.release(&first).await.unwrap();
    world.acquire(&second).await;
    pass(&clock, s(100)).await;
    assert_eq!(world.engine.activity(10).unwrap().busiest, []);
    pass(&clock, s(100)).await;
    create().await;
    assert_eq!(held_for(&world, "k"), Some(s(200)));
    pass(&clock, s(5)).await;
    assert_eq!(held_for(&world, "k"), Some(s(205)));
}

#[tokio::test]
async fn after_a_restart_a_holder_is_as_old_as_its_entry() {
    let (world, clock) = World::by_hand().await;
    for name in ["alone", "queued", "queued"] {
        let created = world.engine.create(call(name, LONG_TTL_MS)).await;
        created.unwrap();
    }
    pass(&clock, s(100)).await;
    let world = world.restart().await;
    pass(&clock, s(10)).await;
    let waiting = world.engine.create(call("alone", LONG_TTL_MS)).await;
    waiting.unwrap();
    for name in ["alone", "queued"] {
        assert_eq!(held_for(&world, name), Some(s(110)), "{name}");
    }
}
