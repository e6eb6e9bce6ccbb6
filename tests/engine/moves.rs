//! What changes its replica, or is ended by another one, and who must learn of that (I10).

use std::time::Duration;

use fermata::engine::{CreateCall, EngineError, LeaseId, LockStatus, Presence};
use fermata::lock::{
    Command, CoreLimits, Create, EndReason, EndedAs, Liveness, LockRef, Mode, SessionId, State,
    decide,
};
use fermata::store::{SessionRow, SessionSwap, Store, Swap};

use super::recorded::Engine;
use super::replicas::{down, grants};
use super::shared::{Service, some_id};
use super::world::{call, call_of, key, put, session_call, until};

const LONG: Duration = Duration::from_secs(30);
/// For this long nothing but an open wait keeps a session alive.
const WAITED: Duration = Duration::from_secs(3);
const SHORT_MS: u32 = 1_000;

async fn create(engine: &Engine, call: CreateCall) -> LockRef {
    engine.create(call).await.unwrap().lock_ref
}

fn is_forced<T>(answer: Result<T, EngineError>) -> bool {
    let forced = |ended: &EndedAs| matches!(ended, EndedAs::Lost(EndReason::Forced { .. }));
    matches!(answer, Err(EngineError::Ended(ended)) if forced(&ended))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_only_keeps_alive_learns_of_an_end_though_its_home_could_not_be_called() {
    let service = Service::of(2).await;
    let (a, b) = (service.engine(0), service.engine(1));
    let held = create(a, call("k", 20_000)).await;
    service.wires.cut("replica-0");
    b.force_release(&held, "ops", "stuck").await.unwrap();
    let lease = LeaseId::LockRef(held);
    until("its keep-alives are refused", || async {
        is_forced(a.renew(&lease).await)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_home_is_notified_of_an_end_also_where_its_outcome_had_to_be_looked_up() {
    let service = Service::of(2).await;
    let (a, b) = (service.engine(0), service.engine(1));
    let held = create(a, call("k", 20_000)).await;
    service.replicas[1].link.unheard(1);
    b.force_release(&held, "ops", "stuck").await.unwrap();
    let lease = LeaseId::LockRef(held);
    until("its keep-alives are refused", || async {
        is_forced(a.renew(&lease).await)
    })
    .await;
}

async fn session(engine: &Engine) -> SessionId {
    let opened = engine.open_session(session_call(some_id(), SHORT_MS));
    opened.await.unwrap().0
}

/// Waits at `home` for an entry that lives by a session, which `keeper` keeps and `taker` takes over meanwhile.
async fn waits_while_its_session_moves(home: &Engine, keeper: &Engine, taker: &Engine) {
    until("the home knows the keeper", || async {
        let presence = home.presence(keeper.replica());
        matches!(presence, Presence::Local | Presence::Live(_))
    })
    .await;
    let first = create(home, call("k", 20_000)).await;
    let session = session(keeper).await;
    let waiting = create(home, call_of(session, "k")).await;
    let wait = home.acquire(&waiting, LONG, false);
    let moves = async {
        until("it was taken over", || async {
            taker.take_session(session, keeper.replica()).await.is_ok()
        })
        .await;
        tokio::time::sleep(WAITED).await;
        home.release(&first, None, 0).await.unwrap();
    };
    let (acquired, ()) = tokio::join!(wait, moves);
    assert!(matches!(acquired.unwrap().status, LockStatus::Held { .. }));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_open_wait_keeps_a_session_alive_that_went_to_another_replica() {
    let service = Service::of(2).await;
    let (a, b) = (service.engine(0), service.engine(1));
    waits_while_its_session_moves(a, a, b).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_open_wait_keeps_a_session_alive_that_came_from_another_replica() {
    let service = Service::of(2).await;
    let (a, b) = (service.engine(0), service.engine(1));
    waits_while_its_session_moves(a, b, a).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_open_wait_keeps_a_session_alive_that_goes_around_it() {
    let service = Service::of(3).await;
    let (a, b, c) = (service.engine(0), service.engine(1), service.engine(2));
    waits_while_its_session_moves(a, b, c).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_brings_a_session_along_whose_replica_is_down() {
    let (service, a, b) = &Service::two().await;
    let opened = a.open_session(session_call(some_id(), 20_000)).await;
    let session = opened.unwrap().0;
    let held = create(b, call_of(session, "k")).await;
    let behind = create(b, call_of(session, "k")).await;
    let keeper = a.replica();
    service.kill(0);
    down(b, keeper).await;
    // Nobody names the session: its client uses its lockRefs, and that is a renewal.
    b.critical_write(&held, put("on"), 0).await.unwrap();
    b.release(&held, None, 0).await.unwrap();
    let acquired = b.acquire(&behind, LONG, false).await.unwrap();
    assert!(matches!(acquired.status, LockStatus::Held { .. }));
    b.renew(&LeaseId::Session(session)).await.unwrap();
}

/// Puts an entry into the queue of `k` whose home is `home`, which never learns of it.
async fn entry_unknown_to(home: &Engine, link: &dyn Store, live_by: Liveness) {
    let create = Create {
        request_id: some_id(),
        mode: Mode::Exclusive,
        liveness: live_by,
        home: home.replica(),
        identity: "".into(),
        owner: "".into(),
        created_at_ms: 0,
        past: None,
    };
    let empty = State::default();
    let made = decide(
        &empty,
        &[Command::Create(create)],
        1,
        &CoreLimits::default(),
    );
    let swap = link.compare_and_swap(&key("k"), &empty, &made.state).await;
    assert!(matches!(swap, Swap::Applied), "{swap:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_waits_for_ever_behind_an_entry_that_its_home_does_not_know_of() {
    let service = Service::of(2).await;
    let (a, b) = (service.engine(0), service.engine(1));
    let live_by = Liveness::Own { ttl_ms: SHORT_MS };
    entry_unknown_to(a, &*service.replicas[1].link, live_by).await;
    let waiting = create(b, call("k", 20_000)).await;
    let acquired = b.acquire(&waiting, LONG, false).await.unwrap();
    assert!(matches!(acquired.status, LockStatus::Held { .. }));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_waits_for_ever_for_a_session_that_its_replica_does_not_know_of() {
    let service = Service::of(2).await;
    let (a, b) = (service.engine(0), service.engine(1));
    let row = SessionRow {
        id: SessionId(some_id()),
        ttl_ms: SHORT_MS,
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
    entry_unknown_to(b, &**link, Liveness::Session(row.id)).await;
    let waiting = create(b, call("k", 20_000)).await;
    let acquired = b.acquire(&waiting, LONG, false).await.unwrap();
    assert!(matches!(acquired.status, LockStatus::Held { .. }));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_that_was_ended_while_its_value_was_synced_is_not_told_that_it_holds() {
    let service = Service::of(2).await;
    let (a, b) = (service.engine(0), service.engine(1));
    let first = create(a, call("k", 20_000)).await;
    let second = create(a, call("k", 20_000)).await;
    a.force_release(&first, "ops", "stuck").await.unwrap();
    // Its home is told by nobody, and finds out by its own look only.
    service.wires.cut("replica-0");
    service.replicas[0].link.deaf(true);
    service.replicas[0]
        .link
        .slow_writes(Duration::from_millis(1_500));
    let acquire = a.acquire(&second, LONG, false);
    let end = async {
        tokio::time::sleep(Duration::from_millis(500)).await;
        b.force_release(&second, "ops", "stuck").await.unwrap();
    };
    let (acquired, ()) = tokio::join!(acquire, end);
    assert!(is_forced(acquired));
}

/// Writes through the engines in turn, from `at` on, as a client does whose calls go to all of them while those cannot
/// call each other. Which one served it.
async fn write_sprayed(service: &Service, held: &LockRef, at: usize) -> usize {
    for number in (at..at + 30).map(|at| at % service.replicas.len()) {
        let engine = service.engine(number);
        let mut answer = engine.critical_write(held, put("x"), 0).await.map(drop);
        if let Err(EngineError::Elsewhere { home, .. }) = answer {
            answer = engine.take_over(held, home).await;
            if answer.is_ok() {
                answer = engine.critical_write(held, put("x"), 0).await.map(drop);
            }
        }
        match answer {
            Ok(()) => return number,
            Err(EngineError::Unavailable(_)) => {}
            Err(error) => panic!("{error:?}"),
        }
    }
    panic!("served by none");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_keeps_its_grant_though_its_calls_go_to_all_and_those_cannot_call_each_other() {
    let service = Service::of(3).await;
    for number in 0..3 {
        service.wires.cut(&format!("replica-{number}"));
    }
    let held = create(service.engine(0), call("k", 20_000)).await;
    let mut at = 1;
    for _ in 0..4 {
        at = write_sprayed(&service, &held, at).await + 1;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_with_a_short_ttl_that_moves_to_another_replica_comes_in_time() {
    let service = Service::of(2).await;
    let (a, b) = (service.engine(0), service.engine(1));
    let home = a.replica();
    service.wires.cut("replica-0");
    until("they know each other", || async {
        matches!(b.presence(home), Presence::Live(_))
    })
    .await;
    let held = create(a, call("k", 4_000)).await;
    until("it is given up", || async {
        match b.take_over(&held, home).await {
            Err(EngineError::Unavailable(_)) => false,
            taken => {
                taken.unwrap();
                true
            }
        }
    })
    .await;
    let acquired = b.acquire(&held, LONG, false).await.unwrap();
    assert!(matches!(acquired.status, LockStatus::Held { .. }));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_turn_that_another_replica_tells_of_is_not_found_by_polling() {
    let (_service, a, b) = &Service::two().await;
    // Now and then it is just then that it is time to look.
    for round in 1..=5 {
        let key = format!("k{round}");
        let first = create(a, call(&key, 20_000)).await;
        // Nobody waits for it, so it is polled for once a second.
        create(b, call(&key, 20_000)).await;
        a.release(&first, None, 0).await.unwrap();
        until("the other replica sees that it holds the key", || async {
            let seen = grants(b);
            seen.hint + seen.poll == round
        })
        .await;
        if grants(b).hint > 0 {
            return;
        }
    }
    panic!("all five were found by polling");
}
