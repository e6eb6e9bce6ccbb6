//! A replica that lost contact with its store: silent, and back with its memory; or declared down, and another one then
//! (H2).

use std::time::Duration;

use fermata::engine::{EngineError, LeaseId, LockStatus, Presence};
use fermata::lock::LockRef;
use fermata::store::ReplicaState;

use super::keepers::goes_unclaimed;
use super::link::StoreLink;
use super::recorded::Engine;
use super::replicas::{LONG, NO_WAIT, acquire, create, down, get, session, write};
use super::shared::{Service, TTL, elsewhere};
use super::world::{call, call_of, key, put, session_call, until};

async fn is_silent(engine: &Engine) {
    until("it is silent", || async {
        engine.ready() == Err(EngineError::Silent)
    })
    .await;
}

/// A release whose put takes until the replica is silent.
async fn released_when_silent(a: &Engine, link: &StoreLink, held: &LockRef) {
    link.set(|faults| faults.slow_writes = Duration::from_millis(2_500));
    let released = a.release(held, Some(put("last")), 1).await;
    assert!(released.is_err(), "it answered: {released:?}");
    link.set(|faults| faults.slow_writes = Duration::ZERO);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_lease_runs_out_while_a_replica_is_silent() {
    let service = Service::of(1).await;
    let (a, link) = (service.engine(0), &service.replicas[0].link);
    let held = create(a, call("k", 2_500)).await.lock_ref;
    let session = session(a, 2_500).await;
    link.cut(true);
    is_silent(a).await;
    // Nobody who goes on asking is heard.
    tokio::time::sleep(Duration::from_millis(2_500)).await;
    link.cut(false);
    until("it answers", || async { a.ready().is_ok() }).await;
    a.renew(&LeaseId::LockRef(held)).await.unwrap();
    a.renew(&LeaseId::Session(session)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_replica_answers_nothing_and_goes_on_with_its_memory() {
    let service = Service::of(1).await;
    let (a, link) = (service.engine(0), &service.replicas[0].link);
    let id = a.replica();
    let held = create(a, call("k", 20_000)).await.lock_ref;
    write(a, &held, "kept").await.unwrap();
    let session = session(a, 20_000).await;
    let of_session = create(a, call_of(session, "s")).await.lock_ref;
    let swaps = a.counts().swaps;
    link.cut(true);
    is_silent(a).await;
    let silent = EngineError::Silent;
    assert_eq!(get(a, &held).await, Err(silent.clone()));
    assert_eq!(write(a, &held, "late").await, Err(silent.clone()));
    assert_eq!(a.release(&held, None, 0).await, Err(silent.clone()));
    let acquired = a.acquire(&held, NO_WAIT, false).await;
    assert_eq!(acquired.unwrap_err(), silent);
    let made = a.create(call("other", 20_000)).await;
    assert_eq!(made.unwrap_err(), silent);
    let renewed = a.renew(&LeaseId::Session(session)).await;
    assert_eq!(renewed.unwrap_err(), silent);
    let opened = a.open_session(session_call(super::shared::some_id(), 20_000));
    assert_eq!(opened.await.unwrap_err(), silent);
    // Long past the time after which others would have declared it down.
    tokio::time::sleep(TTL).await;
    assert_eq!(link.replica_state(id), Some(ReplicaState::Up(1)));
    link.cut(false);
    until("it answers", || async { a.ready().is_ok() }).await;
    assert_eq!(
        (a.replica(), link.replica_state(id)),
        (id, Some(ReplicaState::Up(2)))
    );
    assert_eq!(get(a, &held).await, Ok(Some("kept".to_owned())));
    write(a, &held, "on").await.unwrap();
    write(a, &of_session, "too").await.unwrap();
    assert_eq!(a.counts().swaps, swaps, "nothing was taken over anew");
    assert_eq!(a.release(&held, None, 0).await, Ok(false));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_that_is_open_through_a_silence_gets_its_turn_after_it() {
    let service = Service::of(1).await;
    let (a, link) = (service.engine(0), &service.replicas[0].link);
    let held = create(a, call("k", 20_000)).await.lock_ref;
    let waiting = create(a, call("k", 20_000)).await.lock_ref;
    let waits = a.acquire(&waiting, LONG, false);
    let goes_on = async {
        link.cut(true);
        is_silent(a).await;
        link.cut(false);
        until("it answers", || async { a.ready().is_ok() }).await;
        a.release(&held, None, 0).await.unwrap();
    };
    let (acquired, ()) = tokio::join!(waits, goes_on);
    assert!(matches!(acquired.unwrap().status, LockStatus::Held { .. }));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_whose_turn_comes_in_a_silence_is_not_answered_held() {
    let service = Service::of(1).await;
    let (a, link) = (service.engine(0), &service.replicas[0].link);
    let held = create(a, call("k", 20_000)).await.lock_ref;
    let waiting = create(a, call("k", 20_000)).await.lock_ref;
    // Only heartbeats do not come through: the queue goes on.
    link.mute(true);
    let waits = a.acquire(&waiting, LONG, false);
    let (acquired, _) = tokio::join!(waits, released_when_silent(a, link, &held));
    assert_eq!(acquired.unwrap_err(), EngineError::Silent);
    link.mute(false);
    until("it answers", || async { a.ready().is_ok() }).await;
    acquire(a, &waiting).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_was_declared_down_restarts_under_a_new_id_and_takes_over_from_its_old_one()
{
    let (service, a, b) = &Service::two().await;
    let (old, link) = (a.replica(), &service.replicas[0].link);
    let held = create(a, call("k", 20_000)).await.lock_ref;
    write(a, &held, "of the old one").await.unwrap();
    link.mute(true);
    is_silent(a).await;
    // Before anybody may take it for down.
    assert_ne!(b.presence(old), Presence::Down);
    assert_eq!(get(a, &held).await, Err(EngineError::Silent));
    down(b, old).await;
    assert_eq!(link.replica_state(old), Some(ReplicaState::Down));
    until("it is fenced", || async {
        matches!(
            get(a, &held).await,
            Err(EngineError::Fenced | EngineError::Unavailable(_))
        )
    })
    .await;
    link.mute(false);
    until("it is another replica", || async {
        a.ready().is_ok() && a.replica() != old
    })
    .await;
    assert_eq!(
        link.replica_state(old),
        Some(ReplicaState::Down),
        "for good"
    );
    assert_eq!(elsewhere(get(a, &held).await), old);
    a.take_over(&key("k"), old).await.unwrap();
    assert_eq!(get(a, &held).await, Err(EngineError::GrantSuperseded));
    let again = acquire(a, &held).await;
    assert_eq!(get(a, &again).await, Ok(Some("of the old one".to_owned())));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_comes_back_after_its_keys_were_taken_answers_for_none_of_them() {
    let (service, a, b) = &Service::two().await;
    let (old, link) = (a.replica(), &service.replicas[0].link);
    let held = create(a, call("k", 20_000)).await.lock_ref;
    let waiting = create(a, call("k", 20_000)).await.lock_ref;
    link.cut(true);
    let waits = a.acquire(&waiting, LONG, false);
    let goes_on = async {
        down(b, old).await;
        b.take_over(&key("k"), old).await.unwrap();
        let again = acquire(b, &held).await;
        write(b, &again, "of b").await.unwrap();
        link.cut(false);
        until("it is another replica", || async {
            a.ready().is_ok() && a.replica() != old
        })
        .await;
        assert_eq!(elsewhere(get(a, &held).await), b.replica());
        b.release(&again, None, 0).await.unwrap();
    };
    let (waited, ()) = tokio::join!(waits, goes_on);
    assert!(
        matches!(
            waited,
            Err(EngineError::Fenced | EngineError::Silent | EngineError::Stopping)
        ),
        "{waited:?}"
    );
    let mine = acquire(b, &waiting).await;
    assert_eq!(get(b, &mine).await, Ok(Some("of b".to_owned())));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_that_was_not_told_so_for_a_silence_counts_as_unclaimed() {
    let service = Service::of(1).await;
    let (a, link) = (service.engine(0), &service.replicas[0].link);
    let session = session(a, 4_000).await;
    let held = create(a, call("k", 20_000)).await.lock_ref;
    let head = create(a, call_of(session, "k")).await.lock_ref;
    let next = create(a, call("k", 30_000)).await.lock_ref;
    // Only heartbeats do not come through: its turn comes in the silence.
    link.mute(true);
    let waits = a.acquire(&head, Duration::from_secs(6), false);
    let (waited, _) = tokio::join!(waits, released_when_silent(a, link, &held));
    assert_eq!(waited.unwrap_err(), EngineError::Silent);
    link.mute(false);
    until("it answers", || async { a.ready().is_ok() }).await;
    goes_unclaimed((a, session), a, &head, &next).await;
}
