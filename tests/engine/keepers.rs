//! Sessions among several replicas: one keeps them, and entries of the others live by them (I9).

use std::time::Duration;

use fermata::engine::{EngineError, LeaseId, LockStatus, Presence, WatchEvent};
use fermata::lock::EndedAs::Lost;
use fermata::lock::{EndReason, LockRef, SessionId};
use fermata::store::{SessionRow, SessionStore as _, SessionSwap};
use futures_util::future::join_all;

use super::recorded::Engine;
use super::replicas::{LONG, NO_WAIT, acquire, create, down, get, session, until_free, write};
use super::shared::{Service, elsewhere, some_id};
use super::world::{
    assert_unavailable, call, call_of, grant, key, lost, put, session_call, soon, until,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_is_renewed_through_its_replica_and_ends_everywhere() {
    let (_service, a, b) = &Service::two().await;
    let session = session(a, 20_000).await;
    // An entry of the other replica lives by it.
    let held = create(b, call_of(session, "k")).await;
    assert!(held.valid_for > Duration::from_secs(15), "{held:?}");
    assert!(grant(&held.status).0 > 0);
    write(b, &held.lock_ref, "x").await.unwrap();
    let lease = LeaseId::Session(session);
    assert_eq!(elsewhere(b.renew(&lease).await), a.replica());
    let mut watch = b.watch(&held.lock_ref).await.unwrap();
    assert!(matches!(watch.next().await, Some(WatchEvent::Held { .. })));
    assert_eq!(elsewhere(b.close_session(session).await), a.replica());
    assert_eq!(a.close_session(session).await, Ok(false));
    let closed = Lost(EndReason::SessionClosed);
    assert_eq!(watch.next().await, Some(WatchEvent::Lost(closed.clone())));
    let got = get(b, &held.lock_ref).await;
    assert_eq!(got, Err(EngineError::Ended(closed)));
    assert!(matches!(
        b.create(call_of(session, "k2")).await,
        Err(EngineError::SessionEnded)
    ));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_outlives_its_replica_where_its_client_comes_to_another() {
    let (service, a, b) = &Service::two().await;
    let keeper = a.replica();
    let session = session(a, 20_000).await;
    let held = create(b, call_of(session, "k")).await.lock_ref;
    service.kill(0);
    down(b, keeper).await;
    let lease = LeaseId::Session(session);
    let renewed = b.renew(&lease).await;
    // It may be the keeper by now, for the sake of the entry that it serves.
    if renewed.is_err() {
        assert_eq!(elsewhere(renewed), keeper);
        b.take_session(session, keeper).await.unwrap();
    }
    assert!(b.renew(&lease).await.unwrap().valid_for > Duration::from_secs(15));
    assert_eq!(get(b, &held).await, Ok(None));
    assert_eq!(b.close_session(session).await, Ok(false));
    assert!(matches!(get(b, &held).await, Err(EngineError::Ended(_))));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_is_lost_with_its_replica_and_client_and_its_entry_with_it() {
    let (service, a, b) = &Service::two().await;
    let session = session(a, 1_000).await;
    let held = create(b, call_of(session, "k")).await.lock_ref;
    let waiting = create(b, call("k", 20_000)).await.lock_ref;
    service.kill(0);
    acquire(b, &waiting).await;
    assert_eq!(get(b, &held).await, Err(lost(EndReason::SessionClosed)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_cannot_be_changed_holds_up_no_other() {
    let (service, a, b) = &Service::two().await;
    let (one, other) = (session(a, 20_000).await, session(a, 20_000).await);
    create(b, call_of(one, "stuck")).await;
    let held = create(b, call_of(other, "k")).await.lock_ref;
    service.replicas[1].link.stick(key("stuck"));
    a.close_session(one).await.unwrap();
    tokio::time::sleep(Duration::from_millis(500)).await;
    a.close_session(other).await.unwrap();
    until("what lived by the other session has ended", || async {
        matches!(get(b, &held).await, Err(EngineError::Ended(_)))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_is_closed_once_no_other_replica_serves_its_entries() {
    let (service, a, b) = &Service::two().await;
    let close = |session| fermata::engine::Engine::close_session(a, session);
    for n in 0..10 {
        let session = session(a, 20_000).await;
        let held = create(b, call_of(session, &n.to_string())).await.lock_ref;
        let closed = close(session).await.unwrap();
        assert!(!closed.may_be_served);
        let got = get(b, &held).await;
        assert_eq!(got, Err(lost(EndReason::SessionClosed)));
    }
    // Who does not hear of it is said not to have.
    let session = session(a, 20_000).await;
    create(b, call_of(session, "k")).await;
    service.wires.cut("replica-1");
    assert!(close(session).await.unwrap().may_be_served);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_taken_over_without_an_answer_is_kept_and_ends() {
    let (service, a, b) = &Service::two().await;
    let keeper = a.replica();
    let session = session(a, 3_000).await;
    let held = create(b, call_of(session, "k")).await.lock_ref;
    service.kill(0);
    down(b, keeper).await;
    service.replicas[1].link.set(|faults| faults.unheard = 1);
    // Nobody claimed it any more.
    let _ = b.take_session(session, keeper).await;
    until_free(b, "k").await;
    assert!(matches!(get(b, &held).await, Err(EngineError::Ended(_))));
}

/// Renews a session at its keeper, for as long as it is polled.
pub async fn keep_renewed<T>(keeper: &Engine, session: SessionId) -> T {
    loop {
        keeper.renew(&LeaseId::Session(session)).await.unwrap();
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// A holder does not come, though its session is kept alive by this engine: the one behind it has its turn.
pub async fn goes_unclaimed(
    (keeper, session): (&Engine, SessionId),
    home: &Engine,
    head: &LockRef,
    next: &LockRef,
) {
    tokio::select! {
        _ = acquire(home, next) => {}
        () = keep_renewed(keeper, session) => {}
    }
    assert_eq!(get(home, head).await, Err(lost(EndReason::Unclaimed)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_waits_for_a_holder_that_did_not_come_though_its_session_is_kept_elsewhere() {
    let (_service, a, b) = &Service::two().await;
    let session = session(a, 1_000).await;
    let first = create(b, call("k", 20_000)).await.lock_ref;
    let given_up = create(b, call_of(session, "k")).await.lock_ref;
    let last = create(b, call("k", 20_000)).await.lock_ref;
    b.release(&first, None, 0).await.unwrap();
    goes_unclaimed((a, session), b, &given_up, &last).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_nobody_asks_about_is_closed_once_its_replica_is_down() {
    let (service, a, b) = &Service::two().await;
    session(a, 6_000).await;
    service.kill(0);
    for _ in 0..400 {
        if b.list_sessions(None, 9).await.unwrap().items.is_empty() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("it is still open");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_is_not_taken_over_from_a_keeper_that_lives() {
    let (service, a, b) = &Service::two().await;
    let keeper = a.replica();
    let session = session(a, 20_000).await;
    // It cannot be called, and does not hear what it is asked through the store.
    service.wires.cut("replica-0");
    service.replicas[0].link.set(|faults| faults.deaf = true);
    let taken = b.take_session(session, keeper).await;
    assert_unavailable(&taken);
    let lease = LeaseId::Session(session);
    assert_eq!(elsewhere(b.renew(&lease).await), keeper);
    assert!(a.renew(&lease).await.is_ok());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_was_handed_over_is_renewed_by_its_new_keeper_only() {
    let (service, a, b) = &Service::two().await;
    let session = session(a, 20_000).await;
    service.wires.cut("replica-0");
    b.take_session(session, a.replica()).await.unwrap();
    let lease = LeaseId::Session(session);
    b.renew(&lease).await.unwrap();
    assert_eq!(elsewhere(a.renew(&lease).await), b.replica());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_of_a_keeper_that_stopped_is_taken_over_at_once_and_ends_there_if_nobody_renews_it()
 {
    let (_service, a, b) = &Service::two().await;
    let keeper = a.replica();
    let session = session(a, 2_000).await;
    let held = create(b, call_of(session, "k")).await.lock_ref;
    a.stop();
    a.leave(LONG).await;
    down(b, keeper).await;
    let lease = LeaseId::Session(session);
    b.take_session(session, keeper).await.unwrap();
    for _ in 0..8 {
        b.renew(&lease).await.unwrap();
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    assert_eq!(get(b, &held).await, Ok(None));
    until_free(b, "k").await;
    assert_eq!(b.renew(&lease).await, Err(EngineError::SessionEnded));
}

/// Waits for an entry, as a client does that asks again after each answer.
async fn wait_on(home: &Engine, entry: &LockRef) {
    let is_waiting = |status| matches!(status, LockStatus::Waiting { .. });
    while is_waiting(home.acquire(entry, LONG, false).await.unwrap().status) {}
}

/// Waits at `home` for an entry whose session `keeper` keeps, which crashes meanwhile; for longer than the TTL nothing
/// but the waiting client keeps it alive, at `taker`.
async fn waits_while_the_keeper_crashes(service: &Service, taker: &Engine) {
    let (home, keeper) = (service.engine(0), service.engine(1));
    let first = create(home, call("k", 20_000)).await.lock_ref;
    let session = session(keeper, 1_000).await;
    let waiting = create(home, call_of(session, "k")).await.lock_ref;
    let wait = wait_on(home, &waiting);
    let moves = async {
        let gone = keeper.replica();
        service.kill(1);
        down(taker, gone).await;
        until("it was taken over", || async {
            match taker.take_session(session, gone).await {
                Ok(()) | Err(EngineError::Elsewhere { .. }) => true,
                Err(EngineError::Unavailable(_)) => false,
                Err(error) => panic!("{error:?}"),
            }
        })
        .await;
        tokio::time::sleep(Duration::from_secs(3)).await;
        home.release(&first, None, 0).await.unwrap();
    };
    tokio::join!(wait, moves);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_waits_keeps_a_session_alive_whose_keeper_crashed_whoever_takes_it_over() {
    for taker in [0, 2] {
        eprintln!("taken over by {taker}");
        let service = &Service::of(3).await;
        service.know_each_other().await;
        waits_while_the_keeper_crashes(service, service.engine(taker)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_brings_a_session_along_whose_keeper_is_down() {
    let (service, a, b) = &Service::two().await;
    let session = session(a, 20_000).await;
    let held = create(b, call_of(session, "k")).await.lock_ref;
    let behind = create(b, call_of(session, "k")).await.lock_ref;
    let keeper = a.replica();
    service.kill(0);
    down(b, keeper).await;
    // Nobody names the session: its client uses its lockRefs, and that is a renewal.
    b.critical_write(&held, put("on"), 0).await.unwrap();
    b.release(&held, None, 0).await.unwrap();
    acquire(b, &behind).await;
    until("it is kept here", || async {
        b.renew(&LeaseId::Session(session)).await.is_ok()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_waits_for_ever_for_a_session_that_its_keeper_does_not_know_of() {
    let (service, a, b) = &Service::two().await;
    let row = SessionRow {
        id: SessionId(some_id()),
        ttl_ms: 1_000,
        disconnect_grace_ms: 0,
        replica: a.replica(),
        epoch: 1,
        open: true,
        identity: String::new(),
        owner: String::new(),
        created_at_ms: 0,
    };
    let link = &service.replicas[1].link;
    let swap = link.swap_session(0, &row).await;
    assert!(matches!(swap, SessionSwap::Applied), "{swap:?}");
    // Its client renews it once, by making an entry, and never again.
    let gone = create(b, call_of(row.id, "k")).await.lock_ref;
    let waiting = create(b, call("k", 30_000)).await.lock_ref;
    acquire(b, &waiting).await;
    assert_eq!(get(b, &gone).await, Err(lost(EndReason::SessionClosed)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_is_opened_again_while_its_hand_over_is_in_doubt_has_one_keeper() {
    let (service, a, b) = &Service::two().await;
    service.wires.cut("replica-0");
    service.wires.cut("replica-1");
    let (id, keeper) = (some_id(), a.replica());
    let link = &service.replicas[0].link;
    a.open_session(session_call(id, 20_000)).await.unwrap();
    let lease = LeaseId::Session(SessionId(id));
    link.set(|faults| faults.late = true);
    let asks = b.take_session(SessionId(id), keeper);
    let meanwhile = async {
        until("it is given away", || async { link.holds_back() }).await;
        // The client did not hear of it.
        let again = a.open_session(session_call(id, 20_000)).await;
        link.land().await;
        again
    };
    let (asked, again) = tokio::join!(asks, meanwhile);
    let kept = (a.renew(&lease).await, b.renew(&lease).await);
    assert!(
        kept.0.is_err() || kept.1.is_err(),
        "both keep it: asked {asked:?}, opened again {again:?}, renewed {kept:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_was_opened_elsewhere_after_a_failed_try_has_one_keeper() {
    let (service, a, b) = &Service::two().await;
    let (id, link) = (some_id(), &service.replicas[0].link);
    link.set(|faults| (faults.late, faults.cuts_then) = (true, true));
    let failed = a.open_session(session_call(id, 20_000)).await;
    failed.unwrap_err();
    link.cut(false);
    b.open_session(session_call(id, 20_000)).await.unwrap();
    let lease = LeaseId::Session(SessionId(id));
    for _ in 0..20 {
        b.renew(&lease).await.unwrap();
        let kept = a.renew(&lease).await;
        assert!(kept.is_err(), "both keep it: {kept:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_whose_row_cannot_be_read_holds_up_no_other() {
    let (service, a, b) = &Service::two().await;
    let first = create(b, call("k", 60_000)).await.lock_ref;
    let (one, other) = (session(a, 4_000).await, session(a, 2_000).await);
    create(b, call_of(one, "unreadable")).await;
    service.replicas[1]
        .link
        .set(|faults| faults.hung = Some(one));
    let waiting = create(b, call_of(other, "k")).await.lock_ref;
    let wait = wait_on(b, &waiting);
    let goes_on = async {
        // The row of the one is read again meanwhile, and the other one lives by its waiting client alone.
        tokio::time::sleep(Duration::from_secs(10)).await;
        b.release(&first, None, 0).await.unwrap();
    };
    tokio::join!(wait, goes_on);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_keeper_that_crashed_holds_up_no_call_while_what_it_said_stands() {
    let service = Service::with_ttls(&[Duration::from_secs(5); 2]).await;
    let (a, b) = (service.engine(0), service.engine(1));
    let keeper = a.replica();
    let session = session(a, 6_000).await;
    let held = create(b, call_of(session, "k")).await.lock_ref;
    // Less than two thirds are left of what it said.
    tokio::time::sleep(Duration::from_millis(2_500)).await;
    service.kill(0);
    let left = Duration::from_millis(3_500);
    let done = b.critical_write(&held, put("x"), 0).await.unwrap();
    assert!(
        !done.valid_for.is_zero() && done.valid_for <= left,
        "{done:?}"
    );
    let got = b.acquire(&held, NO_WAIT, false).await.unwrap();
    assert!(!got.valid_for.is_zero() && got.valid_for <= left, "{got:?}");
    assert_ne!(b.presence(keeper), Presence::Down);
    // Once it is down, the session has another keeper.
    down(b, keeper).await;
    until("the session is kept here", || async {
        let renewed = b.renew(&LeaseId::Session(session)).await;
        renewed.is_ok_and(|renewed| renewed.valid_for > left)
    })
    .await;
    assert_eq!(get(b, &held).await, Ok(Some("x".to_owned())));
}

async fn row_of(service: &Service, session: SessionId) -> SessionRow {
    let row = service.replicas[1].link.load_session(session).await;
    row.unwrap().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn before_a_stop_sessions_are_handed_over_and_kept_by_the_next_before_anybody_asks() {
    let (service, a, b) = &Service::two().await;
    let session = session(a, 20_000).await;
    let held = create(b, call_of(session, "k")).await.lock_ref;
    a.hand_over_in_use(LONG).await;
    until("its next keeper has taken it in", || async {
        let row = row_of(service, session).await;
        (row.replica, row.epoch) == (b.replica(), 3)
    })
    .await;
    let lease = LeaseId::Session(session);
    assert_eq!(elsewhere(a.renew(&lease).await), b.replica());
    service.kill(0);
    assert!(b.renew(&lease).await.unwrap().valid_for > Duration::from_secs(15));
    write(b, &held, "x").await.unwrap();
    assert_eq!(b.close_session(session).await, Ok(false));
    assert!(matches!(get(b, &held).await, Err(EngineError::Ended(_))));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_is_being_handed_over_is_not_taken_back_by_a_renewal() {
    let (service, a, b) = &Service::two().await;
    let session = session(a, 20_000).await;
    let link = &service.replicas[0].link;
    link.set(|faults| faults.slow_sessions = Duration::from_millis(50));
    let before = link.swaps();
    let lease = LeaseId::Session(session);
    let renewals = async {
        loop {
            match a.renew(&lease).await {
                Ok(_) => tokio::time::sleep(Duration::from_millis(1)).await,
                Err(error) => return error,
            }
        }
    };
    let (error, ()) = tokio::join!(soon(renewals), a.hand_over_in_use(LONG));
    assert_eq!(elsewhere::<()>(Err(error)), b.replica());
    assert_eq!(link.swaps() - before, 1, "nobody tried to take it back");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_many_that_ask_for_a_session_that_was_handed_here_none_is_told_to_come_again() {
    let (service, a, b) = &Service::two().await;
    let session = session(a, 20_000).await;
    let given = SessionRow {
        replica: b.replica(),
        epoch: 2,
        ..row_of(service, session).await
    };
    let swapped = service.replicas[0].link.swap_session(1, &given).await;
    assert!(matches!(swapped, SessionSwap::Applied), "{swapped:?}");
    service.replicas[1]
        .link
        .set(|faults| faults.slow_sessions = Duration::from_millis(2));
    let lease = LeaseId::Session(session);
    for renewed in join_all((0..16).map(|_| b.renew(&lease))).await {
        renewed.unwrap();
    }
    assert_eq!(row_of(service, session).await.epoch, 3);
}
