//! Several replicas on one store: homes, take-overs, agreement, self-fencing, sessions (I8 to I10).

use std::time::{Duration, Instant};

use fermata::engine::{CreateCall, CreatedLockRef, EngineError, Grants, LeaseId, LockStatus};
use fermata::engine::{Presence, Value, WatchEvent};
use fermata::lock::EndedAs::{Lost, Released};
use fermata::lock::{EndReason, LockRef, SessionId};

use super::recorded::Engine;
use super::shared::{Service, TTL, elsewhere, some_id};
use super::world::{call, call_of, grant, put, session_call, until};

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
    let opened = engine.open_session(session_call(some_id(), ttl_ms));
    opened.await.unwrap().0
}

pub async fn down(engine: &Engine, id: fermata::lock::ReplicaId) {
    until("the other is down", || async {
        engine.presence(id) == Presence::Down
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_its_home_serves_a_lock_ref_and_the_others_say_where_that_is() {
    let (_service, a, b) = &Service::two().await;
    let made = create(a, call("k", 20_000)).await.lock_ref;
    write(a, &made, "of a").await.unwrap();
    let home = a.replica();
    assert_eq!(elsewhere(get(b, &made).await), home);
    assert_eq!(elsewhere(write(b, &made, "of b").await), home);
    assert_eq!(elsewhere(b.acquire(&made, NO_WAIT, false).await), home);
    assert_eq!(elsewhere(b.release(&made, None, 0).await), home);
    assert_eq!(elsewhere(b.watch(&made).await.map(|_| ())), home);
    let lease = LeaseId::LockRef(made.clone());
    assert_eq!(elsewhere(b.renew(&lease).await), home);
    // A repeated create finds its entry where it is.
    let again = call("k2", 20_000);
    create(a, again.clone()).await;
    assert_eq!(elsewhere(b.create(again).await), home);
    assert_eq!(get(a, &made).await, Ok(Some("of a".to_owned())));
    a.release(&made, None, 0).await.unwrap();
    // It has ended, and every replica knows.
    assert_eq!(b.release(&made, None, 0).await, Ok(true));
    assert_eq!(get(b, &made).await, Err(EngineError::Ended(Released)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_of_one_replica_gets_its_turn_from_the_holder_of_another() {
    let (service, a, b) = &Service::two().await;
    let first = create(a, call("k", 20_000)).await.lock_ref;
    let second = create(b, call("k", 20_000)).await;
    assert_eq!(second.status, LockStatus::Waiting { position: 1 });
    let third = create(a, call("k", 20_000)).await.lock_ref;
    write(a, &first, "one").await.unwrap();
    let released = async { a.release(&first, None, 0).await.unwrap() };
    let (held, _) = tokio::join!(acquire(b, &second.lock_ref), released);
    assert_eq!(get(b, &held).await, Ok(Some("one".to_owned())));
    write(b, &held, "two").await.unwrap();
    // Without a hint it is found by looking.
    service.wires.cut("replica-0");
    let released = async { b.release(&held, None, 0).await.unwrap() };
    let (held, _) = tokio::join!(acquire(a, &third), released);
    assert_eq!(get(a, &held).await, Ok(Some("two".to_owned())));
    let by_poll = Grants {
        at_once: 1,
        poll: 1,
        ..Grants::default()
    };
    assert_eq!(grants(a), by_poll);
}

pub fn grants(of: &Engine) -> Grants {
    of.activity(9).unwrap().grants
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_outlives_its_home_and_goes_on_at_another_under_a_new_grant() {
    let (service, a, b) = &Service::two().await;
    let home = a.replica();
    let made = create(a, call("k", 20_000)).await.lock_ref;
    write(a, &made, "written").await.unwrap();
    service.kill(0);
    // While it may live nobody takes it over.
    let early = b.take_over(&made, home).await;
    assert!(matches!(early, Err(EngineError::Unavailable(_))) || early.is_ok());
    down(b, home).await;
    b.take_over(&made, home).await.unwrap();
    assert_eq!(get(b, &made).await, Err(EngineError::GrantSuperseded));
    let held = acquire(b, &made).await;
    assert!(held.grant > made.grant);
    assert_eq!(get(b, &held).await, Ok(Some("written".to_owned())));
    write(b, &held, "on").await.unwrap();
    assert_eq!(b.release(&held, None, 0).await, Ok(false));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clean_stop_hands_entries_over_at_once() {
    let (_service, a, b) = &Service::two().await;
    let home = a.replica();
    let held = create(a, call("k", 20_000)).await.lock_ref;
    let waiting = create(a, call("k", 20_000)).await.lock_ref;
    let begun = Instant::now();
    a.stop();
    a.hand_over().await;
    down(b, home).await;
    b.take_over(&held, home).await.unwrap();
    b.take_over(&waiting, home).await.unwrap();
    let held = acquire(b, &held).await;
    b.release(&held, None, 0).await.unwrap();
    acquire(b, &waiting).await;
    assert!(begun.elapsed() < TTL, "nobody waited for a replica TTL");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_home_that_lives_and_cannot_be_called_hands_over_what_it_is_asked_for() {
    let (service, a, b) = &Service::two().await;
    let home = a.replica();
    let held = create(a, call("k", 20_000)).await.lock_ref;
    let waiting = create(a, call("k", 20_000)).await.lock_ref;
    write(a, &held, "of a").await.unwrap();
    service.wires.cut("replica-0");
    b.take_over(&waiting, home).await.unwrap();
    // Not at once: it was served a moment ago.
    let declined = b.take_over(&held, home).await;
    assert!(matches!(declined, Err(EngineError::Unavailable(_))));
    write(a, &held, "of a, again").await.unwrap();
    until("it is given up", || async {
        b.take_over(&held, home).await.is_ok()
    })
    .await;
    // It agreed for good.
    assert_eq!(elsewhere(write(a, &held, "too late").await), b.replica());
    let held = acquire(b, &held).await;
    assert_eq!(get(b, &held).await, Ok(Some("of a, again".to_owned())));
    b.release(&held, None, 0).await.unwrap();
    acquire(b, &waiting).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_whose_heartbeats_stop_answers_nobody_and_starts_anew() {
    let (service, a, b) = &Service::two().await;
    let old = a.replica();
    let held = create(a, call("k", 20_000)).await.lock_ref;
    service.replicas[0].link.mute(true);
    until("its calls fail", || async { get(a, &held).await.is_err() }).await;
    // Before anybody may take it for down.
    assert_ne!(b.presence(old), Presence::Down);
    assert!(matches!(
        get(a, &held).await,
        Err(EngineError::CutOff | EngineError::Unavailable(_))
    ));
    service.replicas[0].link.mute(false);
    until("it is another replica", || async {
        a.ready().is_ok() && a.replica() != old
    })
    .await;
    until("both know that the old one has ended", || async {
        a.presence(old) == Presence::Down && b.presence(old) == Presence::Down
    })
    .await;
    assert_eq!(elsewhere(get(a, &held).await), old);
    a.take_over(&held, old).await.unwrap();
    acquire(a, &held).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_behind_the_entry_of_a_replica_that_is_down_gets_its_turn_after_the_ttl() {
    let (service, a, b) = &Service::two().await;
    let held = create(a, call("k", 1_000)).await;
    write(a, &held.lock_ref, "last words").await.unwrap();
    let waiting = create(b, call("k", 20_000)).await.lock_ref;
    let renewed = a
        .renew(&LeaseId::LockRef(held.lock_ref.clone()))
        .await
        .unwrap();
    let begun = Instant::now();
    service.kill(0);
    let mine = acquire(b, &waiting).await;
    assert!(
        begun.elapsed() >= renewed.valid_for,
        "not before it was told"
    );
    assert_eq!(get(b, &mine).await, Ok(Some("last words".to_owned())));
    assert_eq!(
        get(b, &held.lock_ref).await,
        Err(EngineError::Ended(Lost(EndReason::Expired)))
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_nobody_waits_behind_is_swept_once_its_replica_is_down() {
    let (service, a, b) = &Service::two().await;
    create(a, call("k", 1_000)).await;
    let id = super::world::key("k");
    service.kill(0);
    for _ in 0..300 {
        if b.describe(&id).await.unwrap().state.entries.is_empty() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("its entry is still there");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_with_a_session_leaves_a_home_that_crashed_before_that_counts_as_down() {
    let (service, a, b) = &Service::two().await;
    let home = a.replica();
    let held = create(a, call("k", 1_000)).await.lock_ref;
    let session = session(b, 20_000).await;
    let waiting = create(a, call_of(session, "k")).await.lock_ref;
    service.kill(0);
    b.take_over(&waiting, home).await.unwrap();
    let presence = b.presence(home);
    assert!(matches!(presence, Presence::Live(_)), "{presence:?}");
    assert!(acquire(b, &waiting).await.grant > held.grant);
}

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
    assert_eq!(elsewhere(b.renew(&lease).await), keeper);
    b.take_session(session, keeper).await.unwrap();
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
    assert_eq!(
        get(b, &held).await,
        Err(EngineError::Ended(Lost(EndReason::SessionClosed)))
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_whose_replica_lives_and_cannot_be_called_is_handed_over() {
    let (service, a, b) = &Service::two().await;
    let keeper = a.replica();
    let session = session(a, 20_000).await;
    let here = create(a, call_of(session, "k")).await.lock_ref;
    service.wires.cut("replica-0");
    b.take_session(session, keeper).await.unwrap();
    let lease = LeaseId::Session(session);
    assert!(b.renew(&lease).await.is_ok());
    assert_eq!(elsewhere(a.renew(&lease).await), b.replica());
    // What lives by it there is asked for at the one that keeps it now.
    until("its home asks the other", || async {
        a.critical_get(&here, 0)
            .await
            .is_ok_and(|d| d.valid_for > TTL)
    })
    .await;
    b.close_session(session).await.unwrap();
    until("its entry has ended", || async {
        get(a, &here).await.is_err()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_forced_release_through_another_replica_ends_the_holder() {
    let (service, a, b) = &Service::two().await;
    let held = create(a, call("k", 20_000)).await.lock_ref;
    let waiting = create(b, call("k", 20_000)).await.lock_ref;
    // Its home is not told.
    service.wires.cut("replica-0");
    let ended = b.force_release(&held, "ops", "stuck").await.unwrap();
    assert!(ended.was_holder);
    let mine = acquire(b, &waiting).await;
    write(b, &mine, "of b").await.unwrap();
    // It finds out by a re-read beside a call, at the latest when its last read is a second ago.
    until("its home knows", || async {
        matches!(
            get(a, &held).await,
            Err(EngineError::Ended(Lost(EndReason::Forced { .. })))
        )
    })
    .await;
    assert_eq!(get(b, &mine).await, Ok(Some("of b".to_owned())));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_are_served_by_the_replica_that_all_agree_on() {
    let service = Service::of(3).await;
    until("all know each other", || async {
        let all = || (0..3).map(|n| service.engine(n));
        all().all(|one| all().all(|other| one.presence(other.replica()) != Presence::Unsure))
    })
    .await;
    for number in 0..50 {
        let key = super::world::key(&format!("k{number}"));
        let chosen = (0..3).map(|n| match service.engine(n).affinity(&key) {
            Presence::Local => service.engine(n).replica(),
            Presence::Live(peer) => peer.id,
            other => panic!("{other:?}"),
        });
        let chosen: std::collections::BTreeSet<_> = chosen.collect();
        assert_eq!(chosen.len(), 1);
    }
    down_nobody(&service).await;
}

/// Replicas that live are never taken for down.
async fn down_nobody(service: &Service) {
    for one in &service.replicas {
        for other in &service.replicas {
            assert_ne!(one.engine.presence(other.engine.replica()), Presence::Down);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_sections_of_one_key_through_three_replicas_count_exactly() {
    let service = Service::of(3).await;
    let section = |n: usize| {
        let engine = service.engine(n).clone();
        async move {
            for _ in 0..20 {
                let made = engine.create(call("k", 20_000)).await.unwrap().lock_ref;
                let held = acquire(&engine, &made).await;
                let count = get(&engine, &held).await.unwrap();
                let count: u64 = count.map_or(0, |text| text.parse().unwrap());
                write(&engine, &held, &(count + 1).to_string())
                    .await
                    .unwrap();
                engine.release(&held, None, 0).await.unwrap();
            }
        }
    };
    let all = (0..12).map(|n| tokio::spawn(section(n % 3)));
    for one in all.collect::<Vec<_>>() {
        one.await.unwrap();
    }
    let made = create(service.engine(0), call("k", 20_000)).await.lock_ref;
    let held = acquire(service.engine(0), &made).await;
    assert_eq!(
        get(service.engine(0), &held).await,
        Ok(Some("240".to_owned()))
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_behind_a_holder_of_its_own_home_learns_of_an_end_through_another() {
    let (service, a, b) = &Service::two().await;
    let held = create(a, call("k", 20_000)).await.lock_ref;
    let waiting = create(a, call("k", 20_000)).await.lock_ref;
    // Its home is not told.
    service.wires.cut("replica-0");
    let ended = async {
        tokio::time::sleep(Duration::from_millis(500)).await;
        b.force_release(&held, "ops", "stuck").await.unwrap()
    };
    let soon = tokio::time::timeout(LONG / 3, acquire(a, &waiting));
    let (turn, ended) = tokio::join!(soon, ended);
    assert!(ended.was_holder);
    turn.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_is_not_told_that_it_holds_from_what_was_known_long_ago() {
    let (service, a, b) = &Service::two().await;
    let held = create(a, call("k", 20_000)).await.lock_ref;
    // Its home is told by nobody.
    service.wires.cut("replica-0");
    service.replicas[0].link.deaf(true);
    b.force_release(&held, "ops", "stuck").await.unwrap();
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    let again = a.acquire(&held, NO_WAIT, false).await;
    assert!(matches!(again, Err(EngineError::Ended(_))), "{again:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_home_that_nobody_could_tell_of_an_end_acknowledges_nothing_a_second_later() {
    let (service, a, b) = &Service::two().await;
    let held = create(a, call("k", 20_000)).await.lock_ref;
    service.wires.cut("replica-0");
    service.replicas[0].link.deaf(true);
    b.force_release(&held, "ops", "stuck").await.unwrap();
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    let late = write(a, &held, "late").await;
    assert!(
        matches!(late, Err(EngineError::EndedDuringWrite(_))),
        "{late:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_cannot_be_changed_holds_up_no_other() {
    let (service, a, b) = &Service::two().await;
    let (one, other) = (session(a, 20_000).await, session(a, 20_000).await);
    create(b, call_of(one, "stuck")).await;
    let held = create(b, call_of(other, "k")).await.lock_ref;
    service.replicas[1].link.stick(super::world::key("stuck"));
    until("they know each other", || async {
        matches!(a.presence(b.replica()), Presence::Live(_))
    })
    .await;
    a.close_session(one).await.unwrap();
    tokio::time::sleep(Duration::from_millis(500)).await;
    a.close_session(other).await.unwrap();
    until("what lived by the other session has ended", || async {
        matches!(get(b, &held).await, Err(EngineError::Ended(_)))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_entry_made_while_an_older_state_is_read_is_found() {
    let (service, a, b) = &Service::two().await;
    let before = create(b, call("k", 20_000)).await.lock_ref;
    service.replicas[0].link.slow(Duration::from_millis(500));
    let early = a.acquire(&before, NO_WAIT, false);
    let late = async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        let made = create(b, call("k", 20_000)).await.lock_ref;
        a.acquire(&made, NO_WAIT, false).await
    };
    let (early, late) = tokio::join!(early, late);
    assert_eq!(elsewhere(early), b.replica());
    assert_eq!(elsewhere(late), b.replica());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_went_to_another_replica_has_not_ended_where_it_was() {
    let (service, a, b) = &Service::two().await;
    let keeper = a.replica();
    let session = session(a, 20_000).await;
    let here = create(a, call_of(session, "k")).await.lock_ref;
    service.wires.cut("replica-0");
    b.take_session(session, keeper).await.unwrap();
    let acquired = a.acquire(&here, NO_WAIT, false).await.unwrap();
    assert!(acquired.valid_for > TTL);
    let held = acquired.lock_ref;
    assert_eq!(get(a, &held).await, Ok(None));
    create(a, call_of(session, "k2")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_is_closed_by_the_replica_that_keeps_it_only() {
    let (service, a, b) = &Service::two().await;
    let keeper = a.replica();
    let session = session(a, 20_000).await;
    service.wires.cut("replica-0");
    b.take_session(session, keeper).await.unwrap();
    assert_eq!(elsewhere(a.close_session(session).await), b.replica());
    assert_eq!(b.close_session(session).await, Ok(false));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_is_found_open_is_no_younger_than_it_is() {
    let service = Service::of(1).await;
    let a = service.engine(0);
    let id = some_id();
    let open = || a.open_session(session_call(id, 20_000));
    open().await.unwrap();
    // Its last acknowledged heartbeat is a second ago.
    service.replicas[0].link.mute(true);
    tokio::time::sleep(Duration::from_millis(1_000)).await;
    let (_, renewed) = open().await.unwrap();
    assert!(
        renewed.valid_for <= Duration::from_millis(19_100),
        "{renewed:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_taken_over_without_an_answer_is_kept_and_ends() {
    let (service, a, b) = &Service::two().await;
    let keeper = a.replica();
    let session = session(a, 3_000).await;
    let held = create(b, call_of(session, "k")).await.lock_ref;
    service.kill(0);
    down(b, keeper).await;
    service.replicas[1].link.unheard(1);
    // Nobody claimed it any more.
    let _ = b.take_session(session, keeper).await;
    let id = super::world::key("k");
    until("it ended with its client", || async {
        b.describe(&id).await.unwrap().state.entries.is_empty()
    })
    .await;
    assert!(matches!(get(b, &held).await, Err(EngineError::Ended(_))));
}

/// A holder does not come, though its session is kept alive by this engine: the one behind it has its turn.
pub async fn goes_unclaimed(
    (keeper, session): (&Engine, SessionId),
    home: &Engine,
    head: &LockRef,
    next: &LockRef,
) {
    let keep = async {
        loop {
            keeper.renew(&LeaseId::Session(session)).await.unwrap();
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    };
    tokio::select! {
        _ = acquire(home, next) => {}
        () = keep => {}
    }
    assert_eq!(
        get(home, head).await,
        Err(EngineError::Ended(Lost(EndReason::Unclaimed)))
    );
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
