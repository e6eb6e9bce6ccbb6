//! Keys that change their home while their clients go on.

use std::time::Duration;

use fermata::engine::{EngineError, LockStatus};
use fermata::lock::LockRef;

use super::replicas::{LONG, NO_WAIT, create};
use super::shared::Service;
use super::world::{call, key, put};

/// Writes through the engines in turn, from `at` on, as a client does whose calls go to all of them while those cannot
/// call each other. Which one served it.
async fn write_sprayed(service: &Service, held: &mut LockRef, at: usize) -> usize {
    for number in (at..at + 30).map(|at| at % service.replicas.len()) {
        let engine = service.engine(number);
        let answer = engine.critical_write(held, put("x"), 0).await;
        match answer {
            Ok(_) => return number,
            Err(EngineError::Elsewhere { home, .. }) => {
                let _ = engine.take_over(&key("k"), home).await;
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
    panic!("served by none");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_is_served_though_its_calls_go_to_all_and_those_cannot_call_each_other() {
    let service = Service::of(3).await;
    service.know_each_other().await;
    for number in 0..3 {
        service.wires.cut(&format!("replica-{number}"));
    }
    let mut held = create(service.engine(0), call("k", 20_000)).await.lock_ref;
    let mut at = 1;
    for _ in 0..4 {
        at = write_sprayed(&service, &mut held, at).await + 1;
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
