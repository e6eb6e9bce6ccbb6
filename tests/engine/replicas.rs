//! Several replicas on one store: one of them serves a key, and another one only after it (H1, H3, H4).

use std::time::{Duration, Instant};

use fermata::engine::{
    CreateCall, CreatedLockRef, EngineError, LeaseId, LockStatus, Presence, Value,
};
use fermata::lock::EndedAs::Released;
use fermata::lock::{EndReason, LockRef, ReplicaId, SessionId};
use fermata::store::ReplicaState;

use super::recorded::Engine;
use super::shared::{Service, TTL, elsewhere, some_id};
use super::world::{assert_unavailable, call, key, lost, put, session_call, until};

pub const NO_WAIT: Duration = Duration::ZERO;
pub const LONG: Duration = Duration::from_secs(30);

pub async fn create(engine: &Engine, call: CreateCall) -> CreatedLockRef {
    engine.create(call).await.unwrap()
}

/// Waits, and is the holder then.
pub async fn acquire(engine: &Engine, lock_ref: &LockRef) -> LockRef {
    let acquired = engine.acquire(lock_ref, LONG, false).await.unwrap();
    assert!(matches!(acquired.status, LockStatus::Held { .. }));
    acquired.lock_ref
}

pub async fn get(engine: &Engine, lock_ref: &LockRef) -> Result<Option<String>, EngineError> {
    let done = engine.critical_get(lock_ref, 0).await?;
    let Value { bytes } = done.value;
    Ok(bytes.map(|bytes| String::from_utf8(bytes.to_vec()).unwrap()))
}

pub async fn write(engine: &Engine, lock_ref: &LockRef, text: &str) -> Result<(), EngineError> {
    let done = engine.critical_write(lock_ref, put(text), 0);
    done.await.map(drop)
}

pub async fn session(engine: &Engine, ttl_ms: u32) -> SessionId {
    let call = session_call(some_id(), ttl_ms);
    engine.open_session(call.clone()).await.unwrap();
    call.id
}

