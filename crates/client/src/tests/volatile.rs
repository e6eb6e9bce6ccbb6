//! Locks that are not durable: a crash of the replica that serves their key ends them (H7).

use std::time::Duration;

use tokio::time::timeout;
use tonic::Code;

use super::fake::{Act, refusal};
use super::{World, away, secs};
use crate::{
    CriticalError, LockError, LockGuard, LostReason, Mutation, ReleaseError, SessionRequest,
    WaitError,
};

/// What the home can promise at most, and what is believed of it.
const MEMORY: Duration = Duration::from_millis(4_500);
const BELIEVED: Duration = Duration::from_millis(4_050);

fn ms(number: u64) -> Duration {
    Duration::from_millis(number)
}

fn with_write_back() -> World {
    let world = World::new();
    world.fake.state().memory = Some(MEMORY);
    world
}

async fn locked_by_memory() -> (World, LockGuard) {
    let world = with_write_back();
    let guard = world.client.lock("k").await.unwrap();
    (world, guard)
}

/// The replica that serves the key crashes; the session is kept by another one.
fn home_away(world: &World) {
    world
        .fake
        .always_all(&["put", "acquire", "watch", "release"], away());
}

#[tokio::test(start_paused = true)]
async fn a_lock_is_safe_no_longer_than_its_own_promise_whatever_its_session_was_promised() {
    let world = with_write_back();
    let session = world.session().await;
    let guard = session.lock("k").await.unwrap();
    assert!(!guard.durable());
    assert!(guard.valid_for() <= BELIEVED, "{:?}", guard.valid_for());
    home_away(&world);
    let lost = timeout(BELIEVED + ms(2), guard.lost()).await;
    let lost = lost.expect("it is believed in for too long");
    assert_eq!(lost.reason, LostReason::ValidityEnded);
    assert!(session.valid_until().is_some());
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_says_not_durable_is_believed_no_further_than_it_says() {
    let (world, guard) = locked_by_memory().await;
    // Asked about after 300 ms.
    tokio::time::sleep(secs(1)).await;
    assert_eq!(world.fake.count("acquire"), 1);
    assert!(!guard.durable());
    home_away(&world);
    let lost = timeout(BELIEVED, guard.lost()).await;
    assert!(lost.is_ok(), "it is believed in for too long");
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_became_durable_is_soon_known_to_be() {
    let (world, guard) = locked_by_memory().await;
    tokio::time::sleep(ms(100)).await;
    world.fake.state().memory = None;
    assert_eq!(guard.promised_for(), BELIEVED);
    tokio::time::sleep(ms(250)).await;
    assert!(guard.durable());
    assert_eq!(guard.promised_for(), secs(27));
    home_away(&world);
    tokio::time::sleep(secs(20)).await;
    assert!(guard.is_valid());
    assert_eq!(world.fake.count("acquire"), 1);
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_says_durable_after_the_end_brings_nothing_back() {
    let world = with_write_back();
    let session = world.session().await;
    let guard = session.lock("k").await.unwrap();
    world.fake.state().memory = None;
    world.fake.always("acquire", Act::Hang);
    world.fake.next("put", Act::Late(ms(990)));
    let (put, ()) = tokio::join!(guard.put("v"), async {
        tokio::time::sleep(ms(900)).await;
        world.clock.suspend(secs(10));
    });
    assert!(matches!(put, Err(CriticalError::Lost(_))), "{put:?}");
    assert!(!guard.is_valid());
    assert!(session.valid_until().is_some());
}

#[tokio::test(start_paused = true)]
async fn a_short_section_asks_for_nothing() {
    let (world, guard) = locked_by_memory().await;
    tokio::time::sleep(ms(250)).await;
    guard.release().await.unwrap();
    tokio::time::sleep(secs(10)).await;
    assert_eq!(world.fake.count("acquire"), 0);
    assert_eq!(world.fake.count("keep_alive"), 0);
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_does_not_become_durable_is_asked_about_when_half_of_its_promise_has_passed() {
    let (world, guard) = locked_by_memory().await;
    tokio::time::sleep(secs(60)).await;
    assert!(guard.is_valid());
    let asked = world.fake.count("acquire");
    // After 0.3 s, and then each half of what is believed.
    assert!((28..=32).contains(&asked), "{asked}");
}

#[tokio::test(start_paused = true)]
async fn several_attempts_to_ask_about_a_lock_fit_into_what_is_left_of_it() {
    let (world, guard) = locked_by_memory().await;
    for _ in 0..2 {
        world.fake.next("acquire", Act::Hang);
    }
    tokio::time::sleep(BELIEVED).await;
    assert!(guard.is_valid());
    assert!(world.fake.count("acquire") >= 3);
}

#[tokio::test(start_paused = true)]
async fn a_lock_of_which_little_is_left_is_asked_about_before_it_is_believed_in() {
    let world = with_write_back();
    world.fake.next("create", Act::Late(ms(2_100)));
    let guard = world.client.lock("k").await.unwrap();
    assert_eq!(world.fake.count("acquire"), 1);
    assert!(guard.valid_for() > secs(4), "{:?}", guard.valid_for());
}

#[tokio::test(start_paused = true)]
async fn a_short_disconnect_grace_costs_no_further_call() {
    let world = with_write_back();
    let request = SessionRequest::new().disconnect_grace(ms(500));
    let session = world.client.open_session(request).await.unwrap();
    let guard = session.lock("k").await.unwrap();
    assert_eq!(world.fake.count("acquire"), 0);
    assert!(guard.valid_for() <= ms(450), "{:?}", guard.valid_for());
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_comes_after_its_promise_makes_no_lock() {
    let world = with_write_back();
    world.fake.next("create", Act::Late(ms(4_200)));
    world.fake.next("acquire", Act::Late(ms(4_200)));
    let guard = world.client.lock("k").await.unwrap();
    assert!(guard.is_valid());
    assert_eq!(world.fake.count("acquire"), 2);
}

#[tokio::test(start_paused = true)]
async fn a_lock_whose_session_ended_before_its_answer_came_is_lost() {
    let world = with_write_back();
    let session = world.session().await;
    world.fake.next("create", Act::Late(secs(2)));
    let closing = session.clone();
    let (locked, closed) = tokio::join!(session.lock("k"), async {
        tokio::time::sleep(secs(1)).await;
        closing.close().await
    });
    assert!(
        matches!(locked, Err(LockError::Wait(WaitError::Lost(_)))),
        "{locked:?}"
    );
    closed.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_wait_for_a_lock_that_is_held_and_not_confirmed_keeps_to_its_limit() {
    let world = with_write_back();
    let mut entry = world.client.enqueue("k").await.unwrap();
    tokio::time::sleep(secs(4)).await;
    world.fake.always("acquire", Act::Hang);
    let start = tokio::time::Instant::now();
    let waited = entry.wait(Some(secs(2))).await;
    assert_eq!(waited.unwrap_err(), WaitError::TimedOut { position: 0 });
    assert!(start.elapsed() <= secs(6), "{:?}", start.elapsed());
    world.fake.state().always.clear();
    assert!(entry.wait(Some(secs(2))).await.unwrap().is_valid());
}

#[tokio::test(start_paused = true)]
async fn a_lock_is_asked_about_at_another_endpoint_where_one_does_not_answer() {
    let world = World::with_nobody();
    world.fake.state().memory = Some(MEMORY);
    let guard = world.client.lock("k").await.unwrap();
    world.fake.state().memory = None;
    // Where nobody listens.
    world.client.leave(0);
    tokio::time::sleep(ms(500)).await;
    assert!(guard.durable());
}

/// The server does not know any more that there was this lock.
async fn held_and_lost(world: &World) -> LockGuard {
    let guard = world.client.lock("k").await.unwrap();
    world.fake.end(&guard.lock_ref(), "NO_LONGER_KEPT", "");
    guard
}

#[tokio::test(start_paused = true)]
async fn a_release_of_a_lock_that_was_valid_and_is_lost_with_its_home_is_a_release() {
    let world = with_write_back();
    let guard = held_and_lost(&world).await;
    guard.release().await.unwrap();

    // Durable, and a crash after an attempt whose answer was lost.
    let (world, guard) = World::locked().await;
    let lost = refusal(Code::FailedPrecondition, "NO_LONGER_KEPT", "");
    world.fake.next("release", Act::LoseAnswer);
    world.fake.next("release", Act::Refuse(lost));
    guard.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_release_of_a_lock_that_is_not_kept_says_so_where_it_was_durable_or_carried_a_write() {
    let world = World::new();
    let durable = held_and_lost(&world).await.release().await;
    let world = with_write_back();
    let guard = held_and_lost(&world).await;
    let writing = guard.release_with(Mutation::Put("v".into())).await;
    for released in [durable, writing] {
        let Err(ReleaseError::Lost(lost)) = released else {
            panic!("{released:?}");
        };
        assert_eq!(lost.reason, LostReason::NoLongerKept);
    }
}

#[tokio::test(start_paused = true)]
async fn a_lock_of_a_session_with_a_short_disconnect_grace_is_asked_about_in_time() {
    let world = with_write_back();
    let request = SessionRequest::new().disconnect_grace(ms(500));
    let session = world.client.open_session(request).await.unwrap();
    let guard = session.lock("k").await.unwrap();
    tokio::time::sleep(ms(100)).await;
    world.fake.state().memory = None;
    world.fake.always("acquire", Act::Late(ms(70)));
    tokio::time::sleep(secs(2)).await;
    assert!(guard.is_valid() && guard.durable());
}
