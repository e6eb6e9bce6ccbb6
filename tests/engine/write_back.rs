//! Homes that answer from memory: what their clients are told (H5, H7), and what is left of it after a crash.

use std::time::Duration;

use fermata::engine::EngineError;
use fermata::lock::EndedAs;

use super::replicas::{NO_WAIT, acquire, create, get, write};
use super::shared::{Service, TTL};
use super::world::{call, key, until};

/// Nobody is promised more than this by memory alone.
const BY_MEMORY_MAX: Duration = Duration::from_millis(1_800);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_is_promised_no_longer_than_its_home_is_sure_until_it_is_durable() {
    assert_eq!(BY_MEMORY_MAX, TTL / 10 * 9);
    let service = Service::writing_back(2).await;
    let a = service.engine(0);
    let made = create(a, call("k", 20_000)).await;
    assert!(!made.durable && made.valid_for <= BY_MEMORY_MAX, "{made:?}");
    until("the lock is durable", || async {
        let again = a.acquire(&made.lock_ref, NO_WAIT, false).await.unwrap();
        assert!(again.durable || again.valid_for <= BY_MEMORY_MAX);
        again.durable && again.valid_for > BY_MEMORY_MAX
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sections_of_a_key_in_use_change_no_row() {
    let service = Service::writing_back(2).await;
    let a = service.engine(0);
    let first = create(a, call("k", 20_000)).await.lock_ref;
    a.release(&first, None, 0).await.unwrap();
    let before = a.counts().swaps;
    for n in 0..50 {
        let held = create(a, call("k", 20_000)).await.lock_ref;
        write(a, &held, &n.to_string()).await.unwrap();
        a.release(&held, None, 0).await.unwrap();
    }
    // A section that took long, on a machine that is busy, is made durable.
    let swaps = a.counts().swaps - before;
    assert!(swaps < 25, "{swaps} swaps in 50 sections");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crash_ends_what_only_memory_knew_and_keeps_what_was_written_under_it() {
    let service = Service::writing_back(2).await;
    let (a, b) = (service.engine(0), service.engine(1));
    let durable = create(a, call("durable", 20_000)).await.lock_ref;
    until("the lock is durable", || async {
        let again = a.acquire(&durable, NO_WAIT, false).await.unwrap();
        again.durable
    })
    .await;
    let volatile = create(a, call("volatile", 20_000)).await;
    assert!(!volatile.durable);
    write(a, &volatile.lock_ref, "written").await.unwrap();
    let home = a.replica();
    service.kill(0);
    for id in [key("durable"), key("volatile")] {
        // Nobody has it before the other one is down.
        until("the next home has the key", || async {
            b.take_over(&id, home).await.is_ok()
        })
        .await;
    }
    let lost = b.acquire(&volatile.lock_ref, NO_WAIT, false).await;
    assert_eq!(lost.unwrap_err(), EngineError::Ended(EndedAs::NoLongerKept));
    let next = create(b, call("volatile", 20_000)).await.lock_ref;
    let next = acquire(b, &next).await;
    assert!(next.grant > volatile.lock_ref.grant);
    assert_eq!(get(b, &next).await, Ok(Some("written".to_owned())));
    let still = acquire(b, &durable).await;
    assert!(still.grant > durable.grant);
}
