//! What a replica does before it stops, while it serves (H4).

use std::time::{Duration, Instant};

use fermata::engine::{EngineError, LeaseId, Presence};
use fermata::lock::{LockRef, ReplicaId};

use super::recorded::Engine;
use super::replicas::{LONG, acquire, create, get, session, write};
use super::shared::Service;
use super::world::{call, key, until};

/// Uses these keys at their home for longer than a moment: the first is held then, the others are free.
async fn used(home: &Engine, keys: [&str; 2]) -> LockRef {
    let [held, idle] = keys;
    let lock_ref = create(home, call(held, 20_000)).await.lock_ref;
    let mut first_done = None;
    loop {
        let begun = Instant::now();
        write(home, &lock_ref, "of a").await.unwrap();
        let freed = create(home, call(idle, 20_000)).await.lock_ref;
        home.release(&freed, None, 0).await.unwrap();
        // However slow the machine is, these calls came so long after the first ones.
        let first_done = *first_done.get_or_insert_with(Instant::now);
        if begun.saturating_duration_since(first_done) > Duration::from_millis(1_010) {
            return lock_ref;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn home_of(service: &Service, of: &str) -> Option<ReplicaId> {
    let state = service.replicas[1].link.state(&key(of)).await;
    state.home.map(|home| home.replica)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn before_a_stop_keys_in_use_are_handed_over_while_calls_are_served() {
    let (service, a, b) = &Service::two().await;
    let once = create(a, call("once", 20_000)).await.lock_ref;
    a.release(&once, None, 0).await.unwrap();
    let held = used(a, ["held", "idle"]).await;
    a.hand_over_in_use(LONG).await;
    for in_use in ["idle", "held"] {
        let home = home_of(service, in_use).await;
        assert_eq!(home, Some(b.replica()), "{in_use}");
    }
    assert_eq!(home_of(service, "once").await, Some(a.replica()));
    // Nothing is to be taken over, and the one that goes says who is the home.
    create(b, call("idle", 20_000)).await;
    let elsewhere = EngineError::Elsewhere {
        home: b.replica(),
        version: 2,
    };
    assert_eq!(get(a, &held).await, Err(elsewhere));
    let again = acquire(b, &held).await;
    assert_eq!(get(b, &again).await, Ok(Some("of a".to_owned())));
    // It serves still, and no key finds its home there, wherever it is asked for.
    create(a, call("at a", 20_000)).await;
    for n in 0..50 {
        let name = key(&format!("new-{n}")).name_hash();
        assert!(matches!(a.ranked(name), Presence::Live(peer) if peer.id == b.replica()));
        assert!(matches!(b.ranked(name), Presence::Local));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_replicas_that_stop_at_the_same_time_give_their_keys_and_sessions_to_the_one_that_stays()
 {
    let service = Service::of(3).await;
    let [a, b, c] = [0, 1, 2].map(|number| service.engine(number));
    let sessions = [session(a, 20_000).await, session(b, 20_000).await];
    let ((), ()) = tokio::join!(async { drop(used(a, ["held a", "idle a"]).await) }, async {
        drop(used(b, ["held b", "idle b"]).await)
    });
    // Each has heard of the other's stop before it hands anything over.
    a.note_leaving(b.replica());
    b.note_leaving(a.replica());
    tokio::join!(b.hand_over_in_use(LONG), a.hand_over_in_use(LONG));
    for in_use in ["held a", "idle a", "held b", "idle b"] {
        let home = home_of(&service, in_use).await;
        assert_eq!(home, Some(c.replica()), "{in_use}");
    }
    for session in sessions {
        c.renew(&LeaseId::Session(session)).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_hangs_keeps_no_keys_from_the_others() {
    let service = Service::of(3).await;
    let [a, b, _] = [0, 1, 2].map(|number| service.engine(number));
    let mut in_use = Vec::new();
    for number in 0.. {
        let name = key(&format!("k{number}"));
        if matches!(a.ranked(name.name_hash()), Presence::Live(peer) if peer.id == b.replica()) {
            in_use.push(format!("k{number}"));
        }
        if in_use.len() == 2 {
            break;
        }
    }
    used(a, [&in_use[0], &in_use[1]]).await;
    service.wires.hang("replica-2");
    a.hand_over_in_use(Duration::from_secs(2)).await;
    for name in &in_use {
        assert_eq!(home_of(&service, name).await, Some(b.replica()), "{name}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_is_given_a_key_hears_of_it_though_it_took_too_long() {
    let (service, a, b) = &Service::two().await;
    used(a, ["held", "idle"]).await;
    let link = &service.replicas[0].link;
    link.set(|faults| faults.holds_keys = true);
    a.hand_over_in_use(LONG).await;
    assert!(!service.wires.has_handed("idle"));
    link.set(|faults| faults.holds_keys = false);
    until("the next home hears of it", || async {
        service.wires.has_handed("idle")
    })
    .await;
    assert_eq!(home_of(service, "idle").await, Some(b.replica()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_does_not_follow_its_users_to_a_replica_that_is_about_to_stop() {
    let service = Service::in_zones(&["east", "west"]).await;
    let [a, b] = [0, 1].map(|number| service.engine(number));
    used(a, ["held", "idle"]).await;
    a.hand_over_in_use(LONG).await;
    assert_eq!(home_of(&service, "idle").await, Some(b.replica()));
    // Longer than a second, as it takes before a key moves.
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_millis(1_300) {
        let freed = create(b, call("idle", 20_000)).await.lock_ref;
        b.release(&freed, None, 0).await.unwrap();
        for _ in 0..100 {
            b.served_here(&key("idle"), "east");
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(home_of(&service, "idle").await, Some(b.replica()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn before_a_stop_no_key_is_handed_to_a_replica_that_cannot_be_called() {
    let (service, a, _) = &Service::two().await;
    let held = used(a, ["held", "idle"]).await;
    service.wires.cut("replica-1");
    a.hand_over_in_use(LONG).await;
    assert_eq!(home_of(service, "idle").await, Some(a.replica()));
    assert_eq!(get(a, &held).await, Ok(Some("of a".to_owned())));
}
