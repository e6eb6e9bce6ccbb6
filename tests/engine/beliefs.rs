//! What replicas may believe of each other, and of what a client was told (I5, I11, H2).

use std::time::Duration;

use fermata::engine::{EngineError, Presence};
use fermata::store::{ClusterStore as _, ReplicaState};

use super::keepers::{goes_unclaimed, keep_renewed};
use super::replicas::{LONG, NO_WAIT, create, down, get, session, write};
use super::shared::{Service, TTL};
use super::world::{assert_unavailable, call, call_of, until};

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
    // Longer than it may answer.
    link.set(|faults| faults.slow_writes = TTL * 3 / 2);
    link.mute(true);
    let put = write(a, &held, "may be there").await;
    assert!(matches!(put, Err(EngineError::WriteUnknown(_))), "{put:?}");
    // By then nothing begins.
    let late = write(a, &held, "never begun").await;
    assert!(
        matches!(
            late,
            Err(EngineError::Silent | EngineError::Fenced | EngineError::Unavailable(_))
        ),
        "{late:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_is_stopped_while_it_starts_anew_says_so_under_both_ids() {
    let service = Service::of(2).await;
    let (a, b) = (service.engine(0), service.engine(1));
    let [link, other_way] = [0, 1].map(|number| &service.replicas[number].link);
    let first = a.replica();
    link.mute(true);
    until("it was declared down", || async {
        other_way.replica_state(first) == Some(ReplicaState::Down)
    })
    .await;
    link.set(|faults| faults.slow_lists = Duration::from_millis(500));
    link.mute(false);
    let rows = || async { other_way.list_replicas().await.unwrap() };
    until("it begins anew", || async { rows().await.len() == 3 }).await;
    a.stop();
    a.leave(LONG).await;
    until("nobody waits for it", || async {
        let rows = rows().await;
        let mut others = rows.iter().filter(|row| row.id != b.replica());
        others.all(|row| matches!(row.state, ReplicaState::Down | ReplicaState::Stopped))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_that_could_not_be_told_that_it_holds_has_not_claimed_the_key() {
    let service = Service::of(2).await;
    let (a, b) = (service.engine(0), service.engine(1));
    let session = session(a, 1_000).await;
    let first = create(b, call("k", 20_000)).await.lock_ref;
    let in_vain = create(b, call_of(session, "k")).await.lock_ref;
    let last = create(b, call("k", 20_000)).await.lock_ref;
    // How long its session may be sure cannot be asked any more, and what was said before has ended.
    // And it does not hear what it is asked through the store.
    service.replicas[0].link.set(|faults| faults.deaf = true);
    service.wires.cut("replica-0");
    let renewing = keep_renewed::<()>(a, session);
    let ended = tokio::time::timeout(Duration::from_millis(1_100), renewing);
    assert!(ended.await.is_err());
    b.release(&first, None, 0).await.unwrap();
    let answered = tokio::select! {
        answered = b.acquire(&in_vain, NO_WAIT, false) => answered,
        never = keep_renewed(a, session) => never,
    };
    assert_unavailable(&answered);
    goes_unclaimed((a, session), b, &in_vain, &last).await;
}