/// Waits until the row of a key has no entry.
pub async fn until_free(engine: &Engine, name: &str) {
    for _ in 0..300 {
        let row = engine.describe_row(&key(name)).await.unwrap();
        if row.state.entries.is_empty() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("the entry of {name} is still there");
}

/// Waits until somebody has a lock that is durable, or waits durably.
pub async fn until_durable(engine: &Engine, lock_ref: &LockRef) {
    until("it is durable", || async {
        let again = engine.acquire(lock_ref, NO_WAIT, false).await.unwrap();
        again.durable
    })
    .await;
}

pub async fn down(engine: &Engine, id: ReplicaId) {
    until("the other is down", || async {
        engine.presence(id) == Presence::Down
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_is_served_by_one_replica_and_the_others_say_which() {
    let (_service, a, b) = &Service::two().await;
    let made = create(a, call("k", 20_000)).await.lock_ref;
    write(a, &made, "of a").await.unwrap();
    let home = a.replica();
    assert_eq!(elsewhere(b.create(call("k", 20_000)).await), home);
    assert_eq!(elsewhere(get(b, &made).await), home);
    assert_eq!(elsewhere(write(b, &made, "of b").await), home);
    assert_eq!(elsewhere(b.acquire(&made, NO_WAIT, false).await), home);
    assert_eq!(elsewhere(b.release(&made, None, 0).await), home);
    assert_eq!(elsewhere(b.watch(&made).await.map(|_| ())), home);
    assert_eq!(elsewhere(b.force_release(&made, "op", "why").await), home);
    let lease = LeaseId::LockRef(made.clone());
    assert_eq!(elsewhere(b.renew(&lease).await), home);
    assert_eq!(get(a, &made).await, Ok(Some("of a".to_owned())));
    // Also once nobody holds it.
    a.release(&made, None, 0).await.unwrap();
    assert_eq!(elsewhere(b.release(&made, None, 0).await), home);
    assert_eq!(elsewhere(b.create(call("k", 20_000)).await), home);
    assert_eq!(get(a, &made).await, Err(EngineError::Ended(Released)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_that_use_a_key_first_at_once_one_serves_it() {
    let (_service, a, b) = &Service::two().await;
    for round in 0..20 {
        let name = format!("k{round}");
        let made = tokio::join!(a.create(call(&name, 20_000)), b.create(call(&name, 20_000)));
        match made {
            (Ok(_), other) => assert_eq!(elsewhere(other), a.replica()),
            (other, Ok(_)) => assert_eq!(elsewhere(other), b.replica()),
            neither => panic!("{neither:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_is_not_taken_over_from_a_replica_that_lives() {
    let (service, a, b) = &Service::two().await;
    let held = create(a, call("k", 20_000)).await.lock_ref;
    // It does not hear of the request either.
    service.replicas[0].link.set(|faults| faults.deaf = true);
    let taken = b.take_over(&key("k"), a.replica()).await;
    assert_unavailable(&taken);
    assert_eq!(elsewhere(get(b, &held).await), a.replica());
    write(a, &held, "still here").await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_and_its_queue_outlive_their_home_once_that_is_down() {
    let (service, a, b) = &Service::two().await;
    let (id, home) = (key("k"), a.replica());
    let made = create(a, call("k", 20_000)).await.lock_ref;
    let second = create(a, call("k", 20_000)).await.lock_ref;
    let third = create(a, call("k", 20_000)).await.lock_ref;
    write(a, &made, "written").await.unwrap();
    service.kill(0);
    // Nobody takes it over before the store says that the home is down.
    loop {
        let taken = b.take_over(&id, home).await;
        let state = service.replicas[1].link.replica_state(home);
        match taken {
            Ok(()) => break assert_eq!(state, Some(ReplicaState::Down)),
            Err(EngineError::Unavailable(_)) => {}
            Err(error) => panic!("{error}"),
        }
    }
    assert_eq!(get(b, &made).await, Err(EngineError::GrantSuperseded));
    let held = acquire(b, &made).await;
    assert!(held.grant > made.grant);
    assert_eq!(get(b, &held).await, Ok(Some("written".to_owned())));
    write(b, &held, "on").await.unwrap();
    assert_eq!(b.release(&held, None, 0).await, Ok(false));
    for next in [second, third] {
        let held = acquire(b, &next).await;
        assert_eq!(get(b, &held).await, Ok(Some("on".to_owned())));
        assert_eq!(b.release(&held, None, 0).await, Ok(false));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_that_is_gone_with_its_home_ends_a_ttl_after_that_and_not_before_it_was_told() {
    let (service, a, b) = &Service::two().await;
    let held = create(a, call("k", 3_000)).await;
    write(a, &held.lock_ref, "last words").await.unwrap();
    let waiting = create(a, call("k", 20_000)).await.lock_ref;
    let renewed = a
        .renew(&LeaseId::LockRef(held.lock_ref.clone()))
        .await
        .unwrap();
    let (begun, home) = (Instant::now(), a.replica());
    service.kill(0);
    down(b, home).await;
    b.take_over(&key("k"), home).await.unwrap();
    let mine = acquire(b, &waiting).await;
    assert!(
        begun.elapsed() >= renewed.valid_for,
        "not before it was told"
    );
    assert_eq!(get(b, &mine).await, Ok(Some("last words".to_owned())));
    assert_eq!(get(b, &held.lock_ref).await, Err(lost(EndReason::Expired)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_that_nobody_asks_for_are_swept_once_their_home_is_down() {
    let (service, a, b) = &Service::two().await;
    for name in ["k1", "k2", "k3"] {
        create(a, call(name, 1_000)).await;
    }
    service.kill(0);
    for name in ["k1", "k2", "k3"] {
        until_free(b, name).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_hands_keys_over_at_once_with_holder_and_queue() {
    let (service, a, b) = &Service::two().await;
    let home = a.replica();
    let held = create(a, call("k", 20_000)).await.lock_ref;
    write(a, &held, "of a").await.unwrap();
    let waiting = create(a, call("k", 20_000)).await.lock_ref;
    let idle = create(a, call("idle", 20_000)).await.lock_ref;
    a.release(&idle, None, 0).await.unwrap();
    let begun = Instant::now();
    a.stop();
    a.leave(LONG).await;
    assert_eq!(
        service.replicas[1].link.replica_state(home),
        Some(ReplicaState::Stopped)
    );
    // Nobody asked for it: it was given.
    let state = service.replicas[1].link.state(&key("k")).await;
    assert_eq!(state.home.map(|home| home.replica), Some(b.replica()));
    assert_eq!(get(b, &held).await, Err(EngineError::GrantSuperseded));
    let again = acquire(b, &held).await;
    assert!(again.grant > held.grant);
    assert_eq!(get(b, &again).await, Ok(Some("of a".to_owned())));
    b.release(&again, None, 0).await.unwrap();
    acquire(b, &waiting).await;
    // What was not locked is taken over by whoever uses it next.
    down(b, home).await;
    b.take_over(&key("idle"), home).await.unwrap();
    create(b, call("idle", 20_000)).await;
    assert!(begun.elapsed() < TTL, "nobody waited for a replica TTL");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_says_that_it_stopped_only_once_its_keys_were_given_away() {
    let (service, a, _) = &Service::two().await;
    let (home, link) = (a.replica(), &service.replicas[0].link);
    create(a, call("k", 20_000)).await;
    link.stick(key("k"));
    a.stop();
    let given = tokio::time::timeout(TTL / 4, a.leave(LONG)).await;
    assert!(given.is_err(), "it cannot be given away");
    assert_eq!(link.replica_state(home), Some(ReplicaState::Up(1)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_was_handed_over_unheard_is_served_by_whom_it_was_given_to() {
    let (service, a, b) = &Service::two().await;
    let held = create(a, call("k", 20_000)).await.lock_ref;
    // The other one is not told.
    service.wires.cut("replica-1");
    a.stop();
    a.leave(LONG).await;
    let again = acquire(b, &held).await;
    write(b, &again, "of b").await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_home_that_cannot_be_called_hands_a_key_over_through_the_store() {
    let (service, a, b) = &Service::two().await;
    let (id, home) = (key("k"), a.replica());
    let held = create(a, call("k", 20_000)).await.lock_ref;
    let waiting = create(a, call("k", 20_000)).await.lock_ref;
    write(a, &held, "of a").await.unwrap();
    service.wires.cut("replica-0");
    service.wires.cut("replica-1");
    // Not while its holder is served.
    let served = async {
        for _ in 0..10 {
            write(a, &held, "of a, again").await.unwrap();
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        Instant::now()
    };
    let taken = async {
        b.take_over(&id, home).await.unwrap();
        Instant::now()
    };
    let (served, taken) = tokio::join!(served, taken);
    assert!(taken > served, "its holder was served a moment ago");
    // It was given for good.
    assert_eq!(elsewhere(write(a, &held, "too late").await), b.replica());
    assert_eq!(get(b, &held).await, Err(EngineError::GrantSuperseded));
    let held = acquire(b, &held).await;
    assert_eq!(get(b, &held).await, Ok(Some("of a, again".to_owned())));
    b.release(&held, None, 0).await.unwrap();
    acquire(b, &waiting).await;
    until("the request is forgotten", || async {
        !service.replicas[0].link.is_asked()
    })
    .await;
}
