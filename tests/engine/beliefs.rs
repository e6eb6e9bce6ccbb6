//! What replicas may believe: of each other, of a key that others change, and of what a client was told (I5, I10, I11).

use std::time::Duration;

use fermata::engine::{EngineError, Presence};
use fermata::lock::{EndReason, EndedAs};
use fermata::store::Store;

use super::replicas::{LONG, NO_WAIT, acquire, create, down, get, goes_unclaimed, session, write};
use super::shared::{Service, TTL};
use super::world::{call, call_of, until};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_is_not_taken_for_down_while_it_answers_by_a_longer_ttl_than_the_observers() {
    let service = Service::with_ttls(&[TTL * 2, TTL]).await;
    let (a, b) = (service.engine(0), service.engine(1));
    let home = a.replica();
    let held = create(a, call("k", 20_000)).await.lock_ref;
    until("it is known", || async {
        matches!(b.presence(home), Presence::Live(_))
    })
    .await;
    service.replicas[0].link.mute(true);
    loop {
        let is_down = b.presence(home) == Presence::Down;
        if get(a, &held).await.is_err() {
            break;
        }
        assert!(!is_down, "it answered after it was down");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    down(b, home).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_put_that_a_replica_did_not_live_to_answer_is_not_told_as_one_that_never_began() {
    let (service, a, _) = &Service::two().await;
    let held = create(a, call("k", 20_000)).await.lock_ref;
    let link = &service.replicas[0].link;
    link.slow_writes(Duration::from_secs(60));
    link.mute(true);
    let put = write(a, &held, "may be there").await;
    assert!(matches!(put, Err(EngineError::WriteUnknown(_))), "{put:?}");
    // By then nothing begins.
    let late = write(a, &held, "never begun").await;
    assert!(
        matches!(late, Err(EngineError::CutOff | EngineError::Unavailable(_))),
        "{late:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_is_stopped_while_it_starts_anew_says_so_under_both_ids() {
    let service = Service::of(2).await;
    let (a, b) = (service.engine(0), service.engine(1));
    let [link, other_way] = [0, 1].map(|number| &service.replicas[number].link);
    link.mute(true);
    until("it has ended", || async { a.ready().is_err() }).await;
    link.slow(Duration::from_millis(500));
    link.mute(false);
    let rows = || async { other_way.list_replicas().await.unwrap() };
    // Its new row is there, and its first read of the rows is not answered.
    until("it begins anew", || async { rows().await.len() == 3 }).await;
    a.stop();
    a.hand_over().await;
    until("nobody waits for it", || async {
        let rows = rows().await;
        let mut others = rows.iter().filter(|row| row.id != b.replica());
        others.all(|row| row.stopped)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_with_another_grant_is_answered_from_the_store_however_young_the_last_read_is() {
    let service = Service::of(2).await;
    let (a, b) = (service.engine(0), service.engine(1));
    let former = create(a, call("k", 6_000)).await.lock_ref;
    service.wires.cut("replica-0");
    // Not at once, for it was just served.
    until("it is given up", || async {
        b.take_over(&former, a.replica()).await.is_ok()
    })
    .await;
    let present = acquire(b, &former).await;
    let superseded = Err(EngineError::GrantSuperseded);
    assert_eq!(get(b, &former).await, superseded);
    // Its home is not told.
    service.wires.cut("replica-1");
    a.force_release(&present, "ops", "stuck").await.unwrap();
    let answered = get(b, &former).await;
    let forced = |e: &EngineError| {
        matches!(
            e,
            EngineError::Ended(EndedAs::Lost(EndReason::Forced { .. }))
        )
    };
    assert!(answered.as_ref().is_err_and(forced), "{answered:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_that_could_not_be_told_that_it_holds_has_not_claimed_the_key() {
    let service = Service::of(2).await;
    let (a, b) = (service.engine(0), service.engine(1));
    let session = session(a, 1_000).await;
    let first = create(b, call("k", 20_000)).await.lock_ref;
    let in_vain = create(b, call_of(session, "k")).await.lock_ref;
    let last = create(b, call("k", 20_000)).await.lock_ref;
    // How long its session may be sure cannot be asked any more.
    service.wires.cut("replica-0");
    b.release(&first, None, 0).await.unwrap();
    let answered = b.acquire(&in_vain, NO_WAIT, false).await;
    assert!(
        matches!(answered, Err(EngineError::Unavailable(_))),
        "{answered:?}"
    );
    goes_unclaimed((a, session), b, &in_vain, &last).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_gets_through_to_a_key_that_another_one_changes_all_the_time() {
    const ENTRIES: u64 = 10;
    let service = Service::of(2).await;
    let (a, b) = (service.engine(0), service.engine(1));
    // What it knows of the key is kept, and old by the next change.
    create(a, call("k", 20_000)).await;
    let old = Duration::from_millis(2);
    service.replicas[0].link.outrun(b, old);
    for _ in 0..ENTRIES {
        tokio::time::sleep(old * 2).await;
        let made = tokio::time::timeout(LONG, create(a, call("k", 20_000))).await;
        made.expect("it never got through");
    }
    let conflicts = a.counts().conflicts;
    assert!(conflicts >= ENTRIES, "nobody was faster: {conflicts}");
    assert!(conflicts <= 5 * ENTRIES, "{conflicts} conflicts");
}
