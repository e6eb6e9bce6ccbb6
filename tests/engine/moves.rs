//! Keys that change their home while their clients go on.

use std::time::Duration;

use fermata::engine::{EngineError, EngineOptions, LockStatus};
use fermata::limits::Limits;
use fermata::lock::LockRef;

use super::recorded::Engine;
use super::replicas::{LONG, NO_WAIT, create, get, write};
use super::shared::Service;
use super::world::{call, key, put, until};

/// Writes through this engine, whichever replica had the key before.
async fn write_at(engine: &Engine, held: &mut LockRef) {
    for _ in 0..30 {
        match engine.critical_write(held, put("x"), 0).await {
            Ok(_) => return,
            Err(EngineError::Elsewhere { home, .. }) => {
                match engine.take_over(&key("k"), home).await {
                    Ok(()) | Err(EngineError::Unavailable(_) | EngineError::Elsewhere { .. }) => {}
                    Err(error) => panic!("{error:?}"),
                }
            }
            Err(EngineError::GrantSuperseded) => {
                let acquired = engine.acquire(held, NO_WAIT, false).await.unwrap();
                assert!(matches!(acquired.status, LockStatus::Held { .. }));
                *held = acquired.lock_ref;
            }
            Err(EngineError::Unavailable(_)) => {}
            Err(error) => panic!("{error:?}"),
        }
    }
    panic!("it was never served");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_is_served_wherever_it_goes_though_replicas_cannot_call_each_other() {
    let service = Service::of(3).await;
    service.know_each_other().await;
    for number in 0..3 {
        service.wires.cut(&format!("replica-{number}"));
    }
    let mut held = create(service.engine(0), call("k", 20_000)).await.lock_ref;
    for number in [1, 2, 0, 2] {
        write_at(service.engine(number), &mut held).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_with_a_short_ttl_that_moves_to_another_replica_comes_in_time() {
    let (service, a, b) = &Service::two().await;
    service.wires.cut("replica-0");
    service.wires.cut("replica-1");
    let held = create(a, call("k", 4_000)).await.lock_ref;
    b.take_over(&key("k"), a.replica()).await.unwrap();
    let acquired = b.acquire(&held, LONG, false).await.unwrap();
    assert!(matches!(acquired.status, LockStatus::Held { .. }));
    // It has a whole TTL there.
    assert!(acquired.valid_for > Duration::from_secs(3));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_its_home_forgot_is_given_to_whoever_asks_for_it_through_the_store() {
    let service = Service::of(1).await;
    let b = service.engine(0);
    let options = service.options(&service.replicas[0].link.beside(), "forgetful");
    let a = fermata::engine::Engine::start(EngineOptions {
        write_back: std::collections::BTreeSet::new(),
        limits: Limits {
            active_keys_max: 1,
            ..Limits::default()
        },
        ..options
    });
    let a = a.await.unwrap();
    for name in ["k", "other"] {
        // There is room once nothing is done about the key before.
        let made = loop {
            match a.create(call(name, 20_000)).await {
                Err(EngineError::Exhausted { .. }) => {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                made => break made.unwrap().lock_ref,
            }
        };
        a.release(&made, None, 0).await.unwrap();
    }
    // Replicas cannot call each other: nobody has it taken up at its home by a call there.
    for _ in 0..3 {
        match b.create(call("k", 20_000)).await {
            Ok(_) => return,
            Err(EngineError::Elsewhere { home, .. }) => {
                let _ = b.take_over(&key("k"), home).await;
            }
            Err(error) => panic!("{error:?}"),
        }
    }
    panic!("it is never given");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_key_moves_to_the_one_zone_that_uses_it() {
    let service = Service::in_zones(&["east", "west"]).await;
    let (a, b) = (service.engine(0), service.engine(1));
    let held = create(a, call("k", 20_000)).await.lock_ref;
    // Not in the first second after it came here.
    a.served_here(&key("k"), "east");
    let came = std::time::Instant::now();
    until("a second has passed", || async {
        came.elapsed() > Duration::from_secs(1)
    })
    .await;
    for _ in 0..100 {
        a.served_here(&key("k"), "west");
    }
    // Nor while somebody holds it.
    write(a, &held, "in the east").await.unwrap();
    assert!(a.served_here(&key("k"), "").is_some());
    a.release(&held, None, 0).await.unwrap();
    let turns = ["east", "west"].into_iter().cycle().take(100);
    for zone in ["east"; 16].into_iter().chain(turns) {
        a.served_here(&key("k"), zone);
    }
    // Nor while two zones want it, or one that has no replica.
    let held = create(a, call("k", 20_000)).await.lock_ref;
    a.release(&held, None, 0).await.unwrap();
    for _ in 0..100 {
        a.served_here(&key("k"), "north");
    }
    let held = create(a, call("k", 20_000)).await.lock_ref;
    a.release(&held, None, 0).await.unwrap();
    assert!(a.served_here(&key("k"), "").is_some());
    until("the key is in the west", || async {
        a.served_here(&key("k"), "west");
        b.served_here(&key("k"), "").is_some()
    })
    .await;
    let there = create(b, call("k", 20_000)).await.lock_ref;
    assert_eq!(get(b, &there).await, Ok(Some("in the east".to_owned())));
}
