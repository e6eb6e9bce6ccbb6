//! Until when a lock is believed in, and how its loss is told.

use std::time::Duration;

use tonic::Status;

use super::fake::Act;
use super::{World, away, secs};
use crate::{
    CriticalError, GuardState, LockGuard, LostReason, ReleaseError, Session, SessionError,
    SessionRequest,
};

const GRACE: Duration = Duration::from_millis(500);

fn all_away(world: &World) {
    world.fake.always_all(
        &["keep_alive", "renew", "put", "acquire", "watch", "release"],
        away(),
    );
}

#[tokio::test(start_paused = true)]
async fn a_guard_stays_valid_for_as_long_as_the_server_answers() {
    let (world, guard) = World::locked().await;
    tokio::time::sleep(secs(200)).await;
    assert!(guard.is_valid());
    let asked = world.fake.count("renew");
    // Each third of 30 s.
    assert!((18..=21).contains(&asked), "{asked}");
    // Only the end of a session with a disconnect_grace hangs on a stream.
    assert_eq!(world.fake.count("keep_alive"), 0);
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_was_waited_for_is_renewed_as_soon_as_its_promise_is_a_third_of_its_ttl_old() {
    let world = World::new();
    let holder = world.fake.occupy();
    let (guard, ()) = tokio::join!(world.client.lock("k"), async {
        // 15 s of the 27 s are left, and nothing is asked for at first.
        tokio::time::sleep(secs(12)).await;
        world.fake.end(&holder, "RELEASED", "");
    });
    let guard = guard.unwrap();
    assert_eq!(world.fake.count("renew"), 0);
    for _ in 0..30 {
        tokio::time::sleep(secs(1)).await;
        assert!(guard.valid_for() >= secs(15), "{:?}", guard.valid_for());
    }
}

#[tokio::test(start_paused = true)]
async fn a_loss_is_told_before_anyone_else_can_have_the_lock() {
    let (world, guard) = World::locked().await;
    let start = tokio::time::Instant::now();
    all_away(&world);
    let lost = guard.lost().await;
    assert_eq!(lost.reason, LostReason::ValidityEnded);
    // The server counts 30 s from when the create was sent.
    assert!(start.elapsed() <= secs(27), "{:?}", start.elapsed());
    assert!(start.elapsed() >= secs(26));
    assert!(!guard.is_valid());
    assert_eq!(guard.valid_until(), None);
    assert!(matches!(guard.put("x").await, Err(CriticalError::Lost(_))));
    assert!(matches!(guard.release().await, Err(ReleaseError::Lost(_))));
}

#[tokio::test(start_paused = true)]
async fn what_renewals_failed_with_is_forgotten_once_the_validity_grows() {
    let (world, guard) = World::locked().await;
    world.fake.always_all(&["keep_alive", "renew"], away());
    assert_eq!(guard.last_failure(), None);
    tokio::time::sleep(secs(22)).await;
    let failure = guard.last_failure().unwrap();
    assert!(failure.message.contains("away"), "{failure}");
    // Its put asks for the new grant, which promises more.
    world.fake.take_over();
    guard.put("x").await.unwrap();
    assert_eq!(guard.last_failure(), None);
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_comes_after_the_end_brings_nothing_back() {
    let (world, guard) = World::locked().await;
    world
        .fake
        .always_all(&["keep_alive", "renew"], Act::Late(secs(29)));
    assert_eq!(guard.lost().await.reason, LostReason::ValidityEnded);
    world.fake.state().always.clear();
    tokio::time::sleep(secs(60)).await;
    assert!(!guard.is_valid());
}

#[tokio::test(start_paused = true)]
async fn a_slow_answer_counts_from_when_it_was_asked_for() {
    let world = World::new();
    world.fake.next("create", Act::Late(secs(4)));
    let asked = world.client.now();
    let guard = world.client.lock("k").await.unwrap();
    assert_eq!(guard.valid_until(), Some(asked.after(secs(27))));
}

#[tokio::test(start_paused = true)]
async fn a_slow_renewal_counts_from_when_it_was_given() {
    let (world, guard) = World::locked().await;
    let start = tokio::time::Instant::now();
    world.fake.next("renew", Act::Late(secs(4)));
    all_away(&world);
    guard.lost().await;
    // Given after 10 s.
    assert!(
        (secs(36)..=secs(37)).contains(&start.elapsed()),
        "{:?}",
        start.elapsed()
    );
}

#[tokio::test(start_paused = true)]
async fn a_lock_is_not_believed_in_after_a_suspend() {
    let (world, guard) = World::locked().await;
    assert!(guard.is_valid());
    world.clock.suspend(secs(3_600));
    assert!(!guard.is_valid());
    assert_eq!(guard.lost().await.reason, LostReason::ValidityEnded);
}

#[tokio::test(start_paused = true)]
async fn an_end_by_force_is_told_at_once_with_its_reason() {
    let (world, guard) = World::locked().await;
    let (lost, ()) = tokio::join!(guard.lost(), async {
        tokio::time::sleep(secs(1)).await;
        world
            .fake
            .end(&guard.lock_ref(), "FORCED", "it was ended by ops: on fire");
    });
    assert_eq!(lost.reason, LostReason::Forced);
    assert!(lost.detail.contains("on fire"));
    assert_eq!(guard.state(), GuardState::Lost(lost));
}

#[tokio::test(start_paused = true)]
async fn a_put_that_finds_the_lock_gone_loses_it() {
    let (world, guard) = World::locked().await;
    world.fake.always("watch", Act::Hang);
    world.fake.end(&guard.lock_ref(), "EXPIRED", "it expired");
    let Err(CriticalError::Lost(lost)) = guard.put("x").await else {
        panic!("it must be lost");
    };
    assert_eq!(lost.reason, LostReason::Expired);
    assert!(!guard.is_valid());
}

#[tokio::test(start_paused = true)]
async fn a_put_does_not_outlive_the_validity() {
    let (world, guard) = World::locked().await;
    all_away(&world);
    tokio::time::sleep(secs(25)).await;
    let start = tokio::time::Instant::now();
    let put = guard.put("x").await;
    assert!(matches!(put, Err(CriticalError::Lost(_))), "{put:?}");
    assert!(start.elapsed() <= secs(2) + secs(1) / 2);
}

#[tokio::test(start_paused = true)]
async fn one_session_keeps_many_locks_and_takes_them_with_it() {
    let world = World::new();
    let session = world.session().await;
    let guard = session.lock("k").await.unwrap();
    tokio::time::sleep(secs(100)).await;
    assert!(guard.is_valid());
    let id = session.text().to_owned();
    let kept = world.fake.calls("renew");
    assert!(kept.iter().all(|call| call.ends_with(&id)), "{kept:?}");
    all_away(&world);
    let lost = session.lost().await;
    assert_eq!(lost.reason, LostReason::ValidityEnded);
    assert!(!guard.is_valid());
}

/// In a session that ends half a second after its connection.
async fn graceful(world: &World) -> (Session, LockGuard) {
    let request = SessionRequest::new().disconnect_grace(GRACE);
    let session = world.client.open_session(request).await.unwrap();
    let guard = session.lock("k").await.unwrap();
    assert_eq!(guard.disconnect_grace(), Some(GRACE));
    assert_eq!(guard.ttl(), secs(30));
    (session, guard)
}

#[tokio::test(start_paused = true)]
async fn with_a_disconnect_grace_a_renewal_is_sent_at_once_and_each_quarter_of_it() {
    let world = World::new();
    let (_session, guard) = graceful(&world).await;
    tokio::time::sleep(GRACE / 10).await;
    assert_eq!(world.fake.count("keep_alive"), 1);
    tokio::time::sleep(secs(10)).await;
    assert!(guard.is_valid());
    assert!(guard.valid_for() <= GRACE / 10 * 9);
    assert!(guard.valid_for() >= GRACE / 2);
    let asked = world.fake.count("keep_alive");
    assert!((75..=82).contains(&asked), "{asked}");
    assert_eq!(world.fake.count("renew"), 0);
}

#[tokio::test(start_paused = true)]
async fn with_a_disconnect_grace_a_session_is_open_once_a_server_has_heard_of_it_on_a_stream() {
    let world = World::new();
    // Both streams of the first renewal break: it is made as a call, which tells nobody whose stream to look at.
    let broken = away();
    world.fake.next("keep_alive", broken.clone());
    world.fake.next("keep_alive", broken);
    let request = SessionRequest::new().disconnect_grace(GRACE);
    let _session = world.client.open_session(request).await.unwrap();
    assert_eq!(world.fake.count("renew"), 1);
    assert_eq!(world.fake.count("keep_alive"), 3);
    // One that never answers does not hold it up for ever.
    let world = World::new();
    world.fake.always("keep_alive", Act::Hang);
    let begun = tokio::time::Instant::now();
    let request = SessionRequest::new().disconnect_grace(GRACE);
    let session = world.client.open_session(request).await.unwrap();
    assert!(session.valid_until().is_some());
    assert_eq!(begun.elapsed(), session.ttl() / 3);
}

#[tokio::test(start_paused = true)]
async fn a_session_of_which_nothing_can_be_said_yet_is_not_open() {
    let world = World::new();
    world.fake.state().says_nothing = true;
    let client = world.client.clone();
    let opening = tokio::spawn(async move {
        let request = SessionRequest::new().disconnect_grace(GRACE);
        client.open_session(request).await
    });
    tokio::time::sleep(secs(2)).await;
    assert!(!opening.is_finished());
    world.fake.state().says_nothing = false;
    tokio::time::sleep(GRACE).await;
    assert!(opening.is_finished());
    let session = opening.await.unwrap().unwrap();
    assert!(session.valid_until().is_some());
}

#[tokio::test(start_paused = true)]
async fn a_session_that_has_ended_when_its_first_answer_comes_is_none() {
    let world = World::new();
    world.fake.next("open_session", Act::Late(2 * GRACE));
    let request = SessionRequest::new().disconnect_grace(GRACE);
    let opened = world.client.open_session(request).await;
    let Err(SessionError::Ended(lost)) = opened else {
        panic!("{opened:?}");
    };
    assert_eq!(lost.reason, LostReason::ValidityEnded);
}

#[tokio::test(start_paused = true)]
async fn with_a_disconnect_grace_a_loss_is_told_within_it_whatever_the_ttl() {
    for act in [away(), Act::Hang] {
        let world = World::new();
        let (session, guard) = graceful(&world).await;
        tokio::time::sleep(secs(5)).await;
        world
            .fake
            .always_all(&["keep_alive", "renew", "watch"], act);
        let start = tokio::time::Instant::now();
        assert_eq!(guard.lost().await.reason, LostReason::ValidityEnded);
        // The last renewal that was answered left up to a quarter of the grace before.
        let (least, most) = (GRACE / 10 * 6, GRACE / 10 * 9);
        assert!(start.elapsed() <= most, "{:?}", start.elapsed());
        assert!(start.elapsed() >= least, "{:?}", start.elapsed());
        assert_eq!(session.valid_until(), None);
    }
}

#[tokio::test(start_paused = true)]
async fn a_session_is_closed_with_its_last_lock() {
    let world = World::new();
    let session = world.session().await;
    let guard = session.lock("k").await.unwrap();
    drop(session);
    tokio::time::sleep(secs(1)).await;
    assert_eq!(world.fake.count("close_session"), 0);
    drop(guard);
    tokio::time::sleep(secs(1)).await;
    assert_eq!(world.fake.count("close_session"), 1);
}

#[tokio::test(start_paused = true)]
async fn where_no_stream_is_taken_a_session_with_a_disconnect_grace_is_renewed_by_calls() {
    let world = World::new();
    let no_stream = Act::Refuse(Status::unimplemented("KeepAlive"));
    world.fake.always("keep_alive", no_stream);
    let (_session, guard) = graceful(&world).await;
    tokio::time::sleep(secs(5)).await;
    assert!(guard.is_valid());
    assert_eq!(world.fake.count("keep_alive"), 1);
    assert!(world.fake.count("renew") >= 35);
}

/// One that takes connections and answers nothing, as a replica that is stopped by SIGSTOP.
#[tokio::test(start_paused = true)]
async fn a_renewal_that_an_endpoint_does_not_answer_is_made_at_the_next_one() {
    let (world, second) = World::with_second();
    let session = world.session().await;
    let ttl = session.ttl();
    world.fake.always_all(&["keep_alive", "renew"], Act::Hang);
    tokio::time::sleep(ttl * 16 / 30).await;
    let left = session.valid_until().unwrap();
    let left = world.client.clock().now().until(left);
    assert!(left > ttl / 2, "{left:?} of {ttl:?}");
    assert!(second.count("renew") + second.count("keep_alive") > 0);
}

#[tokio::test(start_paused = true)]
async fn a_watch_is_opened_again_at_another_endpoint() {
    let world = World::with_nobody();
    let guard = world.client.lock("k").await.unwrap();
    world.fake.break_streams();
    world.client.leave(0);
    tokio::time::sleep(secs(1)).await;
    world.fake.end(&guard.lock_ref(), "FORCED", "by hand");
    let lost = tokio::time::timeout(secs(5), guard.lost()).await;
    assert_eq!(lost.unwrap().reason, LostReason::Forced);
}

#[tokio::test(start_paused = true)]
async fn when_streams_break_every_session_is_heard_on_another_one_within_its_grace() {
    let world = World::new();
    let mut sessions = Vec::new();
    for _ in 0..4 {
        let request = SessionRequest::new().disconnect_grace(GRACE);
        sessions.push(world.client.open_session(request).await.unwrap());
    }
    tokio::time::sleep(secs(2)).await;
    for _ in 0..5 {
        world.fake.state().calls.clear();
        world.fake.break_streams();
        tokio::time::sleep(GRACE / 2).await;
        for session in &sessions {
            let heard = format!("keep_alive {}", session.text());
            assert!(world.fake.state().calls.contains(&heard));
        }
        tokio::time::sleep(secs(1)).await;
    }
    assert_eq!(world.fake.state().streams, 4 * 6);
    assert_eq!(world.fake.count("renew"), 0);
}

#[tokio::test(start_paused = true)]
async fn the_stream_ends_with_its_session() {
    let world = World::new();
    let (session, guard) = graceful(&world).await;
    assert_eq!(world.fake.state().streams_open, 1);
    guard.release().await.unwrap();
    session.close().await.unwrap();
    tokio::time::sleep(secs(1)).await;
    assert_eq!(world.fake.state().streams_open, 0);
}
