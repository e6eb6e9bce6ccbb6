//! Sessions: what lives by them, and how they end (I9).

use std::time::Duration;

use fermata::engine::{EngineError, LeaseId, SessionCall, WatchEvent};
use fermata::limits::Limits;
use fermata::lock::{EndReason, EndedAs, SessionId};
use fermata::store::SessionStore as _;
use tokio::task::JoinHandle;
use uuid::Uuid;

use super::faulty::Fault;
use super::world::{World, call_of, exhausted, lost, put, session_call, until};

const TTL: Duration = Duration::from_secs(10);
const GRACE: Duration = Duration::from_millis(500);
const STEP: Duration = Duration::from_millis(200);

fn closed() -> EngineError {
    lost(EndReason::SessionClosed)
}

/// Those that are open, or closed.
pub async fn rows(world: &World, open: bool) -> usize {
    let store = world.store.real().unwrap();
    let rows = store.list_sessions(None, 100).await.unwrap();
    rows.iter().filter(|row| row.open == open).count()
}

pub async fn until_none_is_open(world: &World) {
    until("the row is closed", || async {
        rows(world, true).await == 0
    })
    .await;
}

#[tokio::test]
async fn what_lives_by_a_session_ends_with_it_and_its_holder_learns_why() {
    let world = World::new().await;
    let session = world.open_session(10_000).await;
    let held = world.create_in(session, "a").await;
    let other = world.create_in(session, "b").await;
    let next = world.create("a").await.lock_ref;
    world.put(&held, "v").await.unwrap();
    assert_eq!(world.engine.close_session(session).await, Ok(false));
    assert_eq!(world.put(&held, "late").await, Err(closed()));
    assert_eq!(world.release(&other).await, Err(closed()));
    let next = world.acquire(&next).await;
    assert_eq!(world.get(&next).await, Ok(Some("v".to_owned())));
    assert_eq!(world.engine.close_session(session).await, Ok(true));
    assert_eq!(world.engine.counts().sessions, 0);
    until_none_is_open(&world).await;
}

#[tokio::test]
async fn a_session_expires_after_its_ttl_and_not_before() {
    let (world, clock) = World::by_hand().await;
    let session = world.open_session(10_000).await;
    let held = world.create_in(session, "k").await;
    // The wall clock says nothing of leases.
    clock.set_wall_back(Duration::from_secs(3_600));
    clock.advance(TTL - STEP).await;
    let renewed = world.renew(session).await.unwrap();
    assert_eq!(renewed.valid_for, TTL);
    clock.advance(TTL - STEP).await;
    world.put(&held, "still here").await.unwrap();
    clock.advance(TTL - STEP).await;
    assert_eq!(world.engine.counts().sessions, 1);
    clock.advance(2 * STEP).await;
    // For a moment it has ended, and its row does not say so yet.
    let renew = world.renew(session).await;
    assert!(matches!(
        renew.unwrap_err(),
        EngineError::SessionEnded | EngineError::Unavailable(_)
    ));
    world.until_free("k").await;
    let renew = world.renew(session).await;
    assert_eq!(renew.unwrap_err(), EngineError::SessionEnded);
    assert_eq!(world.put(&held, "late").await, Err(closed()));
    until_none_is_open(&world).await;
}

#[tokio::test]
async fn nobody_expires_for_the_time_that_the_replica_slept() {
    let (world, clock) = World::by_hand().await;
    let session = world.open_session(10_000).await;
    clock.advance(TTL / 2).await;
    clock.jump(10 * TTL).await;
    clock.advance(TTL / 2 - STEP).await;
    assert!(world.renew(session).await.is_ok());
    assert_eq!(world.engine.time_missed(), 10 * TTL);
}

