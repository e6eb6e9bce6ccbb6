//! A store that fails: outcomes that are not known, other writers, and nothing at all (I6).

use std::time::Duration;

use fermata::engine::{EngineError, Standing};
use fermata::lock::{Command, Create, Evidence, Liveness, Mode, Over, ReplicaId};
use uuid::Uuid;

use super::faulty::Fault;
use super::world::World;

/// A place that another replica takes.
pub fn stranger() -> Create {
    Create {
        request_id: Uuid::new_v4(),
        mode: Mode::Exclusive,
        liveness: Liveness::Own { ttl_ms: 30_000 },
        home: ReplicaId(Uuid::new_v4()),
        identity: "".into(),
        owner: "a stranger".into(),
        created_at_ms: 0,
        past: None,
    }
}

fn forced() -> Evidence {
    Evidence::Forced {
        by: "a test".into(),
        why: "to see".into(),
    }
}

#[tokio::test]
async fn the_next_holder_does_not_hear_how_the_one_before_it_ended() {
    let world = World::new().await;
    let first = world.create("k").await.lock_ref;
    let second = world.create("k").await.lock_ref;
    for n in 0..15 {
        world.put(&first, &n.to_string()).await.unwrap();
    }
    // The next put needs an Extend, and another writer ends its holder in between.
    let gone = Command::Evict {
        seq: first.seq,
        tag: first.tag,
        evidence: forced(),
    };
    world.store.fail_swaps([Fault::Overtaken(vec![gone])]);
    world.store.hold_reads(true);
    let (put, held, ()) = tokio::join!(
        world.put(&first, "late"),
        world.engine.acquire(&second, Duration::from_secs(9), false),
        async {
            tokio::time::sleep(Duration::from_millis(100)).await;
            world.store.hold_reads(false);
        }
    );
    assert!(
        matches!(put, Err(EngineError::Over(Over::Ended(_)))),
        "{put:?}"
    );
    assert!(matches!(held.unwrap().standing, Standing::Held { .. }));
}