#[tokio::test]
async fn the_same_request_finds_the_same_session() {
    let world = World::new().await;
    let id = Uuid::new_v4();
    let same = || session_call(id, 10_000);
    world.engine.open_session(same()).await.unwrap();
    world.engine.open_session(same()).await.unwrap();
    let (mut ttl, mut grace, mut owner) = (same(), same(), same());
    ttl.ttl_ms += 1;
    grace.disconnect_grace_ms = 500;
    owner.owner = "you".to_owned();
    let others = [(ttl, "ttl"), (grace, "disconnect_grace"), (owner, "owner")];
    for (other, field) in others {
        let opened = world.engine.open_session(other).await;
        let refused = Err(EngineError::RequestMismatch { field });
        assert_eq!(opened.map(|_| ()), refused);
    }
    assert_eq!(world.engine.counts().sessions, 1);
}

#[tokio::test]
async fn an_opening_of_unknown_outcome_is_resolved() {
    for fault in [Fault::UnknownDone, Fault::UnknownLost] {
        let world = World::new().await;
        world.store.fail_sessions([fault.clone(), fault]);
        let session = world.open_session(10_000).await;
        assert!(world.renew(session).await.is_ok());
        assert_eq!(rows(&world, true).await, 1);
    }
}

#[tokio::test]
async fn an_opening_that_nobody_learned_of_expires() {
    let (world, clock) = World::by_hand().await;
    world
        .store
        .fail_sessions([Fault::UnknownDone, Fault::NotStarted]);
    let (engine, id) = (world.engine.clone(), Uuid::new_v4());
    let opened = tokio::spawn(async move { engine.open_session(session_call(id, 10_000)).await });
    until("it gave up", || async {
        clock.advance(STEP).await;
        opened.is_finished()
    })
    .await;
    assert!(matches!(
        opened.await.unwrap(),
        Err(EngineError::Unavailable(_))
    ));
    assert_eq!(rows(&world, true).await, 1);
    // Not at once: it is kept once its row was read, and changed.
    until("it expired", || async {
        clock.advance(STEP).await;
        rows(&world, true).await == 0
    })
    .await;
}

#[tokio::test]
async fn a_closing_that_fails_is_tried_until_it_is_done() {
    let world = World::new().await;
    let session = world.open_session(10_000).await;
    let held = world.create_in(session, "k").await;
    world
        .store
        .fail_sessions([Fault::NotStarted, Fault::UnknownLost, Fault::UnknownDone]);
    world
        .store
        .fail_swaps([Fault::NotStarted, Fault::UnknownLost, Fault::UnknownDone]);
    world.engine.close_session(session).await.unwrap();
    assert!(world.state("k").await.entries.is_empty());
    assert_eq!(world.put(&held, "late").await, Err(closed()));
    until_none_is_open(&world).await;
}

#[tokio::test]
async fn limits_on_sessions_and_on_what_lives_by_one_are_kept() {
    let limits = Limits {
        sessions_max: 2,
        lock_refs_per_session_max: 2,
        ..Limits::default()
    };
    let world = World::with(limits).await;
    let one = world.open_session(10_000).await;
    let two = world.open_session(10_000).await;
    let id = Uuid::new_v4();
    let open = || world.engine.open_session(session_call(id, 10_000));
    let full = exhausted("sessions_max", 2);
    assert_eq!(open().await.unwrap_err(), full);
    world.engine.close_session(two).await.unwrap();
    open().await.unwrap();

    let a = call_of(one, "a");
    let first = world.engine.create(a.clone()).await.unwrap();
    world.create_in(one, "b").await;
    let full = exhausted("lock_refs_per_session_max", 2);
    assert_eq!(
        world.engine.create(call_of(one, "c")).await.unwrap_err(),
        full
    );
    // Not a new one: the call that made it is repeated (I5).
    assert_eq!(
        world.engine.create(a).await.unwrap().lock_ref,
        first.lock_ref
    );
    world.release(&first.lock_ref).await.unwrap();
    world.create_in(one, "c").await;
}

#[tokio::test]
async fn many_creates_at_once_do_not_pass_the_limit_of_their_session() {
    let limits = Limits {
        lock_refs_per_session_max: 3,
        ..Limits::default()
    };
    let world = World::with(limits).await;
    let session = world.open_session(10_000).await;
    let creates = (0..20).map(|n| world.engine.create(call_of(session, &n.to_string())));
    let made = futures_util::future::join_all(creates).await;
    assert_eq!(made.iter().filter(|r| r.is_ok()).count(), 3);
}

#[tokio::test]
async fn a_create_that_commits_while_its_session_closes_leaves_nothing() {
    let world = World::new().await;
    for n in 0..30u64 {
        let session = world.open_session(10_000).await;
        world
            .store
            .fail_swaps([Fault::Slow(Duration::from_millis(n % 5))]);
        let name = n.to_string();
        let (created, closed) = tokio::join!(world.engine.create(call_of(session, &name)), async {
            tokio::time::sleep(Duration::from_millis(n % 4)).await;
            world.engine.close_session(session).await
        });
        closed.unwrap();
        match created {
            Ok(_) | Err(EngineError::SessionEnded | EngineError::Ended(EndedAs::Lost(_))) => {}
            // It was being closed.
            Err(EngineError::Unavailable(_)) => {}
            Err(error) => panic!("{error}"),
        }
        world.until_free(&name).await;
    }
    // Also one whose create was answered after all that lived by it had ended.
    until("no session is left", || async {
        world.engine.counts().sessions == 0
    })
    .await;
    until_none_is_open(&world).await;
}

#[tokio::test]
async fn a_restart_keeps_sessions_with_a_fresh_ttl_and_what_lives_by_them() {
    let (world, clock) = World::by_hand().await;
    let session = world.open_session(10_000).await;
    let held = world.create_in(session, "k").await;
    let waiting = world.create_in(session, "k").await;
    clock.advance(TTL - STEP).await;
    let world = world.restart().await;
    clock.advance(TTL - STEP).await;
    let held = world.acquire(&held).await;
    world.put(&held, "v").await.unwrap();
    clock.advance(TTL - STEP).await;
    world.release(&held).await.unwrap();
    let waiting = world.acquire(&waiting).await;
    assert_eq!(world.get(&waiting).await, Ok(Some("v".to_owned())));
    clock.advance(TTL + STEP).await;
    until_none_is_open(&world).await;
    assert_eq!(world.get(&waiting).await, Err(closed()));
}

/// A session whose row is closed, while its entry of `k` cannot be ended; and the call that closes it.
async fn half_closed() -> (World, JoinHandle<Result<bool, EngineError>>) {
    let world = World::new().await;
    let session = world.open_session(10_000).await;
    world.create_in(session, "k").await;
    world.store.hold(|held| held.swaps = true);
    let engine = world.engine.clone();
    let closing = tokio::spawn(async move { engine.close_session(session).await });
    until("the row is closed", || async {
        let row = world.store.real().unwrap().load_session(session).await;
        !row.unwrap().unwrap().open
    })
    .await;
    (world, closing)
}

#[tokio::test]
async fn a_close_that_a_restart_cuts_in_half_is_finished_by_the_next_start() {
    let (world, closing) = half_closed().await;
    let world = world.restart().await;
    closing.abort();
    world.until_free("k").await;
    until_none_is_open(&world).await;
}

/// Each of them gave up, and may come again.
#[tokio::test]
async fn closes_that_are_given_up_leave_no_tasks_behind_while_a_key_cannot_be_changed() {
    const CLOSES: usize = 200;
    let world = World::new().await;
    let session = world.open_session(10_000).await;
    world.create_in(session, "k").await;
    world.store.hold(|held| held.swaps = true);
    let tasks = || {
        tokio::runtime::Handle::current()
            .metrics()
            .num_alive_tasks()
    };
    let before = tasks();
    for _ in 0..CLOSES {
        let close = world.engine.close_session(session);
        let _ = tokio::time::timeout(Duration::from_millis(1), close).await;
    }
    let of_one = tasks() - before;
    assert!(of_one < CLOSES / 4, "{of_one} tasks");
    world.store.hold(|held| held.swaps = false);
    until_none_is_open(&world).await;
}

#[tokio::test]
async fn a_second_close_is_answered_only_once_the_first_is_written() {
    let world = World::new().await;
    let session = world.open_session(10_000).await;
    world.store.fail_sessions(vec![Fault::NotStarted; 3]);
    let first = tokio::time::timeout(Duration::ZERO, world.engine.close_session(session)).await;
    assert!(first.is_err(), "given up");
    until("it has ended here", || async {
        world.renew(session).await.is_err()
    })
    .await;
    assert_eq!(world.engine.close_session(session).await, Ok(true));
    let row = world
        .store
        .real()
        .unwrap()
        .load_session(session)
        .await
        .unwrap();
    assert!(row.is_none_or(|row| !row.open));
}

#[tokio::test]
async fn a_close_does_not_outlast_its_replica() {
    let world = World::new().await;
    let session = world.open_session(10_000).await;
    world.create_in(session, "k").await;
    world.store.hold(|held| held.swaps = true);
    let (engine, close) = (world.engine.clone(), world.engine.clone());
    let closing = tokio::spawn(async move { close.close_session(session).await });
    until("the eviction is in flight", || async {
        world.store.log().swaps.len() == 2
    })
    .await;
    engine.stop();
    let stopped = tokio::time::timeout(Duration::from_secs(1), closing).await;
    assert_eq!(stopped.unwrap().unwrap(), Err(EngineError::Stopping));
}

#[tokio::test]
async fn a_session_whose_last_entry_ends_before_its_close_is_written_leaves_no_row() {
    let world = World::new().await;
    let session = world.open_session(10_000).await;
    let created = world.engine.create(call_of(session, "k")).await.unwrap();
    world
        .store
        .fail_sessions(std::iter::repeat_n(Fault::NotStarted, 4));
    let (closed, _) = tokio::join!(
        world.engine.close_session(session),
        world.release(&created.lock_ref)
    );
    assert_eq!(closed, Ok(false));
    until_none_is_open(&world).await;
}

/// A session that ends so soon after its client's stream.
async fn graceful(world: &World) -> SessionId {
    let call = SessionCall {
        disconnect_grace_ms: 500,
        ..session_call(Uuid::new_v4(), 10_000)
    };
    let session = call.id;
    let opened = world.engine.open_session(call).await.unwrap();
    // Also where no stream was opened yet.
    assert_eq!((opened.ttl, opened.valid_for), (TTL, GRACE));
    session
}

/// A renewal on a stream.
async fn ping(world: &World, session: SessionId) {
    let lease = LeaseId::Session(session);
    let renewed = world.engine.renew_on_stream(&lease).await.unwrap();
    assert_eq!(renewed.valid_for, GRACE);
    assert_eq!(renewed.disconnect_grace, Some(GRACE));
}

#[tokio::test]
async fn a_session_whose_stream_ended_has_ended_after_its_grace_and_not_before() {
    let (world, clock) = World::by_hand().await;
    let session = graceful(&world).await;
    let held = world.create_in(session, "k").await;
    let next = world.create("k").await.lock_ref;
    ping(&world, session).await;
    clock.advance(TTL / 2).await;
    world.put(&held, "mine").await.unwrap();
    world.engine.disconnected(session);
    clock.advance(GRACE - STEP / 2).await;
    assert_eq!(world.engine.counts().sessions, 1);
    assert!(!world.state("k").await.entries.is_empty());
    clock.advance(STEP).await;
    let next = world.acquire(&next).await;
    assert_eq!(world.get(&next).await, Ok(Some("mine".to_owned())));
    assert_eq!(world.put(&held, "late").await, Err(closed()));
    until_none_is_open(&world).await;
}

#[tokio::test]
async fn a_client_that_comes_back_within_its_grace_keeps_its_session() {
    let (world, clock) = World::by_hand().await;
    let session = graceful(&world).await;
    let held = world.create_in(session, "k").await;
    for _ in 0..3 {
        ping(&world, session).await;
        world.engine.disconnected(session);
        clock.advance(GRACE - STEP / 2).await;
    }
    ping(&world, session).await;
    clock.advance(TTL - STEP).await;
    let put = world.engine.critical_write(&held, put("v"), 0).await;
    assert_eq!(put.unwrap().valid_for, GRACE);
}

#[tokio::test]
async fn other_renewals_give_a_disconnected_client_its_grace_and_not_its_ttl() {
    let (world, clock) = World::by_hand().await;
    let session = graceful(&world).await;
    let held = world.create_in(session, "k").await;
    ping(&world, session).await;
    world.engine.disconnected(session);
    for _ in 0..4 {
        clock.advance(GRACE - STEP).await;
        world.put(&held, "v").await.unwrap();
        clock.advance(GRACE - STEP).await;
        let renewed = world.renew(session).await;
        assert_eq!(renewed.unwrap().valid_for, GRACE);
    }
    clock.advance(GRACE + STEP).await;
    until_none_is_open(&world).await;
    world.until_free("k").await;
    assert_eq!(world.put(&held, "late").await, Err(closed()));
}

#[tokio::test]
async fn an_open_watch_keeps_no_disconnected_session() {
    let (world, clock) = World::by_hand().await;
    let session = graceful(&world).await;
    let held = world.create_in(session, "k").await;
    let mut watch = world.engine.watch(&held).await.unwrap();
    assert!(matches!(watch.next().await, Some(WatchEvent::Held { .. })));
    assert_eq!(watch.valid_for(), GRACE);
    ping(&world, session).await;
    world.engine.disconnected(session);
    clock.advance(GRACE - STEP / 2).await;
    assert_eq!(world.engine.counts().sessions, 1);
    clock.advance(STEP).await;
    until_none_is_open(&world).await;
    assert!(matches!(watch.next().await, Some(WatchEvent::Lost(_))));
}

#[tokio::test]
async fn a_stream_that_ends_is_nothing_to_a_session_without_a_grace() {
    let (world, clock) = World::by_hand().await;
    let session = world.open_session(10_000).await;
    let lease = LeaseId::Session(session);
    let renewed = world.engine.renew_on_stream(&lease).await.unwrap();
    assert_eq!((renewed.valid_for, renewed.disconnect_grace), (TTL, None));
    world.engine.disconnected(session);
    clock.advance(TTL - STEP).await;
    assert!(world.engine.renew(&lease).await.is_ok());
}

#[tokio::test]
async fn a_restart_gives_a_disconnected_session_its_ttl_and_keeps_its_grace() {
    let (world, clock) = World::by_hand().await;
    let session = graceful(&world).await;
    ping(&world, session).await;
    world.engine.disconnected(session);
    let world = world.restart().await;
    clock.advance(TTL - STEP).await;
    ping(&world, session).await;
    world.engine.disconnected(session);
    clock.advance(GRACE + STEP).await;
    until_none_is_open(&world).await;
}

#[tokio::test]
async fn a_session_that_is_closed_while_a_lock_ref_of_it_is_watched_is_forgotten() {
    let world = World::new().await;
    let session = world.open_session(60_000).await;
    let held = world.create_in(session, "k").await;
    let mut watch = world.engine.watch(&held).await.unwrap();
    assert!(matches!(watch.next().await, Some(WatchEvent::Held { .. })));
    assert_eq!(world.engine.close_session(session).await, Ok(false));
    assert!(matches!(watch.next().await, Some(WatchEvent::Lost(_))));
    drop(watch);
    until("it is forgotten", || async {
        world.engine.counts().sessions == 0
    })
    .await;
    until_none_is_open(&world).await;
}
